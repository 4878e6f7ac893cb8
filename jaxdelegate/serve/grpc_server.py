"""The models over gRPC, with the messages and stubs that tritonclient brings."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

try:
    import grpc
    from google.protobuf import json_format
    from grpc import aio
    from tritonclient.grpc import service_pb2, service_pb2_grpc
except ModuleNotFoundError as missing:
    raise ImportError(
        f'serving over gRPC needs {missing.name}: pip install "jaxdelegate[grpc]"',
        name=missing.name,
    ) from missing

from jaxdelegate.serve import grpc_messages, service, triton
from jaxdelegate.serve.records import RequestError
from jaxdelegate.serve.service import Service

_LOG = logging.getLogger("jaxdelegate.serve")
_SMALL = 1 << 16  # bytes of a message up to which the event loop reads and writes elements itself
_CODES = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    404: grpc.StatusCode.NOT_FOUND,
    413: grpc.StatusCode.RESOURCE_EXHAUSTED,
    501: grpc.StatusCode.UNIMPLEMENTED,
    503: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.DEADLINE_EXCEEDED,
}


async def start(served: Service, host: str, port: int) -> tuple[Any, int]:
    """Listen for gRPC.

    Args:
        served: the models.
        host: the address to listen on.
        port: 0: a free one.

    Returns:
        The `grpc.aio` server, and its port.

    Raises:
        OSError: the port is taken, or there is no such address.
    """
    server = aio.server(
        options=[
            ("grpc.max_receive_message_length", served.limits.max_request_bytes),
            ("grpc.max_send_message_length", -1),
            ("grpc.so_reuseport", 0),
        ]
    )
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(_Servicer(served), server)
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        port = server.add_insecure_port(address)
    except RuntimeError as error:
        raise OSError(f"cannot listen for gRPC on {address}: {error}") from None
    await server.start()
    return server, port


async def _answered(context: Any, what: str, answer: Callable[[], Awaitable[Any]]) -> Any:
    """The answer, or the status of what it raises."""
    try:
        return await answer()
    except RequestError as error:
        code, details = _CODES.get(error.status, grpc.StatusCode.INTERNAL), str(error)
    except Exception:
        _LOG.exception("gRPC %s", what)
        code, details = grpc.StatusCode.INTERNAL, "internal error; the server's log says more"
    return await context.abort(code, details)


class _Servicer(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]  # no types
    """The calls that are answered; the base class refuses the others as UNIMPLEMENTED."""

    def __init__(self, served: Service) -> None:
        self._served = served

    async def ServerLive(self, _request: Any, _context: Any) -> Any:  # noqa: N802
        return service_pb2.ServerLiveResponse(live=True)

    async def ServerReady(self, _request: Any, _context: Any) -> Any:  # noqa: N802
        return service_pb2.ServerReadyResponse(ready=self._served.is_ready)

    async def ServerMetadata(self, _request: Any, _context: Any) -> Any:  # noqa: N802
        return service_pb2.ServerMetadataResponse(
            name=service.NAME, version=service.VERSION, extensions=service.EXTENSIONS
        )

    async def ModelReady(self, request: Any, context: Any) -> Any:  # noqa: N802
        async def answer() -> Any:
            model = self._served.model(request.name, request.version)
            return service_pb2.ModelReadyResponse(ready=self._served.is_model_ready(model))

        return await _answered(context, "ModelReady", answer)

    async def ModelMetadata(self, request: Any, context: Any) -> Any:  # noqa: N802
        async def answer() -> Any:
            model = self._served.model(request.name, request.version)
            return grpc_messages.metadata(model, service.PLATFORM)

        return await _answered(context, "ModelMetadata", answer)

    async def ModelConfig(self, request: Any, context: Any) -> Any:  # noqa: N802
        async def answer() -> Any:
            model = self._served.model(request.name, request.version)
            self._served.check_ready(model)  # only then the batch sizes are known
            return json_format.ParseDict(
                {"config": triton.configuration(model)}, service_pb2.ModelConfigResponse()
            )

        return await _answered(context, "ModelConfig", answer)

    async def ModelStatistics(self, request: Any, context: Any) -> Any:  # noqa: N802
        async def answer() -> Any:
            models = list(self._served.models.values())
            if request.name:
                models = [self._served.model(request.name, request.version)]
            return json_format.ParseDict(
                triton.statistics(models), service_pb2.ModelStatisticsResponse()
            )

        return await _answered(context, "ModelStatistics", answer)

    async def RepositoryIndex(self, request: Any, _context: Any) -> Any:  # noqa: N802
        response = service_pb2.RepositoryIndexResponse()
        for model in self._served.models.values():
            is_ready = self._served.is_model_ready(model)
            if is_ready or not request.ready:
                state = "READY" if is_ready else "LOADING"
                response.models.add(name=model.name, version=model.version, state=state)
        return response

    async def ModelInfer(self, request: Any, context: Any) -> Any:  # noqa: N802
        return await _answered(context, "ModelInfer", lambda: self._infer(request))

    async def ModelStreamInfer(  # noqa: N802
        self, requests: AsyncIterator[Any], _context: Any
    ) -> AsyncIterator[Any]:
        """One answer for each request, in their order; a refusal does not end the stream."""
        async for request in requests:
            try:
                answer = await self._infer(request)
            except RequestError as error:
                yield grpc_messages.failed(error)
            else:
                yield service_pb2.ModelStreamInferResponse(infer_response=answer)

    async def _infer(self, request: Any) -> Any:
        model = self._served.model(request.model_name, request.model_version)
        self._served.check_ready(model)
        is_small = request.raw_input_contents or request.ByteSize() <= _SMALL
        decoded = (
            grpc_messages.decode(request, model)
            if is_small
            else await asyncio.to_thread(grpc_messages.decode, request, model)
        )
        results = await self._served.infer(model, decoded.request)
        return grpc_messages.encode(decoded, model, results)
