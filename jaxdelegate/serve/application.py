"""An ASGI application that serves models over HTTP, by the Open Inference Protocol v2."""

import asyncio
import contextlib
import math
import os
import types
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from jaxdelegate.optional import needs

try:
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.middleware import Middleware
    from starlette.middleware.cors import CORSMiddleware
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import Lifespan
except ModuleNotFoundError as missing:
    raise needs("serving", missing, "serve") from missing

from jaxdelegate.errors import OptionError
from jaxdelegate.serve import bodies, service
from jaxdelegate.serve.endpoints import (
    RESERVATIONS,
    Endpoint,
    Pieces,
    client_of,
    error_response,
    json_response,
    route,
)
from jaxdelegate.serve.limits import Limits
from jaxdelegate.serve.memory_budgets import (
    SMALL,
    BodyReservation,
    Budgets,
    ByteBudget,
    Reservation,
)
from jaxdelegate.serve.opening import VARIABLE, open_service, parse_models
from jaxdelegate.serve.records import Client, RequestError, ServedModel, TensorMetadata
from jaxdelegate.serve.service import Service
from jaxdelegate.serve.settings import ServeSettings
from jaxdelegate.serve.v2 import protocol, triton
from jaxdelegate.serve.v2.datatypes import name_of, shown
from jaxdelegate.serve.v2.json_text import Buffer, read_object

_LARGE = 1 << 20  # bytes of JSON that take long to read
_NUMBER_BYTES = 20  # of a number in JSON; rare doubles take more

# Unsupported parts of Triton's protocol, and alternatives.
_UNSUPPORTED = {
    "/v2/systemsharedmemory/{rest:path}": "shared memory; send tensors in requests",
    "/v2/cudasharedmemory/{rest:path}": "shared memory; send tensors in requests",
    "/v2/repository/models/{rest:path}": "loading and unloading models; start a server with others",
    "/v2/trace/setting": "trace settings",
    "/v2/logging": "log settings",
    "/v2/models/{name}/trace/setting": "trace settings",
    "/v2/models/{name}/generate": "the generate extension; use infer",
    "/v2/models/{name}/generate_stream": "the generate extension; use infer",
}


def application(served: Service, lifespan: Lifespan[Starlette] | None = None) -> Starlette:
    http = _Http(served)
    model = "/v2/models/{name}"
    version = model + "/versions/{version}"
    routes = [
        route("/v2", http.server),
        route("/v2/health/live", http.live),
        route("/v2/health/ready", http.ready),
        route("/v2/repository/index", http.index, "POST"),
        route("/v2/models/stats", http.all_statistics),
        route("/metrics", http.metrics),
    ]
    for path in (model, version):
        routes.append(route(path, http.model))
        routes.append(route(path + "/ready", http.model_ready))
        routes.append(route(path + "/config", http.configuration))
        routes.append(route(path + "/stats", http.statistics))
        routes.append(route(path + "/infer", http.infer, "POST"))
    routes += [
        route(path, _unsupported(what), "GET", "POST") for path, what in _UNSUPPORTED.items()
    ]
    if served.language_models:
        routes += _openai_api().routes(served, http.body)
    app = Starlette(
        routes=routes,
        middleware=_answers_to_pages(served.limits),
        exception_handlers={HTTPException: http.refused},
        lifespan=lifespan,
    )
    app.state.limits = served.limits
    app.router.redirect_slashes = False
    return app


def _answers_to_pages(limits: Limits) -> list[Middleware]:
    """Pages of these origins may read responses."""
    if not limits.allowed_origins:
        return []
    return [
        Middleware(
            CORSMiddleware,
            allow_origins=limits.allowed_origins,
            allow_methods="*",
            allow_headers="*",
            expose_headers="*",
        )
    ]


def _openai_api() -> types.ModuleType:
    from jaxdelegate.serve.openai import api  # noqa: PLC0415 (takes as long as all others)

    return api


def _unsupported(what: str) -> Endpoint:
    async def refuse(_request: Request) -> Response:
        raise RequestError(f"not supported: {what}", 501)

    return refuse


