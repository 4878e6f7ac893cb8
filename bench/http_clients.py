"""Light HTTP/1.1 clients that load a server: many connections, one thread, prepared requests.

Responses are compared as bytes, so that the client costs less than the server. `Pool` has inputs,
their requests and the stock interpreter's outputs; `Judge` counts right and wrong responses.
"""

import asyncio
import collections
import dataclasses
import gc
import itertools
import json
import re
import selectors
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from jaxdelegate.measuring.tolerance import NETWORK, assert_close
from jaxdelegate.serve.v2.tensors import DTYPES, name_of
from jaxdelegate.testing.running import random_inputs

T = TypeVar("T")
Arrays = Mapping[str, np.ndarray]
Take = Callable[[int, "Response | None"], None]  # a request's key and its response; None: lost

NEAR = 1e-5  # of an output's largest value: batch sizes round differently
_LOST_S = 60.0  # without a response
_LENGTHS = re.compile(rb"\r\n(inference-header-)?content-length: *(\d+)", re.IGNORECASE)


class LostError(Exception):
    """A request got no response."""


@dataclasses.dataclass(frozen=True, slots=True)
class Response:
    status: int
    header_length: int | None  # bytes of JSON before the tensors
    body: bytes


class Client(asyncio.Protocol):
    """One keep-alive connection with one request at a time."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._waiting: asyncio.Future[Response] | None = None
        self._transport: Any = None

    @classmethod
    async def connect(cls, port: int) -> "Client":
        _, client = await asyncio.get_running_loop().create_connection(cls, "127.0.0.1", port)
        return client

    async def ask(self, request: bytes) -> Response:
        """Send a whole request and wait for its response.

        Raises:
            LostError: the connection ended, the response took a minute, or it was too long.
        """
        if self._data:
            raise LostError
        self._waiting = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        try:
            async with asyncio.timeout(_LOST_S):
                return await self._waiting
        except TimeoutError:
            raise LostError from None
        finally:
            self._waiting = None

    @property
    def is_closed(self) -> bool:
        """Whether it was closed, as servers close idle connections."""
        return bool(self._transport.is_closing())

    def close(self) -> None:
        self._transport.abort()

    # ---- of asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._data += data
        end = self._data.find(b"\r\n\r\n")
        if end < 0 or self._waiting is None or self._waiting.done():
            return
        lengths = {bool(m[1]): int(m[2]) for m in _LENGTHS.finditer(self._data, 0, end)}
        begin, size = end + 4, lengths.get(False, 0)
        if len(self._data) < begin + size:
            return
        response = Response(
            int(self._data[9:12]), lengths.get(True), bytes(self._data[begin : begin + size])
        )
        del self._data[: begin + size]
        self._waiting.set_result(response)

    def connection_lost(self, _exc: Exception | None) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(LostError())


def run(main: Coroutine[Any, Any, T]) -> T:
    """Like asyncio.run, but with timers of microseconds: epoll's have milliseconds.

    The garbage collector ignores existing objects, such as jax's modules, meanwhile.
    """

    def loop() -> asyncio.AbstractEventLoop:
        return asyncio.SelectorEventLoop(selectors.SelectSelector())

    gc.collect()
    gc.freeze()
    try:
        with asyncio.Runner(loop_factory=loop) as runner:
            return runner.run(main)
    finally:
        gc.unfreeze()


def http(port: int, method: str, path: str, body: bytes = b"", **headers: str) -> bytes:
    """The bytes of a request; `_` in header names becomes `-`."""
    lines = [f"{method} {path} HTTP/1.1", f"Host: 127.0.0.1:{port}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    if body:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + body


def infer(port: int, model: str, inputs: Arrays, **parameters: object) -> bytes:
    """An inference request with binary inputs and outputs."""
    entries = [
        {
            "name": name,
            "datatype": name_of(array.dtype),
            "shape": array.shape,
            "parameters": {"binary_data_size": array.nbytes},
        }
        for name, array in inputs.items()
    ]
    fields = {"inputs": entries, "parameters": {"binary_data_output": True, **parameters}}
    text = json.dumps(fields).encode()
    body = text + b"".join(array.tobytes() for array in inputs.values())
    length = {"Inference_Header_Content_Length": str(len(text))}
    return http(port, "POST", f"/v2/models/{model}/infer", body, **length)


def outputs(response: Response) -> dict[str, np.ndarray]:
    """The tensors of a binary response."""
    fields = json.loads(response.body[: response.header_length])
    found, at = {}, response.header_length or 0
    for entry in fields["outputs"]:
        size, dtype = entry["parameters"]["binary_data_size"], DTYPES[entry["datatype"]]
        found[entry["name"]] = np.frombuffer(response.body[at : at + size], dtype).reshape(
            entry["shape"]
        )
        at += size
    if at != len(response.body):
        raise ValueError(f"{len(response.body) - at} bytes more than the tensors have")
    return found


class Named:
    """An interpreter, ours or LiteRT's, called with the names of the first signature."""

    def __init__(self, interpreter: Any) -> None:
        interpreter.allocate_tensors()
        self._interpreter, self._runner = interpreter, None
        signatures = sorted(interpreter.get_signature_list(), key=lambda k: k != "serving_default")
        if signatures:
            self._runner = interpreter.get_signature_runner(signatures[0])
            self.inputs: Mapping[str, Any] = self._runner.get_input_details()
        else:
            self.inputs = {d["name"]: d for d in interpreter.get_input_details()}

    def random_inputs(self, seed: int) -> dict[str, np.ndarray]:
        return dict(zip(self.inputs, random_inputs(list(self.inputs.values()), seed), strict=True))

    def __call__(self, arrays: Arrays) -> dict[str, np.ndarray]:
        if self._runner is not None:
            return dict(self._runner(**arrays))
        for name, detail in self.inputs.items():
            self._interpreter.set_tensor(detail["index"], arrays[name])
        self._interpreter.invoke()
        details = self._interpreter.get_output_details()
        return {d["name"]: np.array(self._interpreter.get_tensor(d["index"])) for d in details}


