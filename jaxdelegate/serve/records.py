"""The records and interfaces between the protocol and a model; no HTTP, no interpreter."""

import dataclasses
import hashlib
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np

from jaxdelegate.errors import JaxDelegateError
from jaxdelegate.serve.metrics import ModelRecorder

_MAX_ADDRESS = 64  # characters

Parameter = bool | int | float | str  # of a request


class Client(NamedTuple):
    """Who sends requests.

    Attributes:
        address: behind a trusted proxy, the one in its X-Forwarded-For.
        key: a digest of the API key; empty: none. Keys are not checked: an address may have many.
    """

    address: str = ""
    key: str = ""

    @classmethod
    def of(cls, address: str, key: str | None) -> "Client":
        """`key`: in clear."""
        digest = hashlib.sha256(key.encode()).hexdigest() if key else ""
        return cls(address[:_MAX_ADDRESS], digest)

    @property
    def owner(self) -> "Client":
        """To whom sequences belong: to the key, from any address, or else to the address."""
        return Client("", self.key) if self.key else self


NO_CLIENT = Client()


class RequestError(JaxDelegateError, ValueError):
    """A request is refused or has failed; the message says why, where and what was expected.

    Attributes:
        status: the HTTP status: 400 for an invalid request, 404 for an unknown name, 413 for too
            large a body, 503 if the server is busy or shutting down, 504 for a timeout.
        headers: of the response.
    """

    def __init__(
        self, message: str, status: int = 400, *, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.headers = status, headers or {}


@dataclasses.dataclass(frozen=True)
class TensorMetadata:
    name: str
    dtype: np.dtype  # object: BYTES
    shape: tuple[int, ...]  # -1: any size; the batch dimension comes first
    # What the file says of it: "content", "mean", "std", "labels".
    parameters: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class InferRequest:
    """A decoded request with each input of the model once.

    Known parameters are `sequence_id` (not 0, not ""), `sequence_start`, `sequence_end` and
    `timeout` (microseconds). A model without states refuses sequences.
    """

    inputs: Mapping[str, np.ndarray]
    parameters: Mapping[str, Parameter] = dataclasses.field(default_factory=dict)
    client: Client = NO_CLIENT


@dataclasses.dataclass(frozen=True)
class Scheduling:
    """How a model's requests are scheduled."""

    # In ascending order; empty: a run is one request, without a batch dimension.
    batch_sizes: tuple[int, ...] = ()
    max_queue_delay_us: int = 0  # microseconds that a request may wait for others
    max_queue_size: int = 1024  # in requests
    # Before a sequence is dropped; None: the model has no states.
    session_idle_s: float | None = None


class Served(Protocol):
    """A model under the name that clients use, from its start to its end."""

    name: str
    version: str
    memory: str  # what takes memory on the device; empty: it is not known

    @property
    def is_ready(self) -> bool:
        """Whether every program is compiled."""

    @property
    def error(self) -> BaseException | None:
        """Why it will never be ready; None: it can be."""

    def start(self) -> None:
        """Start compiling, in threads."""

    def wait_until_ready(self, timeout_s: float | None = None) -> bool:
        """Wait until it is ready, after `start`; False: a timeout. Raises an error of compiling."""

    async def close(self) -> None:
        """Refuse new requests, and return when all accepted ones have finished."""


class ServedModel(Served, Protocol):
    """A model of tensors, or one of its signatures.

    The signatures of a file share a recorder.
    """

    recorder: ModelRecorder

    @property
    def scheduling(self) -> Scheduling:
        """How its requests are scheduled; final once `is_ready`."""

    @property
    def inputs(self) -> tuple[TensorMetadata, ...]:
        """The inputs that a request must have; final once `is_ready`."""

    @property
    def outputs(self) -> tuple[TensorMetadata, ...]:
        """The outputs that `infer` returns; final once `is_ready`."""

    async def infer(self, request: InferRequest) -> Mapping[str, np.ndarray]:
        """Run a request; returns all outputs by name, with as many items as the request.

        A RequestError for wrong shapes, a full queue, a timeout, an unknown sequence.
        """
