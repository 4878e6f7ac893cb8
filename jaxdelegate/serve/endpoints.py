"""Endpoints as ASGI applications: errors become responses; large bodies are sent in pieces."""

import json
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

from jaxdelegate.optional import needs

try:
    from starlette.requests import ClientDisconnect, Request
    from starlette.responses import Response
    from starlette.routing import Route
    from starlette.types import Receive, Scope, Send
except ModuleNotFoundError as missing:
    raise needs("serving", missing, "serve") from missing

from jaxdelegate.serve import browsers
from jaxdelegate.serve.clients import Client, RequestError, shown

_LOG = logging.getLogger("jaxdelegate.serve")
RESERVATIONS = "jaxdelegate.reservations"
_PIECE = 1 << 20  # bytes of a large response that are sent at once

Endpoint = Callable[[Request], Awaitable[Response]]
OnError = Callable[[RequestError], Response]


class Releasable(Protocol):
    """What a request holds until its response is sent."""

    async def release(self) -> None: ...


def route(path: str, endpoint: Endpoint, *methods: str, on_error: OnError | None = None) -> Route:
    app = EndpointApp(endpoint, on_error or error_response)
    return Route(path, app, methods=methods or ("GET",))


class EndpointApp:
    """An endpoint as an ASGI application: errors become responses.

    Reservations in `request.scope[RESERVATIONS]` are released when the response is sent.
    """

    def __init__(self, endpoint: Endpoint, on_error: OnError) -> None:
        self._endpoint, self._on_error = endpoint, on_error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive, send)
        reservations: list[Releasable] = []
        scope[RESERVATIONS] = reservations
        try:
            await (await self._response(request))(scope, receive, send)
        finally:
            for reservation in reservations:
                await reservation.release()

    async def _response(self, request: Request) -> Response:
        try:
            browsers.check(request, request.app.state.limits)
            return await self._endpoint(request)
        except RequestError as error:
            return self._on_error(error)
        except ClientDisconnect:
            return Response(status_code=499)  # no client reads it
        except Exception:
            _LOG.exception("%s %s", request.method, shown(request.url.path))
            return self._on_error(RequestError("internal error; see the server's log", 500))


class Pieces(Response):
    """A slow client has only one piece of the body in the server's buffers."""

    def __init__(
        self, pieces: Sequence[bytes | memoryview], headers: Mapping[str, str], kind: str
    ) -> None:
        length = {"Content-Length": str(sum(map(len, pieces)))}
        super().__init__(None, 200, {**headers, **length}, kind)
        self._pieces = pieces

    async def __call__(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        for piece in self._pieces:
            for at in range(0, len(piece), _PIECE):
                body = bytes(piece[at : at + _PIECE])
                await send({"type": "http.response.body", "body": body, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def error_response(error: RequestError) -> Response:
    """`{"error": message}`."""
    return json_response({"error": str(error)}, error.status, error_headers(error))


def error_headers(error: RequestError) -> Mapping[str, str]:
    """The error's headers; the connection closes if the client is still sending."""
    return {**({"Connection": "close"} if error.status in (408, 413) else {}), **error.headers}


def client_of(request: Request) -> Client:
    """Who sends a request; the key is not kept in clear."""
    address = request.scope.get("client")
    text = "" if address is None else str(address[0])
    return Client.of(text, request.headers.get("Authorization"))


def json_response(
    content: object, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    return Response(json.dumps(content), status, headers, "application/json")
