"""The models that a process serves, for all protocols alike."""

import asyncio
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxdelegate.errors import JaxDelegateError, OptionError
from jaxdelegate.model.sections import EMBEDDING_METADATA, LLM_METADATA
from jaxdelegate.model.source import text_metadata
from jaxdelegate.serve.clients import RequestError, shown
from jaxdelegate.serve.limits import Limits
from jaxdelegate.serve.metrics import Metrics
from jaxdelegate.serve.settings import ServeSettings
from jaxdelegate.serve.v2.model import ServedModel, open_model
from jaxdelegate.serve.v2.requests import InferRequest
from jaxdelegate.serve.v2.tensors import name_of
from jaxdelegate.serve.worker import Served, Worker

if TYPE_CHECKING:
    from jaxdelegate.serve.openai.text_model import TextModel

_LONGEST = 500  # characters of an error that a client sees


class Service:
    """Finds models by name and runs them; refuses new requests during shutdown.

    `metrics` returns the text of `/metrics` and its content type; None: there are no metrics. While
    `is_ending`, the service is not ready, but running requests finish.
    """

    def __init__(
        self,
        models: Sequence[ServedModel],
        limits: Limits | None = None,
        metrics: Callable[[], tuple[bytes, str]] | None = None,
        *,
        language_models: "Sequence[TextModel]" = (),
    ) -> None:
        """Compile nothing yet. An OptionError for a duplicate name, or one that no URL can have."""
        self.models = {model.name: model for model in models}
        self.language_models = {model.name: model for model in language_models}
        self.all: Mapping[str, Served] = {**self.models, **self.language_models}
        self.limits = limits or Limits()
        self.metrics = metrics
        self.is_ending = False
        names = [*(m.name for m in models), *(m.name for m in language_models)]
        for name in names:
            if names.count(name) > 1:
                raise OptionError(f"duplicate model name {name!r}")
            if not name or "/" in name or not name.isprintable():
                raise OptionError(f"model name: expected text without '/', got {name!r}")
        for model in models:
            _check_datatypes(model)

    @property
    def is_ready(self) -> bool:
        return not self.is_ending and all(m.worker.is_ready for m in self.all.values())

    def model(self, name: str, version: str = "") -> ServedModel:
        """The model of tensors; "" is any version. A RequestError if it does not exist."""
        self.find(name, version)
        if name not in self.models:
            raise RequestError(f"model {shown(name)} is a language model; see /v1/models")
        return self.models[name]

    def ready_model(self, name: str, version: str = "") -> ServedModel:
        """Like `model`, but a RequestError of status 503 if it is not ready."""
        model = self.model(name, version)
        self.check_ready(model)
        return model

    def find(self, name: str, version: str = "") -> Served:
        """Any model; "" is any version. A RequestError of status 404 if it does not exist."""
        if name not in self.all:
            raise RequestError(f"model {shown(name)} is not served; see /v2/repository/index", 404)
        model = self.all[name]
        if version not in ("", model.version):
            raise RequestError(
                f"model {shown(name)} has the version {model.version!r}, not {shown(version)}", 404
            )
        return model

    def is_model_ready(self, model: Served) -> bool:
        return model.worker.is_ready and not self.is_ending

    def check_ready(self, model: Served) -> None:
        """A RequestError of status 503 during shutdown, or if the model is not compiled."""
        if self.is_ending:
            raise RequestError("the server is shutting down; use another one", 503)
        if model.worker.error is not None:
            raise RequestError(self.why_not_ready(model), 503)
        if not model.worker.is_ready:
            raise RequestError(f"model {model.name!r} is being compiled; try again later", 503)

    def why_not_ready(self, model: Served) -> str:
        """The name of a model that is not ready, with its error if it has failed."""
        error = model.worker.error
        if error is None:
            return repr(model.name)
        return f"{model.name!r} cannot be served: {str(error)[:_LONGEST]}"

    def start(self) -> None:
        """Compile the models in threads: call it after the process's last fork."""
        for model in self.all.values():
            model.worker.start()

    async def close(self) -> None:
        """Refuse new requests, finish the queued ones, and end the models' threads."""
        self.is_ending = True
        workers = {model.worker for model in self.all.values()}
        for worker in workers:
            worker.stop()
        await asyncio.to_thread(_close, workers)

    async def infer(self, model: ServedModel, request: InferRequest) -> Mapping[str, np.ndarray]:
        """All outputs by name; a RequestError of status 500 if an operator or a device failed."""
        try:
            return await model.infer(request)
        except RequestError:
            raise
        except JaxDelegateError as error:  # the model logs it
            raise RequestError(
                f"model {model.name!r} failed: {str(error)[:_LONGEST]}", 500
            ) from error


def _close(workers: Iterable[Worker]) -> None:
    for worker in workers:
        worker.close()


def _check_datatypes(model: ServedModel) -> None:
    for tensor in (*model.inputs, *model.outputs):
        try:
            name_of(tensor.dtype)
        except RequestError as error:
            raise OptionError(f"model {model.name!r}: tensor {tensor.name!r}: {error}") from None


def open_service(
    models: Mapping[str, str | os.PathLike[str]],
    settings: ServeSettings | None = None,
    limits: Limits | None = None,
) -> Service:
    """Read model files; `Service.start` compiles them. An OptionError for no file."""
    if not models:
        raise OptionError("expected at least one model to serve, got none")
    metrics, settings = Metrics(), settings or ServeSettings()
    tensors = list[ServedModel]()
    texts = list[Any]()
    for name, path in models.items():
        kind = text_metadata(path)
        if kind == LLM_METADATA:
            from jaxdelegate.serve.openai.language_model import (  # noqa: PLC0415 (slow)
                LanguageModel,
            )

            texts.append(LanguageModel(path, name, settings, metrics.text_recorder(name)))
        elif kind == EMBEDDING_METADATA:
            from jaxdelegate.serve.openai.embedding_model import (  # noqa: PLC0415 (slow)
                EmbeddingModel,
            )

            texts.append(EmbeddingModel(path, name, settings, metrics.recorder(name, "1")))
        else:
            tensors += open_model(path, name, settings, metrics.recorder(name, "1"))
    if settings.lora:
        texts += _adapted(texts, settings.lora)
    return Service(tensors, limits, metrics.text, language_models=texts)


def _adapted(texts: Sequence[Any], lora: Iterable[str]) -> "list[TextModel]":
    from jaxdelegate.serve.openai.language_model import (  # noqa: PLC0415 (slow)
        AdaptedModel,
        LanguageModel,
    )

    bases = [model for model in texts if isinstance(model, LanguageModel)]
    if len(bases) != 1:
        raise OptionError(f"lora: expected one language model for adapters, got {len(bases)}")
    return [AdaptedModel(bases[0], name) for name in lora]


def parse_models(text: str, option: str = "models") -> dict[str, str]:
    """Names and files of `name=path,name=path`."""
    models: dict[str, str] = {}
    for part in text.split(","):
        name, equals, path = part.strip().partition("=")
        if not (name and equals and path):
            raise OptionError(f"{option}: expected name=path,name=path, got {part!r}")
        if name in models:
            raise OptionError(f"{option}: duplicate model name {name!r}")
        models[name] = path
    return models
