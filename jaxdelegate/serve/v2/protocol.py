"""Checks requests for inference against the model, whether they came as JSON or by gRPC.

The Open Inference Protocol v2 with the binary tensor data extension, as in KServe and Triton.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from jaxdelegate.serve.clients import Client, RequestError, shown
from jaxdelegate.serve.json_objects import Constant
from jaxdelegate.serve.v2.model import ServedModel
from jaxdelegate.serve.v2.requests import InferRequest, Parameter, TensorMetadata
from jaxdelegate.serve.v2.tensors import Declared, declared, joined_bytes, name_of

MAX_ID_BYTES = 256  # limits the ids of requests and sequences

_SHARED_MEMORY = "shared_memory_region"
_NO_SHARED_MEMORY = (
    "shared memory is not supported; send data in the request (unset_shared_memory in tritonclient)"
)
# The types of known parameters. Others are passed on unchanged.
_KNOWN: dict[str, tuple[tuple[type, ...], str]] = {
    "sequence_id": ((int, str), "an integer or a string"),
    "sequence_start": ((bool,), "true or false"),
    "sequence_end": ((bool,), "true or false"),
    "priority": ((int,), "an integer"),
    "timeout": ((int,), "an integer, microseconds"),
    "binary_data_output": ((bool,), "true or false"),
}


class InputFields(NamedTuple):
    """An input of a request, not checked yet."""

    name: object
    datatype: object
    shape: object
    parameters: object
    read: Callable[[Declared, Mapping[str, Any]], np.ndarray]  # with the parameters


class RequestFields(NamedTuple):
    """A request, not checked yet."""

    id: object
    parameters: object
    inputs: Iterable[InputFields]
    outputs: Iterable[tuple[object, object]]  # names and parameters; none: all of the model


def checked(fields: RequestFields, model: ServedModel, client: Client) -> InferRequest:
    """The request, if it fits the model; the data of an input is read when its declaration does.

    A RequestError reports the first problem, with the input's or field's name.
    """
    parameters = _checked_parameters(fields.parameters)
    arrays = _inputs(fields.inputs, {t.name: t for t in model.inputs})
    identity = _checked_id("id", fields.id)
    all_binary = bool(parameters.get("binary_data_output", False))
    outputs = _outputs(fields.outputs, model.outputs, all_binary)
    return InferRequest(arrays, parameters, client, outputs, identity)


def _checked_id(what: str, identity: object) -> str:
    if not isinstance(identity, str):
        raise RequestError(f"{what}: expected a string, got {shown(identity)}")
    if len(identity.encode("utf-8", "surrogatepass")) > MAX_ID_BYTES:
        shortened = shown(identity)
        raise RequestError(f"{what}: expected at most {MAX_ID_BYTES} bytes, got more: {shortened}")
    return identity


def _checked_parameters(parameters: object) -> dict[str, Parameter]:
    checked = _object(parameters, "parameters")
    for name, value in checked.items():
        types, what = _KNOWN.get(name, ((bool, int, float, str, Constant), "a scalar"))
        is_negative = type(value) is int and value < 0 and name in _KNOWN
        if type(value) not in types or is_negative:
            raise RequestError(f"parameters: {shown(name)}: expected {what}, got {shown(value)}")
        if name in _KNOWN and type(value) is int and value >= 1 << 64:
            shortened = shown(value)
            raise RequestError(f"parameters: {shown(name)}: must be < 2**64, got {shortened}")
    if isinstance(identity := checked.get("sequence_id"), str):
        _checked_id("parameters: 'sequence_id'", identity)
    return checked


def _object(value: object, where: str) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise RequestError(f"{where}: expected an object, got {shown(value)}")
    return value


def _inputs(
    entries: Iterable[InputFields], wanted: Mapping[str, TensorMetadata]
) -> dict[str, np.ndarray]:
    arrays: dict[str, np.ndarray] = {}
    for entry in entries:
        tensor = declared(wanted, entry.name, entry.datatype, entry.shape)
        if tensor.name in arrays:
            raise RequestError(f"{tensor}: duplicate input")
        parameters = _object(entry.parameters, f"{tensor}: parameters")
        if _SHARED_MEMORY in parameters:
            raise RequestError(f"{tensor}: {_NO_SHARED_MEMORY}")
        arrays[tensor.name] = entry.read(tensor, parameters)
    for name in wanted:
        if name not in arrays:
            raise RequestError(f"missing input {name!r}")
    return arrays


def _outputs(
    entries: Iterable[tuple[object, object]], known: tuple[TensorMetadata, ...], all_binary: bool
) -> dict[str, bool]:
    outputs: dict[str, bool] = {}
    for name, parameters in entries:
        if not isinstance(name, str):
            raise RequestError(f"outputs: an output's name: expected a string, got {shown(name)}")
        where = f"output {shown(name)}"
        if name not in [t.name for t in known]:
            names = ", ".join(repr(t.name) for t in known)
            raise RequestError(f"{where}: the model has no such output; it has {names}")
        if name in outputs:
            raise RequestError(f"{where}: duplicate output")
        options = _object(parameters, f"{where}: parameters")
        outputs[name] = _is_binary(where, options, all_binary)
    return outputs or {tensor.name: all_binary for tensor in known}


def _is_binary(where: str, options: Mapping[str, Any], all_binary: bool) -> bool:
    if _SHARED_MEMORY in options:
        raise RequestError(f"{where}: {_NO_SHARED_MEMORY}")
    if "classification" in options:
        raise RequestError(
            f"{where}: the classification extension is not supported; select the largest values of "
            "the output yourself"
        )
    chosen = options.get("binary_data", all_binary)
    if not isinstance(chosen, bool):
        raise RequestError(f"{where}: binary_data: expected true or false, got {shown(chosen)}")
    return chosen


def binary(array: np.ndarray) -> bytes | memoryview:
    """An array's binary data, without a copy if it is contiguous: little-endian, row-major.

    Each element of BYTES follows its length.
    """
    if name_of(array.dtype) == "BYTES":
        return joined_bytes(array)
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
