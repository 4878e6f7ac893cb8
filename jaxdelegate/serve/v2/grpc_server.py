"""Serves the models over gRPC, with tritonclient's messages and stubs."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any
from urllib.parse import unquote

from jaxdelegate import protos
from jaxdelegate.optional import needs

try:
    import grpc
    from google.protobuf import json_format, message_factory
    from grpc import aio
    from tritonclient.grpc import service_pb2
except ModuleNotFoundError as missing:
    raise needs("serving over gRPC", missing, "grpc") from missing

from jaxdelegate.serve.clients import Client, RequestError, shown
from jaxdelegate.serve.service import Service
from jaxdelegate.serve.v2 import descriptions, grpc_messages

_LOG = logging.getLogger("jaxdelegate.serve")
_SMALL = 1 << 16  # bytes of a message up to which the event loop converts elements itself
MAX_STREAMS = 256  # concurrent calls on one connection; further ones wait
MAX_CALLS = 2048  # in total, until their responses are read; further ones are refused
_OPTIONS = (
    ("grpc.max_send_message_length", -1),
    ("grpc.so_reuseport", 0),
    ("grpc.max_concurrent_streams", MAX_STREAMS),
    # Close connections of clients that are unreachable or idle.
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.max_connection_idle_ms", 600_000),
)
_CHECKED = ("ModelInfer", "ModelStreamInfer")  # get bytes, which they check before parsing
_CODES = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    404: grpc.StatusCode.NOT_FOUND,
    413: grpc.StatusCode.RESOURCE_EXHAUSTED,
    501: grpc.StatusCode.UNIMPLEMENTED,
    503: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.DEADLINE_EXCEEDED,
}

_HEALTH = "grpc.health.v1.Health"
_INFERENCE = "inference.GRPCInferenceService"
_REQUEST, _RESPONSE = f"{_HEALTH}CheckRequest", f"{_HEALTH}CheckResponse"
_SERVING, _NOT_SERVING, _SERVICE_UNKNOWN = 1, 2, 3  # HealthCheckResponse.ServingStatus
_POLL_S = 0.2

Call = Callable[[Any, Any], Awaitable[Any]]


async def start(served: Service, host: str, port: int) -> tuple[Any, int]:
    """Start the `grpc.aio` server; returns it and its port, of which 0 is any free one.

    An OSError if the port is in use, or the address does not exist.
    """
    largest = ("grpc.max_receive_message_length", served.limits.max_request_bytes)
    server = aio.server(options=[*_OPTIONS, largest], maximum_concurrent_rpcs=MAX_CALLS)
    server.add_generic_rpc_handlers((_handler(_Servicer(served)), _health_handler(served)))
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        port = server.add_insecure_port(address)
    except RuntimeError as error:
        raise OSError(f"cannot listen for gRPC on {address}: {error}") from None
    await server.start()
    return server, port


def _handler(servicer: "_Servicer") -> Any:
    """Unsupported methods are refused."""
    handlers = {}
    (described,) = service_pb2.DESCRIPTOR.services_by_name.values()
    for method in described.methods:
        supported = getattr(servicer, method.name, None)
        if supported is None or method.name in _CHECKED:
            parse = None
        else:
            parse = message_factory.GetMessageClass(method.input_type).FromString
        write = message_factory.GetMessageClass(method.output_type).SerializeToString
        if method.name == "ModelStreamInfer":
            handlers[method.name] = grpc.stream_stream_rpc_method_handler(supported, parse, write)
        else:
            call = _guarded(method.name, supported or _unsupported(method.name))
            handlers[method.name] = grpc.unary_unary_rpc_method_handler(call, parse, write)
    return grpc.method_handlers_generic_handler(described.full_name, handlers)


def _guarded(name: str, method: Call) -> Call:
    """Errors of the method become status codes."""

    async def call(request: Any, context: Any) -> Any:
        requests = [request]
        del request  # an aborted call keeps its frames alive until garbage is collected
        try:
            return await method(requests.pop(), context)
        except RequestError as error:
            code, details = _CODES.get(error.status, grpc.StatusCode.INTERNAL), str(error)
        except Exception:
            _LOG.exception("gRPC %s", name)
            code, details = grpc.StatusCode.INTERNAL, "internal error; see the server's log"
        return await context.abort(code, details)

    return call


def _client(context: Any) -> Client:
    """Who calls; the same as over HTTP."""
    address = unquote(context.peer().partition(":")[2].rpartition(":")[0]).strip("[]")
    return Client.of(address, dict(context.invocation_metadata()).get("authorization"))


def _unsupported(name: str) -> Call:
    async def refuse(_request: Any, _context: Any) -> Any:
        raise RequestError(f"not supported: {name}", 501)

    return refuse


class _Servicer:
    def __init__(self, served: Service) -> None:
        self._served = served

    async def ServerLive(self, _request: Any, _context: Any) -> Any:  # noqa: N802
        return service_pb2.ServerLiveResponse(live=True)

    async def ServerReady(self, _request: Any, _context: Any) -> Any:  # noqa: N802
        return service_pb2.ServerReadyResponse(ready=self._served.is_ready)

    async def ServerMetadata(self, _request: Any, _context: Any) -> Any:  # noqa: N802
        return service_pb2.ServerMetadataResponse(**descriptions.server())

    async def ModelReady(self, request: Any, _context: Any) -> Any:  # noqa: N802
        model = self._served.find(request.name, request.version)
        return service_pb2.ModelReadyResponse(ready=self._served.is_model_ready(model))

    async def ModelMetadata(self, request: Any, _context: Any) -> Any:  # noqa: N802
        model = self._served.model(request.name, request.version)
        response = service_pb2.ModelMetadataResponse()
        described = descriptions.metadata(model)  # its tensors may have parameters besides
        return json_format.ParseDict(described, response, ignore_unknown_fields=True)

    async def ModelConfig(self, request: Any, _context: Any) -> Any:  # noqa: N802
        model = self._served.ready_model(request.name, request.version)
        response = service_pb2.ModelConfigResponse()
        return json_format.ParseDict({"config": descriptions.configuration(model)}, response)

    async def ModelStatistics(self, request: Any, _context: Any) -> Any:  # noqa: N802
        models = list(self._served.models.values())
        if request.name:
            models = [self._served.model(request.name, request.version)]
        response = service_pb2.ModelStatisticsResponse()
        return json_format.ParseDict(descriptions.statistics(models), response)

    async def RepositoryIndex(self, request: Any, _context: Any) -> Any:  # noqa: N802
        models = descriptions.index(self._served, only_ready=request.ready)
        return service_pb2.RepositoryIndexResponse(models=models)

    async def ModelInfer(self, request: bytes, context: Any) -> Any:  # noqa: N802
        return await self._infer(request, context)

    async def ModelStreamInfer(  # noqa: N802
        self, requests: AsyncIterator[bytes], context: Any
    ) -> AsyncIterator[Any]:
        """Respond in order; an error does not end the stream."""
        async for request in requests:
            try:
                response = await self._infer(request, context)
            except RequestError as error:
                yield service_pb2.ModelStreamInferResponse(error_message=str(error))
            else:
                yield service_pb2.ModelStreamInferResponse(infer_response=response)

    async def _infer(self, message: bytes, context: Any) -> Any:
        request = grpc_messages.parsed(message)
        model = self._served.ready_model(request.model_name, request.model_version)
        has_text = any(t.dtype.kind == "O" for t in model.inputs)  # read element by element
        is_small = len(message) <= _SMALL or (request.raw_input_contents and not has_text)
        client = _client(context)
        decoded = (
            grpc_messages.decode(request, model, client)
            if is_small
            else await asyncio.to_thread(grpc_messages.decode, request, model, client)
        )
        results = await self._served.infer(model, decoded)
        return grpc_messages.encode(decoded, model, results)


# ---- the health service, for Kubernetes and load balancers


def _health_handler(served: Service) -> Any:
    health = _Health(served)
    parse = type(protos.message(_REQUEST)).FromString
    write = type(protos.message(_RESPONSE)).SerializeToString
    methods = {
        "Check": grpc.unary_unary_rpc_method_handler(health.check, parse, write),
        "Watch": grpc.unary_stream_rpc_method_handler(health.watch, parse, write),
    }
    return grpc.method_handlers_generic_handler(_HEALTH, methods)


class _Health:
    """Reports the state of the server (`""`, or the inference service) or of a model by name."""

    def __init__(self, served: Service) -> None:
        self._served = served

    def _state(self, service: str) -> int:
        if service in ("", _INFERENCE, _HEALTH):
            return _SERVING if self._served.is_ready else _NOT_SERVING
        if service not in self._served.all:
            return _SERVICE_UNKNOWN
        is_ready = self._served.is_model_ready(self._served.all[service])
        return _SERVING if is_ready else _NOT_SERVING

    async def check(self, request: Any, context: Any) -> Any:
        state = self._state(request.service)
        if state == _SERVICE_UNKNOWN:
            models = ", ".join(map(repr, self._served.all))
            expected = f"expected '', {_INFERENCE!r}, or a model: {models}"
            message = f"service {shown(request.service)}: {expected}"
            await context.abort(grpc.StatusCode.NOT_FOUND, message)
        return _health(state)

    async def watch(self, request: Any, _context: Any) -> AsyncIterator[Any]:
        """The state, and every change of it, until the server shuts down."""
        last = None
        while True:
            if (state := self._state(request.service)) != last:
                yield _health(state)
            if self._served.is_ending:
                return
            last = state
            await asyncio.sleep(_POLL_S)


def _health(state: int) -> Any:
    response = protos.message(_RESPONSE)
    response.status = state
    return response
