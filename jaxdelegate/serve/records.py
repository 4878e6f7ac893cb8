"""What the protocol hands to a model, and what a model says of itself. No HTTP, no interpreter."""

import dataclasses
from collections.abc import Mapping
from typing import Protocol

import numpy as np

from jaxdelegate.errors import JaxDelegateError
from jaxdelegate.serve.metrics import ModelRecorder

Parameter = bool | int | float | str  # a request's parameter, as the protocol has them


class RequestError(JaxDelegateError, ValueError):
    """A request cannot be answered; the message says what, where and what was expected.

    Attributes:
        status: the HTTP status of the answer: 400 for what the client sent, 404 for a name that
            is not served, 413 for too much, 503 where the server is busy or ends, 504 for a
            request that took longer than it may.
    """

    def __init__(self, message: str, status: int = 400) -> None:
        """A message for the client."""
        super().__init__(message)
        self.status = status


@dataclasses.dataclass(frozen=True)
class TensorMetadata:
    """One input or output of a model, as its metadata describe it."""

    name: str
    dtype: np.dtype  # object: BYTES
    shape: tuple[int, ...]  # -1: any size; a batch is the first


@dataclasses.dataclass(frozen=True)
class InferRequest:
    """The arrays of one request, decoded, and complete: each input of the model once."""

    inputs: Mapping[str, np.ndarray]
    parameters: Mapping[str, Parameter] = dataclasses.field(default_factory=dict)
    # `sequence_id` (not 0, not ""), `sequence_start`, `sequence_end` and `timeout` (microseconds)
    # are known; a model without states refuses a sequence.
    client: str = ""  # the address that it came from


@dataclasses.dataclass(frozen=True)
class Scheduling:
    """How a model's requests are run.

    Attributes:
        batch_sizes: of the batches that may run, in ascending order; empty: a run is one request,
            and the first dimension of its tensors is no batch.
        max_queue_delay_us: microseconds that a request may wait for others.
        max_queue_size: requests that may wait.
        session_idle_s: seconds after which a sequence is dropped; None: the model has no states.
    """

    batch_sizes: tuple[int, ...] = ()
    max_queue_delay_us: int = 0
    max_queue_size: int = 1024
    session_idle_s: float | None = None


class ServedModel(Protocol):
    """One name under which a model, or one of its signatures, answers.

    Attributes:
        name: that clients give.
        version: of the model.
        recorder: of its numbers; the signatures of a file share one.
    """

    name: str
    version: str
    recorder: ModelRecorder

    @property
    def scheduling(self) -> Scheduling:
        """How its requests are run; final once `is_ready`."""

    @property
    def inputs(self) -> tuple[TensorMetadata, ...]:
        """What a request must have; final once `is_ready`."""

    @property
    def outputs(self) -> tuple[TensorMetadata, ...]:
        """What `infer` returns; likewise."""

    @property
    def is_ready(self) -> bool:
        """Whether every program that it may need is compiled."""

    @property
    def error(self) -> BaseException | None:
        """Why it can never be ready; None: it can."""

    def start(self) -> None:
        """Begin to compile it; starts threads."""

    def wait_until_ready(self, timeout_s: float | None = None) -> bool:
        """Wait until it is ready, after `start`; False: that took longer.

        Raises:
            JaxDelegateError: the model cannot be compiled.
        """

    async def close(self) -> None:
        """Take no more requests, and return when all that were taken are answered."""

    async def infer(self, request: InferRequest) -> Mapping[str, np.ndarray]:
        """All outputs by name, the first dimension the request's.

        Raises:
            RequestError: shapes that do not fit, a full queue, a timeout, an unknown sequence.
        """
