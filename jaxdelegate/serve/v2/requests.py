"""What the protocol's endpoints know of a model and pass to it; no HTTP, no interpreter."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from jaxdelegate.serve.clients import NO_CLIENT, Client
from jaxdelegate.serve.metrics import ModelRecorder
from jaxdelegate.serve.settings import ServeSettings
from jaxdelegate.serve.worker import Served

Parameter = bool | int | float | str  # of a request


@dataclasses.dataclass(frozen=True)
class TensorMetadata:
    name: str
    dtype: np.dtype  # object: BYTES
    shape: tuple[int, ...]  # -1: any size; the batch dimension comes first
    # What the file says of it: "content", "mean", "std", "labels".
    parameters: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class InferRequest:
    """A decoded request with each input of the model once, of the model's datatype and shape.

    Known parameters are `sequence_id` (not 0, not ""), `sequence_start`, `sequence_end` and
    `timeout` (microseconds). A model without states refuses sequences.
    """

    inputs: Mapping[str, np.ndarray]
    parameters: Mapping[str, Parameter] = dataclasses.field(default_factory=dict)
    client: Client = NO_CLIENT


class ServedModel(Served, Protocol):
    """A model of tensors, or one of its signatures, which share a recorder.

    Its tensors and batch sizes are final once it is ready.
    """

    recorder: ModelRecorder
    settings: ServeSettings
    is_stateful: bool

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """In ascending order; empty: a run is one request, without a batch dimension."""

    @property
    def inputs(self) -> tuple[TensorMetadata, ...]:
        """The inputs that a request must have."""

    @property
    def outputs(self) -> tuple[TensorMetadata, ...]:
        """The outputs that `infer` returns."""

    async def infer(self, request: InferRequest) -> Mapping[str, np.ndarray]:
        """Run a request; returns all outputs by name, with as many items as the request.

        A RequestError for wrong numbers of items, a full queue, a timeout, an unknown sequence.
        """
