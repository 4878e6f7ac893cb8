"""Decodes the bytes of inference requests, and encodes responses; independent of HTTP.

The Open Inference Protocol v2 with the binary tensor data extension, as in KServe and Triton.
"""

import dataclasses
import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from jaxdelegate.serve.clients import NO_CLIENT, Client, RequestError, shown
from jaxdelegate.serve.json_objects import Buffer, Constant, duplicate_field
from jaxdelegate.serve.v2.json_text import LIST, ListText, read_object
from jaxdelegate.serve.v2.model import ServedModel
from jaxdelegate.serve.v2.requests import InferRequest, Parameter, TensorMetadata
from jaxdelegate.serve.v2.tensors import (
    Declared,
    declared,
    elements,
    from_binary,
    from_json,
    joined_bytes,
    name_of,
)

MAX_ID_BYTES = 256  # of a request's id, and of a sequence's
_PART = 1 << 13  # elements written at once; other threads can run between two parts

_SHARED_MEMORY = "shared_memory_region"
_NO_SHARED_MEMORY = (
    "shared memory is not supported; send data in the request (unset_shared_memory in tritonclient)"
)


@dataclasses.dataclass(frozen=True)
class RequestedOutput:
    """An output to return: one that the request names, or any output if it names none."""

    name: str
    is_binary: bool = False


@dataclasses.dataclass(frozen=True)
class Decoded:
    """The model's inputs, and the form of the response."""

    request: InferRequest
    outputs: tuple[RequestedOutput, ...]
    id: str = ""


def decode(
    body: Buffer, header_length: int | None, model: ServedModel, client: Client = NO_CLIENT
) -> Decoded:
    """Read a request: JSON, then the binary data of inputs, in the order of the JSON.

    `header_length` is the bytes of JSON; None: the whole body. Arrays are read-only; those of
    binary data are views of `body`. A RequestError reports the first problem, with the input's or
    field's name.
    """
    if header_length is not None and header_length > len(body):
        raise RequestError(
            f"Inference-Header-Content-Length is {shown(header_length)}, but the body has "
            f"{len(body)} bytes"
        )
    end = len(body) if header_length is None else header_length
    has_texts = any(t.dtype.kind == "O" for t in model.inputs)
    fields, lists = read_object(body, end, has_texts=has_texts)
    rest = memoryview(body).toreadonly()[end:]
    data = _Data(lists, rest, has_header=header_length is not None)
    parameters = checked_parameters(fields.get("parameters"))
    arrays = _inputs(fields, data, {t.name: t for t in model.inputs})
    identity = fields.get("id", "")
    if not isinstance(identity, str):
        raise RequestError(f"id: expected a string, got {shown(identity)}")
    check_id("id", identity)
    outputs = _outputs(fields, parameters, model.outputs)
    return Decoded(InferRequest(arrays, parameters, client), outputs, identity)


def check_id(what: str, identity: str) -> None:
    """Refuse an id that is too long."""
    if len(identity.encode("utf-8", "surrogatepass")) > MAX_ID_BYTES:
        given = shown(identity)
        raise RequestError(f"{what}: expected at most {MAX_ID_BYTES} bytes, got more: {given}")


class _Data:
    """The lists that were cut out of the JSON, and the bytes after it, read from the front."""

    def __init__(self, lists: list[ListText], binary: memoryview, *, has_header: bool) -> None:
        self.lists, self.binary, self.has_header = lists, binary, has_header

    def take(self, size: int) -> memoryview:
        taken, self.binary = self.binary[:size], self.binary[size:]
        return taken

    def listed(self, entry: Mapping[str, Any]) -> object:
        """The list of an input; None: it has none."""
        if LIST not in entry:
            return entry.get("data")
        if "data" in entry:
            raise duplicate_field("data")
        number = entry[LIST]
        is_own = type(number) is int and 0 <= number < len(self.lists)
        return self.lists[number] if is_own else number  # a client has sent this field


# The types of known parameters. Others are passed on unchanged.
_KNOWN: dict[str, tuple[tuple[type, ...], str]] = {
    "sequence_id": ((int, str), "an integer or a string"),
    "sequence_start": ((bool,), "true or false"),
    "sequence_end": ((bool,), "true or false"),
    "priority": ((int,), "an integer"),
    "timeout": ((int,), "an integer, microseconds"),
    "binary_data_output": ((bool,), "true or false"),
}


