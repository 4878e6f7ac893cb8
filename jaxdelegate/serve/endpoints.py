"""Endpoints as ASGI applications: errors become responses, and clients may leave."""

import asyncio
import contextlib
import hmac
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, Protocol, TypeVar

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
from jaxdelegate.serve.limits import Limits

_LOG = logging.getLogger("jaxdelegate.serve")
RESERVATIONS = "jaxdelegate.reservations"
_WITHOUT_KEY = ("/health", "/metrics", "/ping", "/v2/health/live", "/v2/health/ready", "/version")
_PIECE = 1 << 20  # bytes of a large response that are sent at once

T = TypeVar("T")
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
            _check_key(request, request.app.state.limits)
            return await self._endpoint(request)
        except RequestError as error:
            return self._on_error(error)
        except ClientDisconnect:
            return Response(status_code=499)  # no client reads it
        except Exception:
            _LOG.exception("%s %s", request.method, shown(request.url.path))
            return self._on_error(RequestError("internal error; see the server's log", 500))


def _check_key(request: Request, limits: Limits) -> None:
    """A RequestError of status 401 for a missing or wrong key."""
    if not limits.api_keys or request.url.path in _WITHOUT_KEY:
        return
    scheme, _, key = request.headers.get("Authorization", "").partition(" ")
    known = [hmac.compare_digest(key.strip().encode(), k.encode()) for k in limits.api_keys]
    if scheme.lower() != "bearer" or not any(known):
        raise RequestError(
            "Authorization: expected Bearer and one of the server's API keys (--api_key)",
            401,
            headers={"WWW-Authenticate": "Bearer"},
        )


class Stream(Response):
    """A response whose parts are sent as they come, until the client leaves."""

    def __init__(
        self, parts: AsyncIterator[bytes], headers: Mapping[str, str], media_type: str
    ) -> None:
        super().__init__(None, 200, headers, media_type)
        if "Content-Length" not in headers:
            del self.headers["content-length"]
        self._parts = parts

    async def __call__(self, _scope: Scope, receive: Receive, send: Send) -> None:
        with contextlib.suppress(ClientDisconnect):
            await while_connected(receive, self._sent(send))

    async def _sent(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async for body in self._parts:
            await send({"type": "http.response.body", "body": body, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def in_pieces(
    parts: Sequence[bytes | memoryview], headers: Mapping[str, str], media_type: str
) -> Stream:
    """A large response: a slow client has only a piece of the body in the server's buffers."""

    async def pieces() -> AsyncIterator[bytes]:
        for part in parts:
            for at in range(0, len(part), _PIECE):
                yield bytes(part[at : at + _PIECE])

    length = {"Content-Length": str(sum(map(len, parts)))}
    return Stream(pieces(), {**headers, **length}, media_type)


async def while_connected(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Wait for some work, which is cancelled when the client leaves: a ClientDisconnect."""
    working = asyncio.create_task(work)
    watching = asyncio.create_task(_disconnected(receive))
    try:
        await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        for task in (working, watching):
            task.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


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
