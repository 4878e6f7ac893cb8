"""HTTP connections whose headers are bounded, in size and in time; uvicorn's have no bounds."""

import asyncio
import json
from typing import Any

try:
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
except ModuleNotFoundError as missing:
    raise ImportError(
        f'serving needs {missing.name}: pip install "jaxdelegate[serve]"', name=missing.name
    ) from missing

MAX_HEADER_BYTES = 1 << 16  # of one request, its address included
MAX_HEADER_S = 30.0  # from the begin of a connection, or of a request, to the end of its headers

_REASONS = {400: "Bad Request", 408: "Request Timeout", 431: "Request Header Fields Too Large"}


class BoundedConnection(HttpToolsProtocol):
    """Uvicorn's protocol, which refuses headers without end."""

    _header_bytes = 0
    _is_in_headers = True
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Begin to wait for headers."""
        super().connection_made(transport)
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Count what comes before the end of headers."""
        if self._is_in_headers:
            self._header_bytes += len(data)
        super().data_received(data)
        too_many = self._is_in_headers and self._header_bytes > MAX_HEADER_BYTES
        if too_many and not self.transport.is_closing():
            self._refuse(431, f"the headers: want at most {MAX_HEADER_BYTES} bytes, got more")

    def on_message_begin(self) -> None:
        """Of a request."""
        super().on_message_begin()
        if not self._is_in_headers:
            self._header_bytes = 0
            self._is_in_headers = True
            self._wait()

    def on_headers_complete(self) -> None:
        """Of a request."""
        self._is_in_headers = False
        self._stop_waiting()
        super().on_headers_complete()

    def send_400_response(self, _msg: str) -> None:
        """In the form of all other errors."""
        self._refuse(400, "this is no HTTP/1.1 request")

    def _wait(self) -> None:
        self._stop_waiting()
        self._timer = self.loop.call_later(MAX_HEADER_S, self._give_up)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _give_up(self) -> None:
        if not self.transport.is_closing():
            self._refuse(408, f"the headers did not arrive within {MAX_HEADER_S:g} s")

    def _refuse(self, status: int, message: str) -> None:
        """Answer and close; not in the middle of an answer that is being sent."""
        cycle = self.cycle
        is_free = cycle is None or cycle.response_complete or not cycle.response_started
        if is_free and not self.pipeline:
            if cycle is not None:
                cycle.disconnected = True  # whoever still reads the body has nothing to answer
                cycle.message_event.set()
            body = json.dumps({"error": message}).encode()
            head = (
                f"HTTP/1.1 {status} {_REASONS[status]}\r\ncontent-type: application/json\r\n"
                f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
            )
            self.transport.write(head.encode() + body)
        self.transport.close()
