"""The health service `grpc.health.v1`, for Kubernetes and load balancers."""

import asyncio
import enum
from collections.abc import AsyncIterator
from typing import Any

import grpc

from jaxdelegate import protos
from jaxdelegate.serve.clients import shown
from jaxdelegate.serve.service import Service

NAME = "grpc.health.v1.Health"
INFERENCE = "inference.GRPCInferenceService"
_REQUEST, _RESPONSE = f"{NAME}CheckRequest", f"{NAME}CheckResponse"
_POLL_S = 0.2


class _State(enum.IntEnum):
    """HealthCheckResponse.ServingStatus."""

    SERVING, NOT_SERVING, SERVICE_UNKNOWN = range(1, 4)


def handler(served: Service) -> Any:
    """The service, for `add_generic_rpc_handlers`."""
    health = _Health(served)
    parse = type(protos.message(_REQUEST)).FromString
    write = type(protos.message(_RESPONSE)).SerializeToString
    return grpc.method_handlers_generic_handler(
        NAME,
        {
            "Check": grpc.unary_unary_rpc_method_handler(health.check, parse, write),
            "Watch": grpc.unary_stream_rpc_method_handler(health.watch, parse, write),
        },
    )


class _Health:
    """Reports the state of the server (`""`, or the inference service) or of a model by name."""

    def __init__(self, served: Service) -> None:
        self._served = served

    def _state(self, service: str) -> _State:
        if service in ("", INFERENCE, NAME):
            return _State.SERVING if self._served.is_ready else _State.NOT_SERVING
        model = self._served.all.get(service)
        if model is None:
            return _State.SERVICE_UNKNOWN
        return _State.SERVING if self._served.is_model_ready(model) else _State.NOT_SERVING

    async def check(self, request: Any, context: Any) -> Any:
        state = self._state(request.service)
        if state == _State.SERVICE_UNKNOWN:
            known = ", ".join(map(repr, self._served.all))
            message = (
                f"service {shown(request.service)}: expected '', {INFERENCE!r}, or a model: {known}"
            )
            await context.abort(grpc.StatusCode.NOT_FOUND, message)
        return _response(state)

    async def watch(self, request: Any, _context: Any) -> AsyncIterator[Any]:
        """The state, and every change of it, until the server shuts down."""
        last = None
        while True:
            state = self._state(request.service)
            if state != last:
                yield _response(state)
            if self._served.is_ending:
                return
            last = state
            await asyncio.sleep(_POLL_S)


def _response(state: _State) -> Any:
    response = protos.message(_RESPONSE)
    response.status = state
    return response