def create(
    models: Mapping[str, str | os.PathLike[str]] | None = None,
    settings: ServeSettings | None = None,
    limits: Limits | None = None,
    *,
    is_ready_first: bool = False,
) -> Starlette:
    """An ASGI application for custom servers, for instance with `uvicorn --factory`.

    Models compile while the application runs: `/v2/health/live` succeeds immediately,
    `/v2/health/ready` when they are compiled. Their threads start with the application (ASGI's
    lifespan), so this function may be called before a fork, as `gunicorn --preload` does.

    Args:
        models: files by the names that clients use; None: those of the environment variable
            JAXDELEGATE_SERVE_MODELS, `name=path,name=path`.
        settings: of every model; None: the defaults.
        limits: of requests; None: the defaults.
        is_ready_first: whether the server starts only when all models are compiled.

    Raises:
        ModelError: a file cannot be read.
        OptionError: no model, or an invalid option or name.
    """
    if models is None:
        if not os.environ.get(VARIABLE):
            raise OptionError(
                f"{VARIABLE}: expected name=path,name=path in the environment, got none"
            )
        models = parse_models(os.environ[VARIABLE])
    served = open_service(models, settings, limits)

    @contextlib.asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        served.start()
        if is_ready_first:
            await asyncio.gather(
                *(asyncio.to_thread(m.wait_until_ready) for m in served.all.values())
            )
        yield
        await served.close()

    return application(served, lifespan)


