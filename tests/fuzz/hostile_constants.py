"""Operators with senseless constants: NaN as a size, strings for an axis, two scales.

Each is a case of the operators' tables (`tests/op_lowering`) with one to three changes: an input
becomes another constant or is left out, there are too many or too few, a result has another dtype,
a tensor has impossible scales.
"""

import dataclasses
import functools
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from ai_edge_litert import schema_py_generated as schema

from jaxdelegate.testing.case import Case
from tests.fuzz.field_edits import UNPACKABLE, packed, unpacked
from tests.support.case_tables import cases_in

_CASES = Path(__file__).parents[1] / "op_lowering"
_LARGEST = 1 << 16  # bytes of a case's file
_TYPE = schema.TensorType
_DTYPES = {
    np.dtype(np.float32): _TYPE.FLOAT32,
    np.dtype(np.float64): _TYPE.FLOAT64,
    np.dtype(np.float16): _TYPE.FLOAT16,
    np.dtype(np.int8): _TYPE.INT8,
    np.dtype(np.uint8): _TYPE.UINT8,
    np.dtype(np.int16): _TYPE.INT16,
    np.dtype(np.int32): _TYPE.INT32,
    np.dtype(np.uint32): _TYPE.UINT32,
    np.dtype(np.int64): _TYPE.INT64,
    np.dtype(np.uint64): _TYPE.UINT64,
    np.dtype(np.bool_): _TYPE.BOOL,
    np.dtype(np.complex64): _TYPE.COMPLEX64,
}
_FLOATS = (np.nan, np.inf, -np.inf, -1.0, 0.0, 0.5, 1e-45, 3e38, -3e38)
_SCALES = (np.nan, np.inf, -np.inf, 0.0, -0.0, -1.0, 1e-45, 1e-38, 3e38, 0.5)
_POINTS = (0, 1, -1, 127, 128, -129, 255, 256, 2**31 - 1, -(2**31), 2**62, -(2**63))

Change = Callable[
    [schema.ModelT, random.Random], str | None
]  # describes the change; None if it was impossible


@dataclasses.dataclass(frozen=True)
class HostileConstants:
    """Changed cases by number; a corpus for `run_mutations.run`."""

    seed: int

    @functools.cached_property
    def cases(self) -> Sequence[Case]:
        """The cases of all tables, in an order that does not depend on the machine."""
        tables = cases_in(_CASES)
        return [case for name in sorted(tables) for case in tables[name]]

    @functools.cached_property
    def _by_operator(self) -> Sequence[Sequence[Case]]:
        tables = cases_in(_CASES)
        return [tables[name] for name in sorted(tables)]

    def content(self, name: str) -> bytes:
        """The unchanged case."""
        return next(case for case in self.cases if str(case) == name).model()

    def damaged(self, number: int) -> tuple[str, bytes, str]:
        """The model with this number: its case, its content, and the changes."""
        rng = random.Random(f"{self.seed}:{number}")
        case = rng.choice(rng.choice(self._by_operator))  # each operator is equally likely
        before = case.model()
        while len(before) > _LARGEST:
            case = rng.choice(rng.choice(self._by_operator))
            before = case.model()
        content, notes = changed(before, rng)
        return str(case), content, notes


def changed(content: bytes, rng: random.Random) -> tuple[bytes, str]:
    """The model with one to three changes, and their description."""
    model, notes = unpacked(content), list[str]()
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        before = packed(model)
        note = rng.choice(_CHANGES)(model, rng)
        try:
            packed(model)
        except UNPACKABLE:  # the schema's fields cannot hold it
            model, note = unpacked(before), None
        if note is not None:
            notes.append(note)
    return packed(model), "; ".join(notes)


# ---- changes


def _operator(model: schema.ModelT, rng: random.Random) -> tuple[Any, Any]:
    graph = rng.choice([g for g in model.subgraphs if g.operators is not None and len(g.operators)])
    return graph, rng.choice(graph.operators)


def _replace_by_constant(model: schema.ModelT, rng: random.Random) -> str | None:
    graph, operator = _operator(model, rng)
    inputs = _indices(operator.inputs)
    if not inputs:
        return None
    at = rng.randrange(len(inputs))
    old = graph.tensors[inputs[at]] if inputs[at] >= 0 else None
    shape = [] if old is None or old.shape is None else [int(n) for n in old.shape]
    shape = rng.choice((shape, shape, shape, [], [0], [1], [2], [*shape, 1], [2, 2], shape[1:]))
    tensor_type, data, what = _constant(shape, rng)
    tensor = schema.TensorT()
    tensor.name, tensor.shape, tensor.type = "hostile", shape, tensor_type
    if old is not None and rng.random() < 0.5:
        tensor.quantization = old.quantization
    tensor.buffer = len(model.buffers)
    buffer = schema.BufferT()
    buffer.data = np.frombuffer(data, np.uint8)
    model.buffers.append(buffer)
    inputs[at] = len(graph.tensors)
    graph.tensors.append(tensor)
    operator.inputs = np.array(inputs, np.int32)
    return f"input {at} is {what} {shape}"


