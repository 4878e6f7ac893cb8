"""Checks and decodes the protocol's gRPC messages, and encodes arrays as messages."""

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2

from jaxdelegate.serve.clients import NO_CLIENT, Client, RequestError
from jaxdelegate.serve.v2 import protocol
from jaxdelegate.serve.v2.model import ServedModel
from jaxdelegate.serve.v2.protocol import InputFields, RequestFields
from jaxdelegate.serve.v2.requests import InferRequest, Parameter
from jaxdelegate.serve.v2.tensors import Declared, from_binary, from_elements, name_of
from jaxdelegate.wire import LENGTH, fields

MAX_FIELDS = 1 << 14  # in a message, nested fields included
MAX_PACKED_BYTES = 1 << 24  # integers in `contents`, and of shapes

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


@dataclasses.dataclass(frozen=True)
class _Kind:
    """The fields of a message that are checked, by the numbers of `grpc_service.proto`."""

    messages: Mapping[int, "_Kind"] = dataclasses.field(default_factory=dict)
    integers: frozenset[int] = frozenset()


_CONTENTS = _Kind(integers=frozenset({2, 3, 4, 5}))  # int, int64, uint, uint64
_INPUT = _Kind({4: _Kind(), 5: _CONTENTS}, frozenset({3}))  # parameters, contents; shape
_OUTPUT = _Kind({3: _Kind()})
_REQUEST = _Kind({4: _Kind(), 5: _INPUT, 6: _OUTPUT})


def parsed(message: bytes) -> Any:
    """A ModelInferRequest.

    Refuses a message that is invalid, or whose objects would be far larger than its bytes: an empty
    submessage of two bytes becomes a whole object, a number of one byte becomes eight.
    """
    try:
        is_large = _is_large(memoryview(message))
        request = None if is_large else service_pb2.ModelInferRequest.FromString(message)
    except (ValueError, DecodeError) as error:
        raise RequestError(f"the message is not a ModelInferRequest: {error}") from None
    if is_large:
        raise RequestError(
            f"the message: expected at most {MAX_FIELDS} fields, including elements of "
            f"bytes_contents, and {MAX_PACKED_BYTES} bytes of integers, got more; send "
            "raw_input_contents"
        )
    return request


def _is_large(message: memoryview) -> bool:
    packed = 0
    for count, size in enumerate(_packed_sizes(message, _REQUEST), start=1):
        packed += size
        if count > MAX_FIELDS or packed > MAX_PACKED_BYTES:
            return True
    return False


def _packed_sizes(message: memoryview, kind: _Kind) -> Iterator[int]:
    """For each field, the bytes of packed integers in it."""
    for number, wire_type, value in fields(message):
        content = value if isinstance(value, memoryview) and wire_type == LENGTH else b""
        yield len(content) if number in kind.integers else 0
        if content and number in kind.messages:
            yield from _packed_sizes(memoryview(content), kind.messages[number])


def decode(message: Any, model: ServedModel, client: Client = NO_CLIENT) -> InferRequest:
    """A parsed request. Errors as `protocol.checked`."""
    raw: list[bytes | None] = list(message.raw_input_contents)
    if raw and len(raw) != len(message.inputs):
        raise RequestError(
            f"raw_input_contents: expected one for each of the {len(message.inputs)} inputs, got "
            f"{len(raw)}"
        )
    inputs = [
        InputFields(
            entry.name,
            entry.datatype,
            list(entry.shape),
            _parameters(entry.parameters),
            functools.partial(_array, entry, data),
        )
        for entry, data in zip(message.inputs, raw or itertools.repeat(None), strict=False)
    ]
    outputs = [(e.name, _parameters(e.parameters)) for e in message.outputs]
    fields = RequestFields(message.id, _parameters(message.parameters), inputs, outputs)
    return protocol.checked(fields, model, client)


def _parameters(messages: Mapping[str, Any]) -> dict[str, Parameter | None]:
    kinds = {name: message.WhichOneof("parameter_choice") for name, message in messages.items()}
    return {name: kind and getattr(messages[name], kind) for name, kind in kinds.items()}


def _array(entry: Any, raw: bytes | None, tensor: Declared, _: Mapping[str, Any]) -> np.ndarray:
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


def encode(request: InferRequest, model: ServedModel, results: Mapping[str, np.ndarray]) -> Any:
    response = service_pb2.ModelInferResponse(
        model_name=model.name, model_version=model.version, id=request.id
    )
    for name in request.outputs:
        array = results[name]
        response.outputs.add(name=name, datatype=name_of(array.dtype), shape=array.shape)
        response.raw_output_contents.append(bytes(protocol.binary(array)))
    return response
