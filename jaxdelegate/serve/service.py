"""The models that one process serves; what HTTP and gRPC share. Knows no protocol."""

import asyncio
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from jaxdelegate.errors import OptionError
from jaxdelegate.serve.datatypes import name_of, shown
from jaxdelegate.serve.limits import Limits
from jaxdelegate.serve.records import InferRequest, RequestError, ServedModel
from jaxdelegate.version import __version__

EXTENSIONS = ("binary_tensor_data", "sequence")
PLATFORM = "jaxdelegate_tflite"
NAME = "jaxdelegate"
VERSION = __version__


class Service:
    """Finds models by name and asks them; refuses new requests once it ends.

    Attributes:
        models: by name.
        limits: of requests.
        metrics: writes the text of `/metrics` and names its content type; None: there is none.
        is_ending: whether the process was asked to end: not ready, requests under way are answered.
    """

    def __init__(
        self,
        models: Sequence[ServedModel],
        limits: Limits | None = None,
        metrics: Callable[[], tuple[bytes, str]] | None = None,
    ) -> None:
        """Serve some models.

        Args:
            models: with different names.
            limits: of requests.
            metrics: writes the text of `/metrics` and names its content type.

        Raises:
            OptionError: two models of one name, or a name that cannot stand in an address.
        """
        self.models = {model.name: model for model in models}
        self.limits = limits or Limits()
        self.metrics = metrics
        self.is_ending = False
        names = [model.name for model in models]
        for name in names:
            if names.count(name) > 1:
                raise OptionError(f"two models have the name {name!r}")
            if not name or "/" in name or not name.isprintable():
                raise OptionError(f"a model's name: want text without '/', got {name!r}")
        for model in models:
            _check_datatypes(model)

    @property
    def is_ready(self) -> bool:
        """Whether every model is compiled, and the process does not end."""
        return not self.is_ending and all(m.is_ready for m in self.models.values())

    def model(self, name: str, version: str = "") -> ServedModel:
        """The model of a name.

        Args:
            name: as a client has it.
            version: "": any.

        Raises:
            RequestError: 404, no such model or version.
        """
        if name not in self.models:
            raise RequestError(f"model {shown(name)} is not served; see /v2/repository/index", 404)
        model = self.models[name]
        if version not in ("", model.version):
            raise RequestError(
                f"model {shown(name)} has the version {model.version!r}, not {shown(version)}", 404
            )
        return model

    def is_model_ready(self, model: ServedModel) -> bool:
        """Whether a model is compiled, and the process does not end."""
        return model.is_ready and not self.is_ending

    async def infer(self, model: ServedModel, request: InferRequest) -> Mapping[str, np.ndarray]:
        """All outputs of a model, by name.

        Raises:
            RequestError: 503 if the process ends or the model is not ready, 504 if it takes too
                long, and what the model raises.
        """
        if self.is_ending:
            raise RequestError("the server ends; send the request to another one", 503)
        if not model.is_ready:
            raise RequestError(f"model {model.name!r} is being compiled; try again later", 503)
        try:
            async with asyncio.timeout(self.limits.seconds):
                return await model.infer(request)
        except TimeoutError:
            raise RequestError(
                f"model {model.name!r} did not answer within {self.limits.request_timeout_s:g} s "
                "(request_timeout_s)",
                504,
            ) from None


def _check_datatypes(model: ServedModel) -> None:
    for tensor in (*model.inputs, *model.outputs):
        try:
            name_of(tensor.dtype)
        except RequestError as error:
            raise OptionError(f"model {model.name!r}: tensor {tensor.name!r}: {error}") from None