def _constant(shape: list[int], rng: random.Random) -> tuple[int, bytes, str]:
    count = int(np.prod(shape))
    if rng.random() < 0.08:
        return _TYPE.STRING, _strings([b"x"] * count), "strings"
    dtype, tensor_type = rng.choice(list(_DTYPES.items()))
    values = np.array([_number(dtype, rng) for _ in range(count)], dtype)
    if rng.random() < 0.5 and count:
        values[:] = values[0]
    return tensor_type, values.tobytes(), f"{dtype} {values[:4].tolist()}"


def _number(dtype: np.dtype, rng: random.Random) -> Any:
    if dtype.kind in "fc":
        with np.errstate(all="ignore"):
            return np.float64(rng.choice(_FLOATS)).astype(dtype)
    if dtype.kind == "b":
        return rng.random() < 0.5
    info = np.iinfo(dtype)
    number = rng.choice((0, 1, -1, 2, 3, -2, info.min, info.max, info.min + 1, info.max // 2))
    return max(int(info.min), min(int(number), int(info.max)))


def _strings(values: Sequence[bytes]) -> bytes:
    """TFLite's layout: count, offsets, bytes."""
    ends = np.cumsum([0, *map(len, values)]) + 4 * (len(values) + 2)
    return np.array([len(values), *ends], np.int32).tobytes() + b"".join(values)


def _leave_out(model: schema.ModelT, rng: random.Random) -> str | None:
    _graph, operator = _operator(model, rng)
    inputs = _indices(operator.inputs)
    if not inputs:
        return None
    at = rng.randrange(len(inputs))
    inputs[at] = -1
    operator.inputs = np.array(inputs, np.int32)
    return f"no input {at}"


def _change_arity(model: schema.ModelT, rng: random.Random) -> str | None:
    _graph, operator = _operator(model, rng)
    field = rng.choice(("inputs", "inputs", "outputs"))
    indices = _indices(getattr(operator, field))
    if indices and rng.random() < 0.6:
        del indices[rng.randrange(len(indices)) :]
    else:
        indices += indices[:1] or [0]
    setattr(operator, field, np.array(indices, np.int32))
    return f"{len(indices)} {field}"


def _change_result(model: schema.ModelT, rng: random.Random) -> str | None:
    graph, operator = _operator(model, rng)
    outputs = [i for i in _indices(operator.outputs) if i >= 0]
    if not outputs:
        return None
    tensor = graph.tensors[rng.choice(outputs)]
    tensor.type = rng.choice((*_DTYPES.values(), _TYPE.STRING, _TYPE.INT4, _TYPE.RESOURCE))
    return f"output has type {tensor.type}"


def _change_scales(model: schema.ModelT, rng: random.Random) -> str | None:
    graph, operator = _operator(model, rng)
    touched = [i for i in (*_indices(operator.inputs), *_indices(operator.outputs)) if i >= 0]
    if not touched:
        return None
    tensor = graph.tensors[rng.choice(touched)]
    if rng.random() < 0.5:
        tensor.type = rng.choice((_TYPE.INT8, _TYPE.UINT8, _TYPE.INT16, _TYPE.INT32, tensor.type))
    q = tensor.quantization = tensor.quantization or schema.QuantizationParametersT()
    count = rng.choice((1, 1, 2, 2, 3, 0, *([] if tensor.shape is None else tensor.shape[:4])))
    count = min(int(count), 64)
    points = rng.choice((count, count, count, 0, 1, count + 1))
    q.scale = np.array([rng.choice(_SCALES) for _ in range(count)], np.float32)
    q.zeroPoint = np.array([rng.choice(_POINTS) for _ in range(points)], np.int64)
    q.quantizedDimension = rng.choice((0, 0, 1, 2, -1, 5, 2**31 - 1))
    return f"scales {q.scale[:3]}, zero points {q.zeroPoint[:3]} of axis {q.quantizedDimension}"


def _indices(vector: Any) -> list[int]:
    return [] if vector is None else [int(i) for i in vector]


_CHANGES: tuple[Change, ...] = (
    _replace_by_constant,
    _replace_by_constant,
    _replace_by_constant,
    _leave_out,
    _change_arity,
    _change_result,
    _change_scales,
    _change_scales,
)
