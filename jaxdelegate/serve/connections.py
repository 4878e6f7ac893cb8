"""HTTP connections whose bytes are all counted, and whose every wait ends."""

import asyncio
import collections
import json
import math
from typing import Any

try:
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
except ModuleNotFoundError as missing:
    raise ImportError(
        f'serving needs {missing.name}: pip install "jaxdelegate[serve]"', name=missing.name
    ) from missing

from jaxdelegate.serve.limits import Limits

MAX_HEADER_BYTES = 1 << 16  # of one request, its address, chunk headers and trailers included
MAX_HEADER_S = 30.0  # from the begin of a connection, or of a request, to the end of its headers
MAX_PIPELINED = 64  # requests that wait for the answer of one ahead of them
UNREAD_S = 30.0  # in which a client that is sent an answer takes MIN_READ_BYTES of it, or the rest
MIN_READ_BYTES = 1 << 16
_CHUNK_BYTES = 8  # of a chunk's header and end, for each byte of a body: chunks of one have 5
_LATE_S = 5.0

_REASONS = {400: "Bad Request", 408: "Request Timeout", 431: "Request Header Fields Too Large"}


class BoundedConnection(HttpToolsProtocol):
    """Uvicorn's protocol with bounds.

    The bytes of a request that are no body (headers, chunk extensions, trailers) are as many as
    those of headers may be, and some for each byte of a body. Headers and bodies must arrive in
    time, also where the answer is there already, and answers must be read.

    Attributes:
        limits: of bodies.
    """

    limits = Limits()

    # Of the request that arrives: its packets, without its body and with what is of no request; its
    # address, headers and trailers; its body.
    _other_bytes = _field_bytes = _body_bytes = 0
    _new_bytes = 0  # of a packet in which no request has begun
    _is_in_headers = True
    _is_arriving = False  # a request has begun and not ended
    _deadline = math.inf  # of what must arrive next
    _timer: asyncio.TimerHandle | None = None  # fires at the deadline, or earlier
    _fires = math.inf
    _unread: asyncio.TimerHandle | None = None

    def __init__(self, *arguments: Any, **options: Any) -> None:
        """As uvicorn makes it."""
        super().__init__(*arguments, **options)
        self._unanswered: collections.deque[Any] = collections.deque()  # uvicorn knows the last one

    def connection_made(self, transport: Any) -> None:
        """Begin to wait for headers."""
        super().connection_made(transport)
        self._wait(MAX_HEADER_S)

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        self._wait(None)
        self._set_timer()
        self._disconnect()
        self.resume_writing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Count what is no body."""
        if self._is_arriving:
            self._other_bytes += len(data)
        else:
            self._new_bytes = len(data)
        super().data_received(data)
        self._other_bytes += self._new_bytes  # of no request
        self._new_bytes = 0
        if not self.transport.is_closing():
            self._check_bytes()

    def _check_bytes(self) -> None:
        allowed = MAX_HEADER_BYTES + _CHUNK_BYTES * self._body_bytes
        if self._field_bytes > MAX_HEADER_BYTES or self._other_bytes > allowed:
            what = "the headers" if self._is_in_headers else "headers, chunk headers and trailers"
            self._refuse(431, f"{what}: want at most {MAX_HEADER_BYTES} bytes, got more")
        elif self._body_bytes > self.limits.max_request_bytes and self._is_answered:
            self._close()  # else the application refuses it

    @property
    def _is_answered(self) -> bool:
        """Whether the request that came last, or comes, was answered."""
        return self.cycle is None or bool(self.cycle.response_complete)

    def on_message_begin(self) -> None:
        """Of a request."""
        super().on_message_begin()
        self._other_bytes, self._new_bytes = self._new_bytes, 0
        self._field_bytes = self._body_bytes = 0
        self._is_arriving = self._is_in_headers = True
        if len(self.pipeline) > MAX_PIPELINED:
            raise ValueError("too many requests wait")  # the parser would go on with the next one
        self._wait(MAX_HEADER_S)

    def on_url(self, url: bytes) -> None:
        """Of a request, a part."""
        self._field_bytes += len(url)
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Of a request; trailers are dropped."""
        self._field_bytes += len(name) + len(value)
        if self._is_in_headers:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Of a request."""
        self._is_in_headers = False
        seconds = self.limits.seconds
        # The application waits for room, and then for the body, and answers if that takes too long.
        self._wait(None if seconds is None else 2 * seconds + _LATE_S)
        super().on_headers_complete()
        self._unanswered.append(self.cycle)

    def on_body(self, body: bytes) -> None:
        """Of a request, a part."""
        self._body_bytes += len(body)
        self._other_bytes = max(0, self._other_bytes - len(body))
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Of a request."""
        self._is_arriving = False
        self._wait(MAX_HEADER_S if self._is_answered else None)
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """What is left of the request, or the next one, must arrive."""
        self._unanswered.popleft()
        super().on_response_complete()
        if self._is_answered:
            self._wait(MAX_HEADER_S)

    def pause_writing(self) -> None:
        """The client does not read as fast as it is sent to."""
        super().pause_writing()
        self._watch_reader()

    def resume_writing(self) -> None:
        """The client has read most of it."""
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None
        super().resume_writing()

    def _watch_reader(self) -> None:
        left = self.transport.get_write_buffer_size()
        self._unread = self.loop.call_later(UNREAD_S, self._check_reader, left)

    def _check_reader(self, before: int) -> None:
        if before - self.transport.get_write_buffer_size() < MIN_READ_BYTES:
            self.transport.abort()
        else:
            self._watch_reader()

    def send_400_response(self, _msg: str) -> None:
        """In the form of all other errors."""
        self._refuse(400, "this is no HTTP/1.1 request")

    def _should_upgrade(self) -> bool:
        return False

    def _unsupported_upgrade_warning(self) -> None:
        """Answer as if no other protocol was asked for, and close: what follows is no HTTP."""
        if self._is_answered:
            self._close()
        else:
            self.cycle.keep_alive = False

    def _wait(self, seconds: float | None) -> None:
        """Wait so long for what must arrive next; None: for nothing."""
        if seconds is None:
            self._deadline = math.inf
            return
        self._deadline = self.loop.time() + seconds
        if self._deadline < self._fires:  # else the timer sees it
            self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._fires = None, self._deadline
        if self._deadline < math.inf:
            self._timer = self.loop.call_at(self._deadline, self._look)

    def _look(self) -> None:
        if self.loop.time() < self._deadline:
            self._set_timer()
        else:
            self._fires = math.inf
            self._give_up()

    def _give_up(self) -> None:
        if self.transport.is_closing():
            if self._unread is None:  # the client leaves the rest of an answer
                self.transport.abort()
            else:
                self._wait(UNREAD_S)
            return
        is_waiting = self._is_in_headers and not self._is_answered  # for the answer of another one
        if self.flow.read_paused or is_waiting:
            self._wait(MAX_HEADER_S)
        elif self._is_in_headers:
            self._refuse(408, f"the headers did not arrive within {MAX_HEADER_S:g} s")
        else:
            self._refuse(408, "the body did not arrive in time")

    def _refuse(self, status: int, message: str) -> None:
        """Answer and close; not in the place of another answer, or in the middle of one."""
        cycle = self.cycle
        is_first = self._is_answered and (self._is_in_headers or not self._is_arriving)
        is_own = not (self._is_in_headers or self._is_answered or cycle.response_started)
        if (is_first or is_own) and not self.pipeline:
            body = json.dumps({"error": message}).encode()
            head = (
                f"HTTP/1.1 {status} {_REASONS[status]}\r\ncontent-type: application/json\r\n"
                f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
            )
            self.transport.write(head.encode() + body)
        self._close()

    def _close(self) -> None:
        self._disconnect()
        self._wait(UNREAD_S)
        self.transport.close()

    def _disconnect(self) -> None:
        """Nobody reads answers any more: what the application sends is dropped."""
        for cycle in self._unanswered:
            cycle.disconnected = True
            cycle.message_event.set()


def bounded(limits: Limits) -> type[BoundedConnection]:
    """Connections with these limits of bodies."""
    return type("BoundedConnection", (BoundedConnection,), {"limits": limits})
