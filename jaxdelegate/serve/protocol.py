"""Bytes of inference requests -> arrays, and arrays -> bytes of responses; no HTTP.

The Open Inference Protocol v2 with the binary tensor data extension, as KServe and Triton have it.
"""

import dataclasses
import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from jaxdelegate.serve.datatypes import elements, joined_bytes, name_of, shown
from jaxdelegate.serve.json_text import LIST, Buffer, Constant, ListText, read_object, twice
from jaxdelegate.serve.records import (
    InferRequest,
    Parameter,
    RequestError,
    ServedModel,
    TensorMetadata,
)
from jaxdelegate.serve.tensors import Declared, declared, from_binary, from_json

MAX_ID_BYTES = 256  # of a request's id, and of a sequence's
_PART = 1 << 13  # elements written at once: between two parts other threads run

_SHARED_MEMORY = "shared_memory_region"
_NO_SHARED_MEMORY = (
    "shared memory is not supported; send data in the request (unset_shared_memory in tritonclient)"
)


@dataclasses.dataclass(frozen=True)
class RequestedOutput:
    """An output that a request names, or every output where it names none."""

    name: str
    is_binary: bool = False


@dataclasses.dataclass(frozen=True)
class Decoded:
    """A request, decoded: what the model takes, and what the response must look like."""

    request: InferRequest
    outputs: tuple[RequestedOutput, ...]
    id: str = ""


def decode(
    body: Buffer, header_length: int | None, model: ServedModel, client: str = ""
) -> Decoded:
    """Read an inference request.

    Args:
        body: JSON, then the binary data of inputs, in the order of the JSON.
        header_length: bytes of JSON; None: all.
        model: whose inputs they must be.
        client: the address that it came from.

    Returns:
        With read-only arrays: those of binary data are views of `body`.

    Raises:
        RequestError: the first thing that is wrong, by name.
    """
    if header_length is not None and header_length > len(body):
        raise RequestError(
            f"Inference-Header-Content-Length is {shown(header_length)}, but the body has "
            f"{len(body)} bytes"
        )
    end = len(body) if header_length is None else header_length
    has_texts = any(t.dtype.kind == "O" for t in model.inputs)
    fields, lists = read_object(body, end, has_texts=has_texts)
    data = _Data(lists, _Binary(memoryview(body).toreadonly()[end:]), header_length is not None)
    parameters = checked_parameters(fields.get("parameters"))
    arrays = _inputs(fields, data, {t.name: t for t in model.inputs})
    identity = fields.get("id", "")
    if not isinstance(identity, str):
        raise RequestError(f"id: want a string, got {shown(identity)}")
    check_id("id", identity)
    outputs = _outputs(fields, parameters, model.outputs)
    return Decoded(InferRequest(arrays, parameters, client), outputs, identity)


def check_id(what: str, identity: str) -> None:
    """Refuse an id that is longer than one may be.

    Raises:
        RequestError: it is.
    """
    if len(identity.encode("utf-8", "surrogatepass")) > MAX_ID_BYTES:
        given = shown(identity)
        raise RequestError(f"{what}: want at most {MAX_ID_BYTES} bytes, got more: {given}")


class _Binary:
    """The bytes after the JSON, taken from the front."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self.left = len(data)

    def take(self, size: int) -> memoryview:
        start = len(self._data) - self.left
        self.left -= size
        return self._data[start : start + size]


@dataclasses.dataclass(frozen=True)
class _Data:
    """Where the data of a request's inputs are."""

    lists: list[ListText]
    binary: _Binary
    has_header: bool

    def listed(self, entry: Mapping[str, Any]) -> object:
        """The list of an input; None: it has none."""
        if LIST not in entry:
            return entry.get("data")
        if "data" in entry:
            raise twice(LIST)
        number = entry[LIST]
        is_own = type(number) is int and 0 <= number < len(self.lists)
        return self.lists[number] if is_own else number  # a client's own field


# Parameters that mean something here -> their types. Others are handed on as they are.
_KNOWN: dict[str, tuple[tuple[type, ...], str]] = {
    "sequence_id": ((int, str), "an integer or a string"),
    "sequence_start": ((bool,), "true or false"),
    "sequence_end": ((bool,), "true or false"),
    "priority": ((int,), "an integer"),
    "timeout": ((int,), "an integer, microseconds"),
    "binary_data_output": ((bool,), "true or false"),
}


