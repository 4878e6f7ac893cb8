"""Fake models, and calls of an application without a server."""

import asyncio
import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from jaxdelegate.serve.metrics import ModelRecorder
from jaxdelegate.serve.settings import ServeSettings
from jaxdelegate.serve.v2.requests import InferRequest, TensorMetadata

Function = Callable[[Mapping[str, np.ndarray]], Mapping[str, np.ndarray]]


@dataclasses.dataclass(eq=False)
class Fake:
    """A ServedModel that calls a function and is its own worker; results wait for `gate`."""

    name: str
    inputs: tuple[TensorMetadata, ...]
    outputs: tuple[TensorMetadata, ...]
    function: Function
    version: str = "1"
    is_ready: bool = True
    is_closed: bool = False
    gate: asyncio.Event | None = None
    requests: list[InferRequest] = dataclasses.field(default_factory=list)
    entered: asyncio.Event = dataclasses.field(default_factory=asyncio.Event)
    settings: ServeSettings = dataclasses.field(default_factory=ServeSettings)
    batch_sizes: tuple[int, ...] = ()
    is_stateful: bool = False
    recorder: ModelRecorder = dataclasses.field(default_factory=ModelRecorder)
    error: BaseException | None = None

    @property
    def worker(self) -> "Fake":
        return self

    def start(self) -> None:
        pass

    def wait_until_ready(self, timeout_s: float | None = None) -> bool:  # noqa: ARG002
        return self.is_ready

    def stop(self) -> None:
        pass

    def close(self) -> None:
        self.is_closed = True

    async def infer(self, request: InferRequest) -> Mapping[str, np.ndarray]:
        self.requests.append(request)
        self.entered.set()
        if self.gate is not None:
            await self.gate.wait()
        return self.function(request.inputs)


def tensor(name: str, dtype: Any, *shape: int) -> TensorMetadata:
    return TensorMetadata(name, np.dtype(dtype), shape)


def echo(name: str, *tensors: TensorMetadata) -> Fake:
    """A model that returns its inputs."""
    return Fake(name, tensors, tensors, dict)


def failing(name: str) -> Fake:
    def fail(_inputs: object) -> Mapping[str, np.ndarray]:
        raise ZeroDivisionError("secret")

    return Fake(name, (tensor("x", "f4", -1),), (tensor("y", "f4", -1),), fail)


@dataclasses.dataclass(frozen=True)
class Response:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


async def call(
    app: Any,
    method: str,
    path: str,
    body: bytes | Sequence[bytes] = b"",
    headers: Iterable[tuple[str, str]] = (),
) -> Response:
    """Send one request to an ASGI application; a sequence of bytes arrives in pieces."""
    pieces = [body] if isinstance(body, bytes) else list(body)
    waiting = iter(pieces)
    left = len(pieces)
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        nonlocal left
        if not left:
            await asyncio.Event().wait()  # the client stays
        left -= 1
        return {"type": "http.request", "body": next(waiting), "more_body": left > 0}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [(k.lower().encode(), v.encode("latin-1")) for k, v in headers],
    }
    await app(scope, receive, send)
    start, *rest = sent
    return Response(
        start["status"],
        {k.decode(): v.decode() for k, v in start["headers"]},
        b"".join(m.get("body", b"") for m in rest),
    )
