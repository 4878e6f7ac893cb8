"""HTTP connections with limits on all bytes and timeouts for every wait."""

import asyncio
import collections
import json
import math
from typing import Any

from jaxdelegate.optional import needs

try:
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
except ModuleNotFoundError as missing:
    raise needs("serving", missing, "serve") from missing

from jaxdelegate.serve.limits import Limits

MAX_HEADER_BYTES = 1 << 16  # in one request, including its URL, chunk headers and trailers
MAX_HEADER_S = 30.0  # from the start of a connection or request to the end of the headers
MAX_PIPELINED = 64  # requests that wait for an earlier response on the connection
UNREAD_S = 30.0  # in which a client must read MIN_READ_BYTES of a response, or the rest
MIN_READ_BYTES = 1 << 16
_CHUNK_BYTES = 8  # allowed for chunk headers per byte of a body; chunks of one byte need 5
_LATE_S = 5.0

_REASONS = {400: "Bad Request", 408: "Request Timeout", 431: "Request Header Fields Too Large"}


class BoundedConnection(HttpToolsProtocol):
    """Uvicorn's protocol with limits.

    The bytes of a request outside the body (headers, chunk extensions, trailers) are limited by the
    limit of headers plus some for each byte of the body. Headers and bodies must arrive in time,
    even after the response, and clients must read responses.
    """

    limits = Limits()

    # Bytes of the current request: its packets without the body, and what is outside any request;
    # its URL, headers and trailers; its body.
    _other_bytes = _field_bytes = _body_bytes = 0
    _new_bytes = 0  # in a packet in which no request has started
    _is_in_headers = True
    _is_receiving = False  # a request has started and not ended
    _deadline = math.inf  # for the next part to arrive
    _timer: asyncio.TimerHandle | None = None  # fires at the deadline, or earlier
    _fires = math.inf
    _unread: asyncio.TimerHandle | None = None

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._pending: collections.deque[Any] = collections.deque()  # cycles without a response

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._wait(MAX_HEADER_S)

    def connection_lost(self, exc: Exception | None) -> None:
        self._wait(None)
        self._set_timer()
        self._disconnect()
        self.resume_writing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_receiving:
            self._other_bytes += len(data)
        else:
            self._new_bytes = len(data)
        super().data_received(data)
        self._other_bytes += self._new_bytes  # outside any request
        self._new_bytes = 0
        if not self.transport.is_closing():
            self._check_bytes()

    def _check_bytes(self) -> None:
        allowed = MAX_HEADER_BYTES + _CHUNK_BYTES * self._body_bytes
        if self._field_bytes > MAX_HEADER_BYTES or self._other_bytes > allowed:
            what = "the headers" if self._is_in_headers else "headers, chunk headers and trailers"
            self._refuse(431, f"{what}: expected at most {MAX_HEADER_BYTES} bytes, got more")
        elif self._body_bytes > self.limits.max_request_bytes and self._is_responded:
            self._close()  # otherwise the application refuses it

    @property
    def _is_responded(self) -> bool:
        return self.cycle is None or bool(self.cycle.response_complete)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._other_bytes, self._new_bytes = self._new_bytes, 0
        self._field_bytes = self._body_bytes = 0
        self._is_receiving = self._is_in_headers = True
        if len(self.pipeline) > MAX_PIPELINED:
            raise ValueError("too many requests wait")  # stops the parser
        self._wait(MAX_HEADER_S)

    def on_url(self, url: bytes) -> None:
        self._field_bytes += len(url)
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Trailers are dropped."""
        self._field_bytes += len(name) + len(value)
        if self._is_in_headers:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._is_in_headers = False
        seconds = self.limits.seconds
        # The application waits for memory, then for the body, and responds if that takes too long.
        self._wait(None if seconds is None else 2 * seconds + _LATE_S)
        super().on_headers_complete()
        self._pending.append(self.cycle)

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        self._other_bytes = max(0, self._other_bytes - len(body))
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._is_receiving = False
        self._wait(MAX_HEADER_S if self._is_responded else None)
        super().on_message_complete()

    def on_response_complete(self) -> None:
        self._pending.popleft()
        super().on_response_complete()
        if self._is_responded:
            self._wait(MAX_HEADER_S)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_reader()

    def resume_writing(self) -> None:
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
        self._refuse(400, "this is not an HTTP/1.1 request")

    def _should_upgrade(self) -> bool:
        return False

    def _unsupported_upgrade_warning(self) -> None:
        """Ignore the request for an upgrade and close after it: what follows is not HTTP."""
        if self._is_responded:
            self._close()
        else:
            self.cycle.keep_alive = False

    def _wait(self, seconds: float | None) -> None:
        """Set the timeout for the next part to arrive; None: no timeout."""
        if seconds is None:
            self._deadline = math.inf
            return
        self._deadline = self.loop.time() + seconds
        if self._deadline < self._fires:  # otherwise the timer is extended when it fires
            self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._fires = None, self._deadline
        if self._deadline < math.inf:
            self._timer = self.loop.call_at(self._deadline, self._check_deadline)

    def _check_deadline(self) -> None:
        if self.loop.time() < self._deadline:
            self._set_timer()
        else:
            self._fires = math.inf
            self._time_out()

    def _time_out(self) -> None:
        if self.transport.is_closing():
            if self._unread is None:  # the client does not read the rest of a response
                self.transport.abort()
            else:
                self._wait(UNREAD_S)
            return
        is_waiting = self._is_in_headers and not self._is_responded  # for an earlier response
        if self.flow.read_paused or is_waiting:
            self._wait(MAX_HEADER_S)
        elif self._is_in_headers:
            self._refuse(408, f"the headers did not arrive within {MAX_HEADER_S:g} s")
        else:
            self._refuse(408, "the body did not arrive in time")

    def _refuse(self, status: int, message: str) -> None:
        """Respond with an error and close; only close if another response is due or started."""
        cycle = self.cycle
        is_first = self._is_responded and (self._is_in_headers or not self._is_receiving)
        is_own = not (self._is_in_headers or self._is_responded or cycle.response_started)
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
        """Drop the responses of pending requests, which no client will read."""
        for cycle in self._pending:
            cycle.disconnected = True
            cycle.message_event.set()


def bounded(limits: Limits) -> type[BoundedConnection]:
    return type("BoundedConnection", (BoundedConnection,), {"limits": limits})