def checked_parameters(parameters: object) -> dict[str, Parameter]:
    found = _parameters(parameters, "parameters")
    for name, value in found.items():
        types, what = _KNOWN.get(name, ((bool, int, float, str, Constant), "a scalar"))
        is_negative = type(value) is int and value < 0 and name in _KNOWN
        if type(value) not in types or is_negative:
            raise RequestError(f"parameters: {shown(name)}: expected {what}, got {shown(value)}")
        if name in _KNOWN and type(value) is int and value >= 1 << 64:
            given = shown(value)
            raise RequestError(f"parameters: {shown(name)}: must be < 2**64, got {given}")
    if isinstance(identity := found.get("sequence_id"), str):
        check_id("parameters: 'sequence_id'", identity)
    return found


def _parameters(parameters: object, where: str) -> dict[str, Any]:
    if parameters is None:
        return {}
    if not isinstance(parameters, dict):
        raise RequestError(f"{where}: expected an object, got {shown(parameters)}")
    return parameters


def _list(fields: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    found = fields[name]
    if not isinstance(found, list):
        raise RequestError(f"{name}: expected a list of objects, got {shown(found)}")
    for entry in found:
        if not isinstance(entry, dict):
            raise RequestError(f"{name}: expected a list of objects, one is {shown(entry)}")
    return found


def _inputs(
    fields: Mapping[str, Any], data: _Data, wanted: Mapping[str, TensorMetadata]
) -> dict[str, np.ndarray]:
    if "inputs" not in fields:
        raise RequestError("inputs: missing; expected a list of objects")
    arrays: dict[str, np.ndarray] = {}
    for entry in _list(fields, "inputs"):
        for name in ("name", "datatype", "shape"):
            if name not in entry:
                raise RequestError(
                    f"input {shown(entry.get('name', len(arrays)))}: the field {name!r} is missing"
                )
        tensor = declared(wanted, entry["name"], entry["datatype"], entry["shape"])
        if tensor.name in arrays:
            raise RequestError(f"{tensor}: duplicate input")
        arrays[tensor.name] = _array(tensor, entry, data)
    check_complete(arrays, wanted)
    if left := len(data.binary):
        raise RequestError(f"the body has {left} bytes after the binary data of its inputs")
    return arrays


def check_complete(arrays: Mapping[str, np.ndarray], wanted: Mapping[str, TensorMetadata]) -> None:
    missing = [name for name in wanted if name not in arrays]
    if missing:
        raise RequestError(f"missing input {missing[0]!r}")


def _array(tensor: Declared, entry: Mapping[str, Any], data: _Data) -> np.ndarray:
    parameters = _parameters(entry.get("parameters"), f"{tensor}: parameters")
    check_input_parameters(str(tensor), parameters)
    has_list = "data" in entry or LIST in entry
    if "binary_data_size" not in parameters:
        if not has_list:
            raise RequestError(f"{tensor}: expected 'data' or the parameter 'binary_data_size'")
        return from_json(tensor, data.listed(entry))
    if has_list:
        raise RequestError(f"{tensor}: has 'data' and 'binary_data_size'; send only one")
    size = parameters["binary_data_size"]
    if type(size) is not int or size < 0:
        raise RequestError(f"{tensor}: binary_data_size: expected bytes, got {shown(size)}")
    if not data.has_header:
        raise RequestError(
            f"{tensor}: binary_data_size needs the header Inference-Header-Content-Length: the "
            "bytes of JSON before the data"
        )
    if size > len(data.binary):
        raise RequestError(
            f"{tensor}: binary_data_size is {shown(size)}, but only {len(data.binary)} bytes of "
            "the body are left"
        )
    return from_binary(tensor, data.take(size))


def check_input_parameters(what: str, parameters: Mapping[str, Any]) -> None:
    """Refuse unsupported parameters."""
    if _SHARED_MEMORY in parameters:
        raise RequestError(f"{what}: {_NO_SHARED_MEMORY}")


def _outputs(
    fields: Mapping[str, Any],
    parameters: Mapping[str, Parameter],
    known: tuple[TensorMetadata, ...],
) -> tuple[RequestedOutput, ...]:
    all_binary = bool(parameters.get("binary_data_output", False))
    if not fields.get("outputs"):  # an empty list requests all outputs, as in Triton
        if not isinstance(fields.get("outputs", []), list):
            _list(fields, "outputs")
        return tuple(RequestedOutput(t.name, all_binary) for t in known)
    found: dict[str, RequestedOutput] = {}
    for entry in _list(fields, "outputs"):
        name = checked_output(entry.get("name"), known, found)
        options = _parameters(entry.get("parameters"), f"output {shown(name)}: parameters")
        found[name] = RequestedOutput(name, _is_binary(name, options, all_binary))
    return tuple(found.values())


def checked_output(
    name: object, known: tuple[TensorMetadata, ...], found: Mapping[str, RequestedOutput]
) -> str:
    if not isinstance(name, str):
        raise RequestError(f"outputs: an output's name: expected a string, got {shown(name)}")
    if name not in [t.name for t in known]:
        raise RequestError(
            f"output {shown(name)}: the model has no such output; it has "
            f"{', '.join(repr(t.name) for t in known)}"
        )
    if name in found:
        raise RequestError(f"output {shown(name)}: duplicate output")
    return name


def check_output_parameters(name: str, options: Mapping[str, Any]) -> None:
    """Refuse unsupported parameters."""
    if _SHARED_MEMORY in options:
        raise RequestError(f"output {shown(name)}: {_NO_SHARED_MEMORY}")
    if "classification" in options:
        raise RequestError(
            f"output {shown(name)}: the classification extension is not supported; select the "
            "largest values of the output yourself"
        )


def _is_binary(name: str, options: Mapping[str, Any], all_binary: bool) -> bool:
    check_output_parameters(name, options)
    chosen = options.get("binary_data", all_binary)
    if not isinstance(chosen, bool):
        raise RequestError(
            f"output {shown(name)}: binary_data: expected true or false, got {shown(chosen)}"
        )
    return chosen


def encode(
    decoded: Decoded, model: ServedModel, results: Mapping[str, np.ndarray]
) -> tuple[list[bytes | memoryview], int | None]:
    """The body in pieces, and the bytes of JSON; None: all, since no output is binary."""
    chunks: list[bytes | memoryview] = []
    response = {"model_name": model.name, "model_version": model.version}
    if decoded.id:
        response["id"] = decoded.id
    texts = [f'{_without_brace(response)},"outputs":['.encode()]
    for number, output in enumerate(decoded.outputs):
        array = results[output.name]
        entry: dict[str, object] = {
            "name": output.name,
            "datatype": name_of(array.dtype),
            "shape": array.shape,
        }
        if output.is_binary:
            chunks.append(binary(array))
            entry["parameters"] = {"binary_data_size": len(chunks[-1])}
        texts.append(f"{',' if number else ''}{_without_brace(entry)}".encode())
        texts += [b"}"] if output.is_binary else [b',"data":[', *_listed(array), b"]}"]
    texts.append(b"]}")
    return [*texts, *chunks], sum(map(len, texts)) if chunks else None


def _without_brace(fields: Mapping[str, object]) -> str:
    return json.dumps(fields, separators=(",", ":"))[:-1]


def binary(array: np.ndarray) -> bytes | memoryview:
    """An array's binary data, without a copy if it is contiguous: little-endian, row-major.

    Each element of BYTES follows its length.
    """
    if name_of(array.dtype) == "BYTES":
        return joined_bytes(array)
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _listed(array: np.ndarray) -> Iterator[bytes]:
    """The elements as JSON, separated by commas; NaN and infinity as `NaN` and `Infinity`."""
    flat = array.ravel()
    is_text = name_of(array.dtype) == "BYTES"
    for at in range(0, flat.size, _PART):
        part = flat[at : at + _PART]
        try:
            values = [e.decode() for e in elements(part)] if is_text else part.tolist()
        except UnicodeDecodeError:
            raise RequestError(
                "an output's bytes are not UTF-8: request binary data (binary_data=True)"
            ) from None
        yield (b"," if at else b"") + json.dumps(values, separators=(",", ":"))[1:-1].encode()
