"""gRPC messages: decoding of typed and raw contents, and refusals."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from jaxdelegate.serve.clients import RequestError
from tests.serve.fakes import echo, tensor
from tests.serve.test_protocol import DTYPES, values

pytest.importorskip("tritonclient.grpc", reason="the messages need tritonclient[grpc]")
from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2

from jaxdelegate.serve.v2 import grpc_messages, protocol

FIELDS = {
    "BOOL": "bool_contents",
    "INT64": "int64_contents",
    "UINT64": "uint64_contents",
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}


def message_of(name: str, array: np.ndarray, *, raw: bool) -> Any:
    message = service_pb2.ModelInferRequest(model_name="m", id="7")
    entry = message.inputs.add(name="x", datatype=name, shape=array.shape)
    if raw:
        message.raw_input_contents.append(bytes(protocol.binary(array)))
    else:
        getattr(entry.contents, FIELDS[name]).extend(array.ravel().tolist())
    return message


@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize("name", DTYPES)
def test_every_datatype_survives_a_round_trip(name: str, raw: bool) -> None:
    array = values(name).reshape(2, 3)
    model = echo("m", tensor("x", DTYPES[name], -1, 3))
    message = message_of(name, array, raw=raw or name not in FIELDS)
    grpc_messages.parsed(message.SerializeToString())
    decoded = grpc_messages.decode(message, model)
    given = decoded.inputs["x"]
    np.testing.assert_array_equal(given, array)
    assert given.dtype == array.dtype
    response = grpc_messages.encode(decoded, model, {"x": given})
    assert (response.model_name, response.model_version, response.id) == ("m", "1", "7")
    (output,) = response.outputs
    assert (output.name, output.datatype, list(output.shape)) == ("x", name, [2, 3])
    assert list(response.raw_output_contents) == [bytes(protocol.binary(array))]


def test_parameters_have_their_types() -> None:
    message = message_of("INT32", np.zeros((1, 3), "i4"), raw=True)
    message.parameters["sequence_id"].string_param = "a"
    message.parameters["sequence_start"].bool_param = True
    message.parameters["timeout"].int64_param = 5
    message.parameters["priority"].uint64_param = 2
    message.parameters["mine"].double_param = 1.5
    message.outputs.add(name="x")
    decoded = grpc_messages.decode(message, echo("m", tensor("x", "i4", -1, 3)))
    assert decoded.parameters == {
        "sequence_id": "a",
        "sequence_start": True,
        "timeout": 5,
        "priority": 2,
        "mine": 1.5,
    }
    assert [*decoded.outputs] == ["x"]


def twice(message: Any) -> None:
    message.inputs.append(message.inputs[0])
    message.raw_input_contents.append(message.raw_input_contents[0])


def typed(field: str, *elements: Any) -> Callable[[Any], None]:
    """Replace the raw contents."""

    def change(message: Any) -> None:
        del message.raw_input_contents[:]
        getattr(message.inputs[0].contents, field).extend(elements)

    return change


def both(message: Any) -> None:
    message.inputs[0].contents.int_contents.extend([1, 2, 3])


def of(**fields: Any) -> Callable[[Any], None]:
    """Change fields of the input."""

    def change(message: Any) -> None:
        for name, value in fields.items():
            if name == "shape":
                del message.inputs[0].shape[:]
                message.inputs[0].shape.extend(value)
            else:
                setattr(message.inputs[0], name, value)

    return change


def parameter(name: str, **value: Any) -> Callable[[Any], None]:
    def change(message: Any) -> None:
        found = message.parameters[name]
        for kind, given in value.items():
            setattr(found, kind, given)

    return change


def output(name: str, **parameters: int) -> Callable[[Any], None]:
    def change(message: Any) -> None:
        entry = message.outputs.add(name=name)
        for key, value in parameters.items():
            entry.parameters[key].int64_param = value

    return change


def shared(message: Any) -> None:
    message.inputs[0].parameters["shared_memory_region"].string_param = "r"


BAD: dict[str, tuple[Callable[[Any], None], str]] = {
    "name": (of(name="y"), "input 'y': the model has no such input"),
    "datatype": (of(datatype="INT64"), "input 'x': datatype"),
    "no-datatype": (of(datatype="int8"), "input 'x': datatype: expected one of"),
    "negative": (of(shape=[-1, 3]), "input 'x': shape"),
    "enormous": (of(shape=[2**62, 3]), "input 'x': shape"),
    "enormous-product": (of(shape=[2**31 - 1, 3]), "input 'x': shape"),
    "dimensions": (of(shape=[3]), "input 'x': shape"),
    "no-shape": (of(shape=[]), "input 'x': shape"),
    "twice": (twice, "input 'x': duplicate input"),
    "both": (both, "input 'x': has int_contents and raw_input_contents"),
    "field": (typed("int64_contents", 1, 2, 3), "int_contents, got int64_contents"),
    "count": (typed("int_contents", 1, 2), "has 3 elements, data has 2"),
    "range": (typed("int_contents", 1, 2, 128), "INT8 takes -128 to 127, element 2 is 128"),
    "nothing": (typed("int_contents"), "has 3 elements, data has 0"),
    "bytes": (lambda m: m.raw_input_contents.__setitem__(0, b"ab"), "takes 3 bytes, got 2"),
    "raw-count": (lambda m: m.raw_input_contents.append(b"abc"), "expected one for each of the 1"),
    "no-inputs": (lambda m: m.ClearField("inputs"), "raw_input_contents: expected one for each"),
    "sequence": (parameter("sequence_id", double_param=1.5), "parameters: 'sequence_id'"),
    "empty": (parameter("timeout"), "parameters: 'timeout'"),
    "timeout": (parameter("timeout", int64_param=-1), "parameters: 'timeout'"),
    "output": (output("y"), "output 'y': the model has no such output"),
    "classification": (output("x", classification=2), "classification extension"),
    "shared": (shared, "input 'x': shared memory is not supported"),
    "shared-output": (output("x", shared_memory_region=1), "output 'x': shared memory"),
}


@pytest.mark.parametrize("what", BAD)
def test_refusals_of_bad_messages_name_the_problem(what: str) -> None:
    change, words = BAD[what]
    message = message_of("INT8", np.zeros((1, 3), "i1"), raw=True)
    model = echo("m", tensor("x", "i1", -1, 3))
    grpc_messages.decode(message, model)
    change(message)
    with pytest.raises(RequestError) as raised:
        grpc_messages.decode(message, model)
    assert words in str(raised.value)


def test_float16_needs_raw_contents() -> None:
    model = echo("m", tensor("x", "f2", -1))
    message = service_pb2.ModelInferRequest()
    message.inputs.add(name="x", datatype="FP16", shape=[1]).contents.fp32_contents.append(1)
    with pytest.raises(RequestError, match="FP16 needs raw_input_contents"):
        grpc_messages.decode(message, model)


def within(*numbers: int, content: bytes) -> bytes:
    """Bytes of a field in fields."""
    for number in reversed(numbers):
        size = len(content)
        length = bytes(
            [size & 127 | 128, size >> 7 & 127 | 128, size >> 14 & 127 | 128, size >> 21]
        )
        content = bytes([number << 3 | 2]) + length + content
    return content


COUNT = grpc_messages.MAX_FIELDS + 1
LARGE: dict[str, bytes] = {
    "inputs": within(5, content=b"") * COUNT,
    "outputs": within(6, content=b"") * COUNT,
    "raw": b"\x3a\x00" * COUNT,
    "parameters": within(5, content=within(4, content=b"\x0a\x01a") * COUNT),
    "parameters-of-outputs": within(6, content=within(3, content=b"\x0a\x01a") * COUNT),
    "bytes": within(5, 5, content=b"\x42\x00" * COUNT),
    "unpacked": within(5, 5, content=b"\x18\x01" * COUNT),
    "packed": within(5, 5, 3, content=bytes(grpc_messages.MAX_PACKED_BYTES + 1)),
    "shape": within(5, 3, content=bytes(grpc_messages.MAX_PACKED_BYTES + 1)),
    "unknown": b"\xf8\x01\x01" * COUNT,
}


@pytest.mark.parametrize("what", LARGE)
def test_messages_that_would_become_large_objects_are_refused(what: str) -> None:
    with pytest.raises(RequestError, match="expected at most 16384 fields"):
        grpc_messages.parsed(LARGE[what])


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (within(5, 5, content=b"\x1a\x05\x01"), "a message ends within a field"),
        (b"\x3a", "a message ends within a number"),
        (b"\x08" + b"\xff" * 10 + b"\x01", "a number of more than 10 bytes"),
        (within(6, content=b"\x0b"), "a field of wire type 3"),
    ],
)
def test_damaged_messages_are_refused_with_the_reason(message: bytes, reason: str) -> None:
    with pytest.raises(RequestError, match=f"not a ModelInferRequest: .*{reason}"):
        grpc_messages.parsed(message)


def test_fields_of_another_wire_type_are_unknown_to_protobuf() -> None:
    """An eight-byte field with the number of `inputs` is not a message."""
    message = b"\x29" + b"\xff" * 8
    assert not service_pb2.ModelInferRequest.FromString(message).inputs
    grpc_messages.parsed(message)


def test_large_tensors_are_accepted() -> None:
    """Typed or raw, floats take as much memory as their bytes."""
    zeros = bytes(grpc_messages.MAX_PACKED_BYTES + 4)
    grpc_messages.parsed(within(5, 5, 6, content=zeros))
    grpc_messages.parsed(within(7, content=zeros))


def test_changed_messages_are_parsed_or_refused(rng: np.random.Generator) -> None:
    """Messages that protobuf can parse are accepted if they are small."""
    message = message_of("INT64", np.arange(6).reshape(2, 3), raw=False)
    message.parameters["sequence_id"].string_param = "a"
    good = message.SerializeToString()
    refused = 0
    for _ in range(3000):
        text = bytearray(good)
        for at in rng.integers(0, len(text), 2):
            text[at] = rng.integers(0, 256)
        try:
            service_pb2.ModelInferRequest.FromString(bytes(text))
        except DecodeError:
            continue
        try:
            grpc_messages.parsed(bytes(text))
        except RequestError:
            refused += 1  # groups, which proto3 does not have
    assert refused < 300
