"""The health service `grpc.health.v1`, for Kubernetes and load balancers.

The messages are defined here, because grpcio-health-checking pins protobuf's version.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from jaxdelegate.serve.datatypes import shown
from jaxdelegate.serve.service import Service

NAME = "grpc.health.v1.Health"
INFERENCE = "inference.GRPCInferenceService"
_PACKAGE = "grpc.health.v1"
_STATES = ("UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN")
_POLL_S = 0.2


def _messages() -> tuple[Any, Any]:
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="grpc/health/v1/health.proto", package=_PACKAGE, syntax="proto3"
    )
    request = file.message_type.add(name="HealthCheckRequest")
    request.field.add(name="service", number=1, type=kinds.TYPE_STRING, label=kinds.LABEL_OPTIONAL)
    response = file.message_type.add(name="HealthCheckResponse")
    states = response.enum_type.add(name="ServingStatus")
    for number, state in enumerate(_STATES):
        states.value.add(name=state, number=number)
    response.field.add(
        name="status",
        number=1,
        type=kinds.TYPE_ENUM,
        type_name=f".{_PACKAGE}.HealthCheckResponse.ServingStatus",
        label=kinds.LABEL_OPTIONAL,
    )
    pool = descriptor_pool.DescriptorPool()  # a separate pool avoids duplicate registration
    pool.AddSerializedFile(file.SerializeToString())
    first, second = (
        message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{message.name}"))
        for message in (request, response)
    )
    return first, second


_Request, _Response = _messages()


def handler(served: Service) -> Any:
    """The service, for `add_generic_rpc_handlers`."""
    health = _Health(served)
    parse, write = _Request.FromString, _Response.SerializeToString
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

    def _state(self, service: str) -> str:
        if service in ("", INFERENCE, NAME):
            return "SERVING" if self._served.is_ready else "NOT_SERVING"
        model = self._served.all.get(service)
        if model is None:
            return "SERVICE_UNKNOWN"
        return "SERVING" if self._served.is_model_ready(model) else "NOT_SERVING"

    async def check(self, request: Any, context: Any) -> Any:
        state = self._state(request.service)
        if state == "SERVICE_UNKNOWN":
            known = ", ".join(map(repr, self._served.all))
            message = (
                f"service {shown(request.service)}: expected '', {INFERENCE!r}, or a model: {known}"
            )
            await context.abort(grpc.StatusCode.NOT_FOUND, message)
        return _Response(status=state)

    async def watch(self, request: Any, _context: Any) -> AsyncIterator[Any]:
        """The state, and every change of it, until the server shuts down."""
        last = ""
        while True:
            state = self._state(request.service)
            if state != last:
                yield _Response(status=state)
            if self._served.is_ending:
                return
            last = state
            await asyncio.sleep(_POLL_S)
