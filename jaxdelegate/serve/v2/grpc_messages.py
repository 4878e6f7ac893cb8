"""Decodes the protocol's gRPC messages to arrays, and encodes arrays as messages."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from tritonclient.grpc import service_pb2

from jaxdelegate.serve.records import (
    NO_CLIENT,
    Client,
    InferRequest,
    Parameter,
    RequestError,
    ServedModel,
)
from jaxdelegate.serve.v2 import protocol
from jaxdelegate.serve.v2.datatypes import name_of
from jaxdelegate.serve.v2.protocol import Decoded, RequestedOutput
from jaxdelegate.serve.v2.tensors import Declared, declared, from_binary, from_elements

# The field of InferTensorContents by datatype. Other datatypes need raw data.
_FIELDS = {
    "BOOL": "bool_contents",
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
    "INT64": "int64_contents",
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}


def decode(message: Any, model: ServedModel, client: Client = NO_CLIENT) -> Decoded:
    parameters = protocol.checked_parameters(_parameters(message.parameters))
    raw = list(message.raw_input_contents)
    if raw and len(raw) != len(message.inputs):
        raise RequestError(
            f"raw_input_contents: expected one for each of the {len(message.inputs)} inputs, got "
            f"{len(raw)}"
        )
    wanted = {t.name: t for t in model.inputs}
    arrays: dict[str, np.ndarray] = {}
    for at, entry in enumerate(message.inputs):
        tensor = declared(wanted, entry.name, entry.datatype, list(entry.shape))
        if tensor.name in arrays:
            raise RequestError(f"{tensor}: duplicate input")
        protocol.check_input_parameters(str(tensor), _parameters(entry.parameters))
        arrays[tensor.name] = _array(tensor, entry, raw[at] if raw else None)
    protocol.check_complete(arrays, wanted)
    protocol.check_id("id", message.id)
    request = InferRequest(arrays, parameters, client)
    return Decoded(request, _outputs(message, model), message.id)


def _parameters(messages: Mapping[str, Any]) -> dict[str, Parameter | None]:
    found: dict[str, Parameter | None] = {}
    for name, message in messages.items():
        kind = message.WhichOneof("parameter_choice")
        found[name] = None if kind is None else getattr(message, kind)
    return found


def _array(tensor: Declared, entry: Any, raw: bytes | None) -> np.ndarray:
    filled = [field.name for field, _ in entry.contents.ListFields()]
    if raw is not None:
        if filled:
            raise RequestError(f"{tensor}: has {filled[0]} and raw_input_contents; send only one")
        return from_binary(tensor, memoryview(raw))
    datatype = name_of(tensor.dtype)
    field = _FIELDS.get(datatype)
    if field is None:
        raise RequestError(f"{tensor}: {datatype} needs raw_input_contents")
    if set(filled) - {field}:
        raise RequestError(f"{tensor}: contents: {datatype} has {field}, got {', '.join(filled)}")
    return from_elements(tensor, getattr(entry.contents, field), are_exact=True)


def _outputs(message: Any, model: ServedModel) -> tuple[RequestedOutput, ...]:
    found: dict[str, RequestedOutput] = {}
    for entry in message.outputs:
        name = protocol.checked_output(entry.name, model.outputs, found)
        protocol.check_output_parameters(name, _parameters(entry.parameters))
        found[name] = RequestedOutput(name, is_binary=True)
    return tuple(found.values()) or tuple(RequestedOutput(t.name, True) for t in model.outputs)


def encode(decoded: Decoded, model: ServedModel, results: Mapping[str, np.ndarray]) -> Any:
    """A ModelInferResponse with raw data."""
    response = service_pb2.ModelInferResponse(
        model_name=model.name, model_version=model.version, id=decoded.id
    )
    for output in decoded.outputs:
        array = results[output.name]
        response.outputs.add(name=output.name, datatype=name_of(array.dtype), shape=array.shape)
        response.raw_output_contents.append(protocol.raw(array))
    return response


def metadata(model: ServedModel, platform: str) -> Any:
    response = service_pb2.ModelMetadataResponse(
        name=model.name, versions=[model.version], platform=platform
    )
    add: Callable[..., Any]
    for add, tensors in (
        (response.inputs.add, model.inputs),
        (response.outputs.add, model.outputs),
    ):
        for tensor in tensors:
            add(name=tensor.name, datatype=name_of(tensor.dtype), shape=tensor.shape)
    return response


def failed(error: RequestError) -> Any:
    """A stream's response to a request that is refused."""
    return service_pb2.ModelStreamInferResponse(error_message=str(error))
