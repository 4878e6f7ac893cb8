"""Bodies of HTTP requests and responses: size limits, timeouts and compression."""

import asyncio
import zlib
from collections.abc import Mapping, Sequence

from starlette.requests import Request

from jaxdelegate.serve.clients import RequestError, shown
from jaxdelegate.serve.endpoints import RESERVATIONS
from jaxdelegate.serve.json_objects import Buffer
from jaxdelegate.serve.limits import Limits
from jaxdelegate.serve.memory_budgets import BodyReservation, Budgets, ByteBudget, Reservation

HEADER_LENGTH = "Inference-Header-Content-Length"
_WINDOWS = {"gzip": 31, "deflate": 15}  # zlib's window bits; HTTP's deflate is zlib's format
_MAX_RATIO = 1032  # the most that deflate reaches
_MAX_ACCEPTED = 1024  # characters of Accept-Encoding that are read
_MIN_COMPRESSED = 1024  # bytes from which a response is compressed


def header_length(headers: Mapping[str, str]) -> int | None:
    """The bytes of JSON in the body; None: the whole body."""
    text = headers.get(HEADER_LENGTH)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise RequestError(f"{HEADER_LENGTH}: expected a number of bytes, got {shown(text)}")
    return int(text)


async def reserve(request: Request, budget: ByteBudget, size: int) -> None:
    """Wait for memory until the response is sent."""
    reservation = Reservation(budget)
    request.scope[RESERVATIONS].append(reservation)
    await reservation.reserve(size)


async def read(request: Request, budgets: Budgets) -> Buffer:
    """The request's body, decompressed, in memory that is reserved until the response is sent.

    A RequestError has status 413 as soon as it is larger than allowed, 408 if it does not arrive in
    time, 415 for an unknown Content-Encoding, 400 for damaged data.
    """
    limits, reservation = budgets.limits, BodyReservation(budgets)
    request.scope[RESERVATIONS].append(reservation)
    encoding = request.headers.get("Content-Encoding", "identity").strip().lower()
    if encoding not in (*_WINDOWS, "identity"):
        raise RequestError(
            f"Content-Encoding: expected gzip or deflate, got {shown(encoding)}", 415
        )
    declared = request.headers.get("Content-Length", "0")
    if declared.isdigit() and int(declared[:20]) > limits.max_request_bytes:
        raise _too_large(f"{declared[:20]} bytes", limits)
    try:
        async with asyncio.timeout(limits.seconds) as deadline:
            body = await _received(request, limits, reservation, deadline)
    except TimeoutError:
        raise RequestError(
            f"the body did not arrive within {limits.body_timeout_s:g} s", 408
        ) from None
    if encoding != "identity":
        most = min(limits.max_request_bytes, _MAX_RATIO * len(body))
        await reservation.reserve(most)
        body = await asyncio.to_thread(_decompressed, body, encoding, limits)
        await reservation.shrink(most - len(body))
    reservation.complete()
    return body


async def _received(
    request: Request, limits: Limits, reservation: BodyReservation, deadline: asyncio.Timeout
) -> Buffer:
    body: Buffer = b""
    loop = asyncio.get_running_loop()
    async for chunk in request.stream():
        if len(body) + len(chunk) > limits.max_request_bytes:
            raise _too_large("more", limits)
        begin = None if reservation.has_room(len(chunk)) else loop.time()
        await reservation.reserve(len(chunk))
        if begin is not None and (when := deadline.when()) is not None:
            deadline.reschedule(when + loop.time() - begin)  # the client did not cause the wait
        if not body:
            body = chunk  # a single chunk is not copied
        elif chunk:
            body = bytearray(body) if isinstance(body, bytes) else body
            body += chunk
    return body


def _too_large(got: str, limits: Limits) -> RequestError:
    return RequestError(
        f"the body: expected at most {limits.max_request_bytes} bytes (max_request_bytes), got "
        f"{got}",
        413,
    )


def _decompressed(body: Buffer, encoding: str, limits: Limits) -> bytes:
    """Decompression stops one byte beyond the limit."""
    stream = zlib.decompressobj(_WINDOWS[encoding])
    try:
        content = stream.decompress(body, limits.max_request_bytes + 1)
    except zlib.error as error:
        raise RequestError(f"Content-Encoding: the body is not {encoding}: {error}") from None
    if len(content) > limits.max_request_bytes:
        raise _too_large("more, decompressed", limits)
    if not stream.eof:
        raise RequestError(f"Content-Encoding: the {encoding} data of the body is truncated")
    if stream.unused_data:
        raise RequestError(
            f"Content-Encoding: {len(stream.unused_data)} bytes follow the {encoding} data"
        )
    return content


async def compressed(
    pieces: Sequence[bytes | memoryview], headers: Mapping[str, str]
) -> tuple[Sequence[bytes | memoryview], dict[str, str]]:
    """A response's body, compressed if the request's headers accept it, and its headers."""
    encoding = _accepted_encoding(headers)
    if encoding is None or sum(map(len, pieces)) < _MIN_COMPRESSED:
        return pieces, {"Vary": "Accept-Encoding"}
    pieces = await asyncio.to_thread(_compress, pieces, encoding)
    return pieces, {"Vary": "Accept-Encoding", "Content-Encoding": encoding}


def _accepted_encoding(headers: Mapping[str, str]) -> str | None:
    """The supported compression that a client prefers; None: it accepts none."""
    best, most = None, 0.0
    for part in headers.get("Accept-Encoding", "")[:_MAX_ACCEPTED].lower().split(","):
        name, _, weight = part.partition(";")
        quality = _quality(weight)
        if name.strip() in _WINDOWS and quality > most:
            best, most = name.strip(), quality
    return best


def _quality(weight: str) -> float:
    name, _, value = weight.strip().partition("=")
    if name != "q":
        return 1.0
    try:
        return float(value)
    except ValueError:
        return 0.0


def _compress(pieces: Sequence[bytes | memoryview], encoding: str) -> list[bytes]:
    stream = zlib.compressobj(level=1, wbits=_WINDOWS[encoding])
    return [*map(stream.compress, pieces), stream.flush()]