class Pool:
    """Distinct inputs of a model and the stock interpreter's outputs for each.

    Args:
        content: the .tflite file.
        count: of inputs, each a single item.
    """

    def __init__(self, content: bytes, count: int) -> None:
        from ai_edge_litert.interpreter import Interpreter, OpResolverType  # noqa: PLC0415 (heavy)

        kernels = OpResolverType.BUILTIN_REF
        stock = Named(Interpreter(model_content=content, experimental_op_resolver_type=kernels))
        self.inputs = [stock.random_inputs(seed) for seed in range(count)]
        self.expected = [stock(arrays) for arrays in self.inputs]
        self.least_apart = self._least_apart()

    def _least_apart(self) -> float:
        """The smallest distance of two outputs, as a share of the largest value.

        Raises:
            ValueError: two outputs are so close that a mix-up would go unnoticed.
        """
        rows = np.stack(
            [
                np.concatenate([y.ravel().astype(np.float64) for y in e.values()])
                for e in self.expected
            ]
        )
        apart = [np.abs(rows[i + 1 :] - row).max(axis=1).min() for i, row in enumerate(rows[:-1])]
        least = float(min(apart, default=np.inf)) / float(np.abs(rows).max())
        if least < 10 * NEAR:
            raise ValueError(
                f"two outputs of the model are {least:g} of the largest value apart, too close "
                f"to detect a mix-up; expected {10 * NEAR:g}, choose another model"
            )
        return least

    def requests(self, port: int, model: str) -> list[bytes]:
        return [infer(port, model, arrays) for arrays in self.inputs]


class Judge:
    """Counts responses: bit-equal to the first one, within NEAR of it, or wrong."""

    def __init__(self, pool: Pool) -> None:
        self._expected = pool.expected
        self._first: dict[int, dict[str, np.ndarray]] = {}
        self._equal: dict[int, bytes] = {}
        self._near: dict[int, set[bytes]] = collections.defaultdict(set)
        self.counts = dict.fromkeys(("equal", "near", "wrong", "errors", "lost"), 0)
        self.largest_difference = 0.0  # of the largest value
        self.first_error = ""

    @property
    def failures(self) -> int:
        return sum(self.counts[kind] for kind in ("wrong", "errors", "lost"))

    def begin(self, key: int, response: Response) -> None:
        """Record the first response to an input, which must agree with the stock interpreter.

        Raises:
            AssertionError: it does not.
        """
        assert response.status == 200, response.body[:500]
        self._first[key], self._equal[key] = outputs(response), response.body
        want = self._expected[key]
        assert set(self._first[key]) == set(want)
        assert_close([self._first[key][n] for n in want], list(want.values()), tolerance=NETWORK)

    def take(self, key: int, response: Response | None) -> None:
        kind = "lost" if response is None else self._kind(key, response)
        self.counts[kind] += 1
        if kind == "errors" and response is not None and not self.first_error:
            self.first_error = f"{response.status}: {response.body[:300].decode(errors='replace')}"

    def _kind(self, key: int, response: Response) -> str:
        if response.status != 200:
            return "errors"
        if response.body == self._equal[key]:
            return "equal"
        if response.body in self._near[key]:
            return "near"
        if not self._is_near(key, response):
            return "wrong"
        self._near[key].add(response.body)
        return "near"

    def _is_near(self, key: int, response: Response) -> bool:
        try:
            found, first = outputs(response), self._first[key]
        except (ValueError, KeyError, TypeError):  # not a response to this request
            return False
        if [(n, y.shape, y.dtype) for n, y in found.items()] != [
            (n, y.shape, y.dtype) for n, y in first.items()
        ]:
            return False
        for name, y in first.items():
            a, b = found[name].astype(np.float64), y.astype(np.float64)
            difference = float(np.abs(a - b).max(initial=0) / max(np.abs(b).max(initial=0), 1e-30))
            if not difference <= NEAR:
                return False
            self.largest_difference = max(self.largest_difference, difference)
        return True


