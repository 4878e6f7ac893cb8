"""The models that a process serves, for HTTP and gRPC alike; independent of both."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from jaxdelegate.errors import JaxDelegateError, OptionError
from jaxdelegate.serve.limits import Limits
from jaxdelegate.serve.records import InferRequest, RequestError, Served, ServedModel
from jaxdelegate.serve.v2.datatypes import name_of, shown
from jaxdelegate.version import __version__

if TYPE_CHECKING:
    from jaxdelegate.serve.openai.embedding_model import EmbeddingModel
    from jaxdelegate.serve.openai.language_model import LanguageModel

EXTENSIONS = ("binary_tensor_data", "model_configuration", "sequence", "statistics")
PLATFORM = "jaxdelegate_tflite"
NAME = "jaxdelegate"
VERSION = __version__
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
        language_models: "Sequence[LanguageModel | EmbeddingModel]" = (),
    ) -> None:
        """Compile nothing yet.

        An OptionError for a duplicate name, or one that cannot be part of a URL.
        """
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
        return not self.is_ending and all(m.is_ready for m in self.all.values())

    def model(self, name: str, version: str = "") -> ServedModel:
        """The model of tensors; "" is any version. A RequestError if it does not exist."""
        self.find(name, version)
        if name not in self.models:
            raise RequestError(f"model {shown(name)} is a language model; see /v1/models")
        return self.models[name]

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
        return model.is_ready and not self.is_ending

    def check_ready(self, model: Served) -> None:
        """A RequestError of status 503 during shutdown, or if the model is not compiled."""
        if self.is_ending:
            raise RequestError("the server is shutting down; use another one", 503)
        if model.error is not None:
            raise RequestError(self.why_not_ready(model), 503)
        if not model.is_ready:
            raise RequestError(f"model {model.name!r} is being compiled; try again later", 503)

    def why_not_ready(self, model: Served) -> str:
        """The name of a model that is not ready, with its error if it has failed."""
        if model.error is None:
            return repr(model.name)
        return f"{model.name!r} cannot be served: {str(model.error)[:_LONGEST]}"

    def start(self) -> None:
        """Compile the models in threads: call it after the process's last fork."""
        for model in self.all.values():
            model.start()

    async def close(self) -> None:
        """Refuse new requests, finish the queued ones, and end the models' threads."""
        self.is_ending = True
        await asyncio.gather(*(m.close() for m in self.all.values()))

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


def _check_datatypes(model: ServedModel) -> None:
    for tensor in (*model.inputs, *model.outputs):
        try:
            name_of(tensor.dtype)
        except RequestError as error:
            raise OptionError(f"model {model.name!r}: tensor {tensor.name!r}: {error}") from None
