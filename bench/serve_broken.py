"""Invalid requests and broken connections among good requests."""

import asyncio
import statistics
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np
from http_clients import Arrays, Client, Judge, exchange, http
from server_process import ServerProcess

_GOOD_EVERY = 20  # bad requests between two good ones
_SAMPLES = 40  # of memory
_ANSWER_S = 60.0


class Load(Protocol):
    """A server with good requests."""

    server: ServerProcess
    judge: Judge
    requests: list[bytes]

    async def begin(self) -> None:
        """Send each good request once."""


class Bad(NamedTuple):
    """Bytes to send on a new connection, and the expected status.

    Attributes:
        sent: the bytes.
        status: of the response; None: the client closes without reading.
        does_end: whether the client closes its side in the middle of the request.
    """

    sent: bytes
    status: int | None
    does_end: bool = False


def kinds(port: int, infer: Callable[[Arrays], bytes], inputs: Arrays) -> dict[str, Bad]:
    """Bad requests by name; `infer` makes a request of inputs."""
    good = infer(inputs)
    path, end = "/v2/models/m/infer", good.index(b"\r\n\r\n") + 4
    wide = {name: np.concatenate([y, y], axis=-1) for name, y in inputs.items()}
    many = {name: np.concatenate([y] * 100) for name, y in inputs.items()}
    integers = {name: y.astype(np.int32) for name, y in inputs.items()}
    huge = http(port, "POST", path, Content_Length=str(1 << 40))
    endless = b"GET / HTTP/1.1\r\nX: " + b"x" * 66_000  # just above what the server reads
    chunked = http(port, "POST", path, Transfer_Encoding="chunked")
    return {
        "closed in the headers": Bad(good[: end // 2], None),
        "closed before the body": Bad(good[:end], None),
        "closed in the body": Bad(good[: -len(good[end:]) // 2], None),
        "closed before the response": Bad(good, None),
        "ended in the body": Bad(good[:-1], None, does_end=True),
        "another shape": Bad(infer(wide), 400),
        "too many items": Bad(infer(many), 400),
        "another datatype": Bad(infer(integers), 400),
        "unknown input": Bad(infer({"unknown": np.zeros((1, 4), np.float32)}), 400),
        "no inputs": Bad(infer({}), 400),
        "less data": Bad(good.replace(b'"shape": [1,', b'"shape": [2,'), 400),
        "no JSON": Bad(http(port, "POST", path, b"\xff{]"), 400),
        "nested JSON": Bad(http(port, "POST", path, b"[" * 50_000), 400),
        "no HTTP": Bad(b"\x16\x03\x01\x02\x00 hello\r\n\r\n", 400),
        "wrong chunk": Bad(chunked + b"zz\r\n\r\n", 400),
        "no gzip": Bad(http(port, "POST", path, b"no gzip", Content_Encoding="gzip"), 400),
        "unknown encoding": Bad(http(port, "POST", path, b"x", Content_Encoding="br"), 415),
        "unknown model": Bad(http(port, "POST", "/v2/models/none/infer", b"{}"), 404),
        "unknown path": Bad(http(port, "GET", "/v3"), 404),
        "another method": Bad(http(port, "DELETE", path), 405),
        "too long": Bad(huge, 413),
        "endless headers": Bad(endless, 431),
    }


async def send(port: int, bad: Bad) -> int | None:
    """The status; None if nothing was read or the connection ended without one."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(bad.sent)
        if bad.status is None and not bad.does_end:
            await writer.drain()
            return None
        if bad.does_end:
            writer.write_eof()
        async with asyncio.timeout(_ANSWER_S):
            line = await reader.readline()
        return int(line[9:12]) if line.startswith(b"HTTP/1.1 ") else None
    except ConnectionError:
        return None
    finally:
        writer.transport.abort()


async def send_broken(
    load: Load, infer: Callable[[Arrays], bytes], inputs: Arrays, count: int
) -> dict[str, Any]:
    """Send bad requests of all kinds in turn, from eight clients at once.

    Returns:
        How many responses were unexpected, the first of them, and the server's memory: medians of
        the second and of the last quarter of the time.
    """
    await load.begin()
    port, unexpected = load.server.port, dict[str, str]()
    table = list(kinds(port, infer, inputs).items())
    memory, turns = list[float](), iter(range(count))
    wrong = 0

    async def one() -> None:
        nonlocal wrong
        client = await Client.connect(port)
        for turn in turns:
            name, bad = table[turn % len(table)]
            status = await send(port, bad)
            if status != bad.status:
                wrong += 1
                unexpected.setdefault(name, f"status {status}, not {bad.status}")
            if turn % _GOOD_EVERY == 0:
                key = turn // _GOOD_EVERY % len(load.requests)
                client = await exchange(
                    port, client, key, load.requests[key], load.judge.take, since=0.0, seconds=[]
                )
            if turn % max(count // _SAMPLES, 1) == 0:
                memory.append(load.server.rss_anon_mb())
        client.close()

    await asyncio.gather(*(one() for _ in range(8)))
    client = await Client.connect(port)
    load.judge.take(0, await client.ask(load.requests[0]))
    client.close()
    quarter = max(len(memory) // 4, 1)
    ends = [statistics.median(memory[quarter : 2 * quarter]), statistics.median(memory[-quarter:])]
    return {
        "count": count,
        "kinds": len(table),
        "unexpected": wrong,
        "unexpected_kinds": unexpected,
        "rss_anon_mb": [memory[0], *ends],
        "growth": ends[1] / ends[0] - 1,
    }