def checked_parameters(parameters: object) -> dict[str, Parameter]:
    """A request's parameters.

    Raises:
        RequestError: a value of another type than the parameter has.
    """
    found = _parameters(parameters, "parameters")
    for name, value in found.items():
        types, what = _KNOWN.get(name, ((bool, int, float, str, Constant), "a scalar"))
        is_negative = type(value) is int and value < 0 and name in _KNOWN
        if type(value) not in types or is_negative:
            raise RequestError(f"parameters: {shown(name)}: want {what}, got {shown(value)}")
        if name in _KNOWN and type(value) is int and value >= 1 << 64:
            given = shown(value)
            raise RequestError(f"parameters: {shown(name)}: want less than 2**64, got {given}")
    if isinstance(identity := found.get("sequence_id"), str):
        check_id("parameters: 'sequence_id'", identity)
    return found


def _parameters(parameters: object, where: str) -> dict[str, Any]:
    if parameters is None:
        return {}
    if not isinstance(parameters, dict):
        raise RequestError(f"{where}: want an object, got {shown(parameters)}")
    return parameters


def _list(fields: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    found = fields[name]
    if not isinstance(found, list):
        raise RequestError(f"{name}: want a list of objects, got {shown(found)}")
    for entry in found:
        if not isinstance(entry, dict):
            raise RequestError(f"{name}: want a list of objects, one is {shown(entry)}")
    return found


def _inputs(
    fields: Mapping[str, Any], data: _Data, wanted: Mapping[str, TensorMetadata]
) -> dict[str, np.ndarray]:
    if "inputs" not in fields:
        raise RequestError("inputs: missing; want a list of objects")
    arrays: dict[str, np.ndarray] = {}
    for entry in _list(fields, "inputs"):
        for name in ("name", "datatype", "shape"):
            if name not in entry:
                raise RequestError(
                    f"input {shown(entry.get('name', len(arrays)))}: the field {name!r} is missing"
                )
        tensor = declared(wanted, entry["name"], entry["datatype"], entry["shape"])
        if tensor.name in arrays:
            raise RequestError(f"{tensor}: the request has it twice")
        arrays[tensor.name] = _array(tensor, entry, data)
    check_complete(arrays, wanted)
    if left := data.binary.left:
        raise RequestError(f"the body has {left} bytes more than its inputs have binary data")
    return arrays


def check_complete(arrays: Mapping[str, np.ndarray], wanted: Mapping[str, TensorMetadata]) -> None:
    """Whether each input of the model is there.

    Raises:
        RequestError: one is missing.
    """
    missing = [name for name in wanted if name not in arrays]
    if missing:
        raise RequestError(f"input {missing[0]!r}: the request does not have it, the model does")


def _array(tensor: Declared, entry: Mapping[str, Any], data: _Data) -> np.ndarray:
    parameters = _parameters(entry.get("parameters"), f"{tensor}: parameters")
    check_input_parameters(str(tensor), parameters)
    has_list = "data" in entry or LIST in entry
    if "binary_data_size" not in parameters:
        if not has_list:
            raise RequestError(f"{tensor}: want 'data' or the parameter 'binary_data_size'")
        return from_json(tensor, data.listed(entry))
    if has_list:
        raise RequestError(f"{tensor}: has 'data' and 'binary_data_size'; want one of them")
    size = parameters["binary_data_size"]
    if type(size) is not int or size < 0:
        raise RequestError(f"{tensor}: binary_data_size: want bytes, got {shown(size)}")
    if not data.has_header:
        raise RequestError(
            f"{tensor}: binary_data_size needs the header Inference-Header-Content-Length: the "
            "bytes of JSON in front of the data"
        )
    if size > data.binary.left:
        raise RequestError(
            f"{tensor}: binary_data_size is {shown(size)}, but {data.binary.left} bytes of the "
            "body are "
            "left"
        )
    return from_binary(tensor, data.binary.take(size))


def check_input_parameters(what: str, parameters: Mapping[str, Any]) -> None:
    """Refuse what an input cannot do here.

    Raises:
        RequestError: shared memory.
    """
    if _SHARED_MEMORY in parameters:
        raise RequestError(f"{what}: {_NO_SHARED_MEMORY}")


def _outputs(
    fields: Mapping[str, Any],
    parameters: Mapping[str, Parameter],
    known: tuple[TensorMetadata, ...],
) -> tuple[RequestedOutput, ...]:
    all_binary = bool(parameters.get("binary_data_output", False))
    if not fields.get("outputs"):  # an empty list asks for all, as in Triton
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
    """The name of an output that a request asks for.

    Raises:
        RequestError: the model has none of the name, or it was asked for before.
    """
    if not isinstance(name, str):
        raise RequestError(f"outputs: an output's name: want a string, got {shown(name)}")
    if name not in [t.name for t in known]:
        raise RequestError(
            f"output {shown(name)}: the model has no such output; it has "
            f"{', '.join(repr(t.name) for t in known)}"
        )
    if name in found:
        raise RequestError(f"output {shown(name)}: the request asks for it twice")
    return name


def check_output_parameters(name: str, options: Mapping[str, Any]) -> None:
    """Refuse what an output cannot do here.

    Raises:
        RequestError: shared memory, or the classification extension.
    """
    if _SHARED_MEMORY in options:
        raise RequestError(f"output {shown(name)}: {_NO_SHARED_MEMORY}")
    if "classification" in options:
        raise RequestError(
            f"output {shown(name)}: the classification extension is not supported; take the "
            "largest values of the output yourself"
        )


def _is_binary(name: str, options: Mapping[str, Any], all_binary: bool) -> bool:
    check_output_parameters(name, options)
    chosen = options.get("binary_data", all_binary)
    if not isinstance(chosen, bool):
        raise RequestError(
            f"output {shown(name)}: binary_data: want true or false, got {shown(chosen)}"
        )
    return chosen


def encode(
    decoded: Decoded, model: ServedModel, results: Mapping[str, np.ndarray]
) -> tuple[list[bytes | memoryview], int | None]:
    """Write the response of a request.

    Args:
        decoded: the request.
        model: that answered it.
        results: all of its outputs, by name.

    Returns:
        The body in pieces, and how many bytes of it are JSON; None: all, as no output is binary.
    """
    chunks: list[bytes | memoryview] = []
    answer = {"model_name": model.name, "model_version": model.version}
    if decoded.id:
        answer["id"] = decoded.id
    texts = [f'{_opened(answer)},"outputs":['.encode()]
    for number, output in enumerate(decoded.outputs):
        array = results[output.name]
        entry: dict[str, object] = {
            "name": output.name,
            "datatype": name_of(array.dtype),
            "shape": array.shape,
        }
        if output.is_binary:
            chunks.append(_view(array))
            entry["parameters"] = {"binary_data_size": len(chunks[-1])}
        texts.append(f"{',' if number else ''}{_opened(entry)}".encode())
        texts += [b"}"] if output.is_binary else [b',"data":[', *_listed(array), b"]}"]
    texts.append(b"]}")
    return [*texts, *chunks], sum(map(len, texts)) if chunks else None


def _opened(fields: Mapping[str, object]) -> str:
    """A JSON object without its last brace."""
    return json.dumps(fields, separators=(",", ":"))[:-1]


def _view(array: np.ndarray) -> bytes | memoryview:
    """As `raw`, without a copy where the array lies so in memory."""
    if name_of(array.dtype) == "BYTES":
        return joined_bytes(array)
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def raw(array: np.ndarray) -> bytes:
    """An array's binary data: little-endian, row-major; BYTES with lengths."""
    return joined_bytes(array) if name_of(array.dtype) == "BYTES" else array.tobytes()


def _listed(array: np.ndarray) -> Iterator[bytes]:
    """The elements as JSON, separated by commas; NaN and infinity as `NaN` and `Infinity`.

    Raises:
        RequestError: bytes that are no UTF-8.
    """
    flat = array.ravel()
    is_text = name_of(array.dtype) == "BYTES"
    for at in range(0, flat.size, _PART):
        part = flat[at : at + _PART]
        try:
            values = [e.decode() for e in elements(part)] if is_text else part.tolist()
        except UnicodeDecodeError:
            raise RequestError(
                "an output's bytes are no UTF-8: ask for binary data (binary_data=True)"
            ) from None
        yield (b"," if at else b"") + json.dumps(values, separators=(",", ":"))[1:-1].encode()