async def first_responses(port: int, requests: Sequence[bytes], judge: Judge) -> None:
    """Send one request at a time for each input: later responses must equal these."""
    client = await Client.connect(port)
    for key, request in enumerate(requests):
        judge.begin(key, await client.ask(request))
    client.close()


async def connected(port: int, count: int) -> list[Client]:
    return [await Client.connect(port) for _ in range(count)]


async def closed_loop(
    port: int, count: int, requests: Iterable[tuple[int, bytes]], take: Take
) -> list[float]:
    """Clients that send their next request after each response, until none is left.

    Args:
        port: of the server.
        count: of clients.
        requests: keys and requests, which the clients share.
        take: gets each response.

    Returns:
        Seconds of each response.
    """
    shared, seconds = iter(requests), list[float]()

    async def one(client: Client) -> None:
        for key, request in shared:
            client = await exchange(
                port, client, key, request, take, since=time.perf_counter(), seconds=seconds
            )
        client.close()

    await asyncio.gather(*map(one, await connected(port, count)))
    return seconds


async def exchange(
    port: int,
    client: Client,
    key: int,
    request: bytes,
    take: Take,
    *,
    since: float,
    seconds: list[float],
) -> Client:
    """Send a request, pass the response to `take`, and return a client for the next one."""
    try:
        if client.is_closed:
            client = await Client.connect(port)
        response = await client.ask(request)
    except LostError:
        take(key, None)
        client.close()
        return await Client.connect(port)
    seconds.append(time.perf_counter() - since)
    take(key, response)
    return client


async def open_loop(
    port: int, count: int, requests: Sequence[bytes], take: Take, *, rate: float, span: float
) -> tuple[list[float], list[float]]:
    """Send requests at random times, whether or not earlier ones have responses.

    Args:
        port: of the server.
        count: of connections; a request waits, at the cost of its own latency, if all are in use.
        requests: sent in turn.
        take: gets each response.
        rate: requests in a second; the times between them are distributed exponentially.
        span: seconds.

    Returns:
        Seconds from when each was due to its response, and seconds that each was sent too late.
    """
    due = np.cumsum(np.random.default_rng(0).exponential(1 / rate, int(rate * span))).tolist()
    seconds, late = list[float](), list[float]()
    free: asyncio.Queue[Client] = asyncio.Queue()
    for client in await connected(port, count):
        free.put_nowait(client)

    async def one(key: int, since: float) -> None:
        client = await free.get()
        late.append(time.perf_counter() - since)
        free.put_nowait(
            await exchange(port, client, key, requests[key], take, since=since, seconds=seconds)
        )

    begin = time.perf_counter()
    async with asyncio.TaskGroup() as tasks:
        for key, at in zip(itertools.cycle(range(len(requests))), due, strict=False):
            await asyncio.sleep(max(begin + at - time.perf_counter(), 0))
            tasks.create_task(one(key, begin + at))
    while not free.empty():
        free.get_nowait().close()
    return seconds, late


def for_seconds(requests: Sequence[bytes], span: float) -> Iterator[tuple[int, bytes]]:
    """All requests in turn, with their positions, until the time is over."""
    end = time.perf_counter() + span
    for key, request in itertools.cycle(enumerate(requests)):
        if time.perf_counter() >= end:
            return
        yield key, request
