"""The health service `grpc.health.v1`, for Kubernetes and load balancers."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc

from jaxdelegate import protos
from jaxdelegate.serve.clients import shown
from jaxdelegate.serve.service import Service

_NAME = "grpc.health.v1.Health"
_INFERENCE = "inference.GRPCInferenceService"
_REQUEST, _RESPONSE = f"{_NAME}CheckRequest", f"{_NAME}CheckResponse"
_SERVING, _NOT_SERVING, _SERVICE_UNKNOWN = 1, 2, 3  # HealthCheckResponse.ServingStatus
_POLL_S = 0.2


def handler(served: Service) -> Any:
    health = _Health(served)
    parse = type(protos.message(_REQUEST)).FromString
    write = type(protos.message(_RESPONSE)).SerializeToString
    methods = {
        "Check": grpc.unary_unary_rpc_method_handler(health.check, parse, write),
        "Watch": grpc.unary_stream_rpc_method_handler(health.watch, parse, write),
    }
    return grpc.method_handlers_generic_handler(_NAME, methods)


class _Health:
    """Reports the state of the server (`""`, or the inference service) or of a model by name."""

    def __init__(self, served: Service) -> None:
        self._served = served

    def _state(self, service: str) -> int:
        if service in ("", _INFERENCE, _NAME):
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
        return _response(state)

    async def watch(self, request: Any, _context: Any) -> AsyncIterator[Any]:
        """The state, and every change of it, until the server shuts down."""
        last = None
        while True:
            if (state := self._state(request.service)) != last:
                yield _response(state)
            if self._served.is_ending:
                return
            last = state
            await asyncio.sleep(_POLL_S)


def _response(state: int) -> Any:
    response = protos.message(_RESPONSE)
    response.status = state
    return response
