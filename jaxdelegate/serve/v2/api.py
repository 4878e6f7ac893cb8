"""Endpoints of the Open Inference Protocol v2 and of Triton's extensions."""

import asyncio
import math
from collections.abc import Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from jaxdelegate.serve import bodies
from jaxdelegate.serve.clients import Client, RequestError, shown
from jaxdelegate.serve.endpoints import Endpoint, client_of, in_pieces, json_response, route
from jaxdelegate.serve.json_objects import Buffer
from jaxdelegate.serve.memory_budgets import SMALL, Budgets
from jaxdelegate.serve.service import Service
from jaxdelegate.serve.v2 import descriptions, json_messages
from jaxdelegate.serve.v2.json_text import read_object
from jaxdelegate.serve.v2.model import ServedModel
from jaxdelegate.serve.v2.requests import InferRequest

_LARGE = 1 << 20  # bytes of JSON that take long to read
_NUMBER_BYTES = 20  # what a number takes in JSON; rare doubles take more

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


def routes(served: Service, budgets: Budgets) -> list[Route]:
    api = _Api(served, budgets)
    all_routes = [
        route("/v2", api.server),
        route("/v2/health/live", api.live),
        route("/v2/health/ready", api.ready),
        route("/v2/repository/index", api.index, "POST"),
        route("/v2/models/stats", api.all_statistics),
    ]
    for path in ("/v2/models/{name}", "/v2/models/{name}/versions/{version}"):
        all_routes += [
            route(path, api.model),
            route(path + "/ready", api.model_ready),
            route(path + "/config", api.configuration),
            route(path + "/stats", api.statistics),
            route(path + "/infer", api.infer, "POST"),
        ]
    return all_routes + [
        route(path, _unsupported(what), "GET", "POST") for path, what in _UNSUPPORTED.items()
    ]


def _unsupported(what: str) -> Endpoint:
    async def refuse(_request: Request) -> Response:
        raise RequestError(f"not supported: {what}", 501)

    return refuse


class _Api:
    def __init__(self, served: Service, budgets: Budgets) -> None:
        self._served, self._budgets = served, budgets
        # One thread reads small JSON and one large JSON: more would slow each other down.
        self._reading = {is_large: asyncio.Semaphore() for is_large in (False, True)}

    async def server(self, _request: Request) -> Response:
        return json_response(descriptions.server())

    async def live(self, _request: Request) -> Response:
        return json_response({"live": True})  # KServe's client reads the body

    async def ready(self, _request: Request) -> Response:
        if self._served.is_ready:
            return json_response({"ready": True})
        if self._served.is_ending:
            raise RequestError("the server is shutting down")  # 400: the protocol's "not ready"
        waiting = [m for m in self._served.all.values() if not m.worker.is_ready]
        raise RequestError(f"not ready: {', '.join(map(self._served.why_not_ready, waiting))}")

    async def index(self, request: Request) -> Response:
        body = await bodies.read(request, self._budgets)
        fields, _ = await _done(len(body), read_object, body or b"{}")
        only_ready = fields.get("ready", False)
        if not isinstance(only_ready, bool):
            raise RequestError(f"ready: expected true or false, got {shown(only_ready)}")
        return json_response(descriptions.index(self._served, only_ready=only_ready))

    async def model(self, request: Request) -> Response:
        return json_response(descriptions.metadata(self._served.model(*_named(request))))

    async def model_ready(self, request: Request) -> Response:
        model = self._served.find(*_named(request))
        if not self._served.is_model_ready(model):
            raise RequestError(f"model {model.name!r} is not ready")
        return json_response({"name": model.name, "ready": True})

    async def configuration(self, request: Request) -> Response:
        model = self._served.ready_model(*_named(request))
        return json_response(descriptions.configuration(model))

    async def statistics(self, request: Request) -> Response:
        return json_response(descriptions.statistics([self._served.model(*_named(request))]))

    async def all_statistics(self, _request: Request) -> Response:
        return json_response(descriptions.statistics(list(self._served.models.values())))

    async def infer(self, request: Request) -> Response:
        model = self._served.ready_model(*_named(request))
        length = bodies.header_length(request.headers)
        body = await bodies.read(request, self._budgets)
        asked = await self._decoded(body, length, model, client_of(request))
        del body  # arrays keep the parts that they need
        expected = _result_bytes(asked, model)
        if expected > SMALL:
            await bodies.reserve(request, self._budgets.results, expected)
        results = await self._served.infer(model, asked)
        sizes = [(results[name], is_binary) for name, is_binary in asked.outputs.items()]
        text = sum(array.size for array, is_binary in sizes if not is_binary) * _NUMBER_BYTES
        binary = sum(array.nbytes for array, is_binary in sizes if is_binary)
        is_large = text + binary > SMALL
        if is_large:
            await bodies.reserve(request, self._budgets.responses, text + binary)
        pieces, length = await _done(text, json_messages.encode, asked, model, results)
        pieces, headers = await bodies.compressed(pieces, request.headers)
        if length is not None:
            headers[bodies.HEADER_LENGTH] = str(length)
        kind = "application/json" if length is None else "application/octet-stream"
        if is_large:
            return in_pieces(pieces, headers, kind)
        return Response(b"".join(pieces), 200, headers, kind)

    async def _decoded(
        self, body: Buffer, length: int | None, model: ServedModel, client: Client
    ) -> InferRequest:
        has_text = any(t.dtype.kind == "O" for t in model.inputs)  # read element by element
        size = len(body) if length is None or has_text else min(length, len(body))
        if size <= SMALL:
            return json_messages.decode(body, length, model, client)
        reading = self._reading[size > _LARGE]
        try:
            async with asyncio.timeout(self._served.limits.seconds):
                await reading.acquire()
        except TimeoutError:
            message = "other large requests are being read; try again later"
            raise RequestError(message, 503) from None
        try:
            return await asyncio.to_thread(json_messages.decode, body, length, model, client)
        finally:
            reading.release()


def _named(request: Request) -> tuple[str, str]:
    """The name and version of a model; "": any version."""
    return request.path_params["name"], request.path_params.get("version", "")


async def _done(size: int, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function: for large data in a thread, so that it does not block other requests."""
    if size <= SMALL:
        return function(*arguments)
    return await asyncio.to_thread(function, *arguments)


def _result_bytes(request: InferRequest, model: ServedModel) -> int:
    """An estimate of the bytes of all outputs: open sizes are the first input's first."""
    shape = next((array.shape for array in request.inputs.values()), ())
    rows = shape[0] if shape else 1
    return sum(
        math.prod(rows if size < 0 else size for size in tensor.shape) * tensor.dtype.itemsize
        for tensor in model.outputs
    )