class _Http:
    def __init__(self, served: Service) -> None:
        self._served = served
        self._budgets = Budgets(served.limits)
        # One thread reads small JSON and one large JSON: more would slow each other down.
        self._reading = {is_large: asyncio.Semaphore() for is_large in (False, True)}

    async def refused(self, request: Request, error: Exception) -> Response:
        """The response to requests that Starlette refuses: unknown paths and methods."""
        if not isinstance(error, HTTPException):
            raise error
        path, status = request.url.path, error.status_code
        reasons = {404: "unknown path", 405: f"the path does not support {request.method}"}
        message = f"{shown(path)}: {reasons.get(status, error.detail)}"
        is_openai = bool(self._served.language_models) and path.startswith("/v1/")
        respond = _openai_api().error_response if is_openai else error_response
        return respond(RequestError(message, status, headers=error.headers))

    async def server(self, _request: Request) -> Response:
        return json_response(
            {
                "name": service.NAME,
                "version": service.VERSION,
                "extensions": list(service.EXTENSIONS),
            }
        )

    async def live(self, _request: Request) -> Response:
        return json_response({"live": True})  # KServe's client reads the body

    async def ready(self, _request: Request) -> Response:
        if self._served.is_ready:
            return json_response({"ready": True})
        if self._served.is_ending:
            raise RequestError("the server is shutting down")  # 400: the protocol's "not ready"
        waiting = [m for m in self._served.all.values() if not m.is_ready]
        raise RequestError(f"not ready: {', '.join(map(self._served.why_not_ready, waiting))}")

    async def index(self, request: Request) -> Response:
        body = await self.body(request)
        fields, _ = await _done(len(body), read_object, body or b"{}")
        only_ready = fields.get("ready", False)
        if not isinstance(only_ready, bool):
            raise RequestError(f"ready: expected true or false, got {shown(only_ready)}")
        rows = [
            {
                "name": model.name,
                "version": model.version,
                "state": "READY" if self._served.is_model_ready(model) else "LOADING",
                "reason": "",
            }
            for model in self._served.all.values()
            if not only_ready or self._served.is_model_ready(model)
        ]
        return json_response(rows)

    async def metrics(self, _request: Request) -> Response:
        if self._served.metrics is None:
            raise RequestError("this server has no metrics", 404)
        text, kind = self._served.metrics()
        return Response(text, headers={"Content-Type": kind})

    async def model(self, request: Request) -> Response:
        return json_response(metadata(self._model(request)))

    async def model_ready(self, request: Request) -> Response:
        name, version = request.path_params["name"], request.path_params.get("version", "")
        model = self._served.find(name, version)
        if not self._served.is_model_ready(model):
            raise RequestError(f"model {model.name!r} is not ready")
        return json_response({"name": model.name, "ready": True})

    async def configuration(self, request: Request) -> Response:
        model = self._model(request)
        self._served.check_ready(model)  # the batch sizes are unknown before
        return json_response(triton.configuration(model))

    async def statistics(self, request: Request) -> Response:
        return json_response(triton.statistics([self._model(request)]))

    async def all_statistics(self, _request: Request) -> Response:
        return json_response(triton.statistics(list(self._served.models.values())))

    async def infer(self, request: Request) -> Response:
        model = self._model(request)
        self._served.check_ready(model)
        length = bodies.header_length(request.headers)
        body = await self.body(request)
        decoded = await self._decoded(body, length, model, client_of(request))
        del body  # arrays keep the parts that they need
        expected = _result_bytes(decoded, model)
        if expected > SMALL:
            await self._reserve(request, self._budgets.results, expected)
        results = await self._served.infer(model, decoded.request)
        sizes = [(results[o.name], o.is_binary) for o in decoded.outputs]
        text = sum(array.size for array, is_binary in sizes if not is_binary) * _NUMBER_BYTES
        binary = sum(array.nbytes for array, is_binary in sizes if is_binary)
        is_large = text + binary > SMALL
        if is_large:
            await self._reserve(request, self._budgets.responses, text + binary)
        pieces, length = await _done(text, protocol.encode, decoded, model, results)
        pieces, encoding = await bodies.compressed(
            pieces, bodies.accepted_encoding(request.headers)
        )
        headers = {"Vary": "Accept-Encoding"}
        if length is not None:
            headers[bodies.HEADER_LENGTH] = str(length)
        if encoding is not None:
            headers["Content-Encoding"] = encoding
        kind = "application/json" if length is None else "application/octet-stream"
        if is_large:
            return Pieces(pieces, headers, kind)
        return Response(b"".join(pieces), 200, headers, kind)

    async def body(self, request: Request) -> Buffer:
        reservation = BodyReservation(self._budgets)
        request.scope[RESERVATIONS].append(reservation)
        return await bodies.read(request, self._served.limits, reservation)

    async def _reserve(self, request: Request, budget: ByteBudget, size: int) -> None:
        reservation = Reservation(budget)
        request.scope[RESERVATIONS].append(reservation)
        await reservation.reserve(size)

    async def _decoded(
        self, body: Buffer, length: int | None, model: ServedModel, client: Client
    ) -> protocol.Decoded:
        has_text = any(t.dtype.kind == "O" for t in model.inputs)  # read element by element
        size = len(body) if length is None or has_text else min(length, len(body))
        if size <= SMALL:
            return protocol.decode(body, length, model, client)
        reading = self._reading[size > _LARGE]
        try:
            async with asyncio.timeout(self._served.limits.seconds):
                await reading.acquire()
        except TimeoutError:
            message = "other large requests are being read; try again later"
            raise RequestError(message, 503) from None
        try:
            return await asyncio.to_thread(protocol.decode, body, length, model, client)
        finally:
            reading.release()

    def _model(self, request: Request) -> ServedModel:
        return self._served.model(
            request.path_params["name"], request.path_params.get("version", "")
        )


async def _done(size: int, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function: for large data in a thread, so that it does not block other requests."""
    if size <= SMALL:
        return function(*arguments)
    return await asyncio.to_thread(function, *arguments)


def _result_bytes(decoded: protocol.Decoded, model: ServedModel) -> int:
    """An estimate of the bytes of all outputs: open sizes are the first input's first."""
    shape = next((array.shape for array in decoded.request.inputs.values()), ())
    rows = shape[0] if shape else 1
    return sum(
        math.prod(rows if size < 0 else size for size in tensor.shape) * tensor.dtype.itemsize
        for tensor in model.outputs
    )


def metadata(model: ServedModel) -> dict[str, Any]:
    """What the protocol calls metadata: the name, versions and tensors."""
    return {
        "name": model.name,
        "versions": [model.version],
        "platform": service.PLATFORM,
        "inputs": [_tensor(t) for t in model.inputs],
        "outputs": [_tensor(t) for t in model.outputs],
    }


def _tensor(tensor: TensorMetadata) -> dict[str, Any]:
    found = {"name": tensor.name, "datatype": name_of(tensor.dtype), "shape": list(tensor.shape)}
    return {**found, "parameters": dict(tensor.parameters)} if tensor.parameters else found
