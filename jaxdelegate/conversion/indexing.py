"""Gathers and scatters: what jnp indexing becomes."""

import math
from typing import Any

import numpy as np
from jax import lax

from jaxdelegate.conversion.elementwise import aligned, choose
from jaxdelegate.conversion.emitter import BOOL, I32, Emitter
from jaxdelegate.conversion.graph import Graph, Value, constant
from jaxdelegate.conversion.movement import clamped
from jaxdelegate.conversion.ranges import range_of
from jaxdelegate.conversion.table import Lower, Primitive
from jaxdelegate.op_lowering.options import GatherOptions, StablehloScatterOptions


class _Window:
    """Where a gather reads or a scatter writes: windows of an operand at starts."""

    def __init__(self, operand: Any, indices: Any, sizes: Any, names: Any) -> None:
        """`names` are the dimension numbers of a gather."""
        self.operand, self.sizes, self.offsets = tuple(operand), tuple(sizes), names.offset_dims
        self.collapsed, self.index_map = names.collapsed_slice_dims, names.start_index_map
        self.batching = names.operand_batching_dims
        self.indices_batching = names.start_indices_batching_dims
        self.batch = tuple(indices[:-1])
        self.window = tuple(
            i for i in range(len(self.operand)) if i not in (*self.collapsed, *self.batching)
        )
        self.limits = [self.operand[i] - self.sizes[i] for i in self.index_map]
        rank = len(self.batch) + len(self.window)
        self.batch_at = [i for i in range(rank) if i not in self.offsets]

    @property
    def result_order(self) -> np.ndarray:
        """From [*batch, *window] to the dimensions of the result."""
        return np.argsort([*self.batch_at, *self.offsets])

    @property
    def axis(self) -> int | None:
        """The only axis that is indexed, if windows have all of the others."""
        whole = all(
            n == 1 if i in self.collapsed else n == self.operand[i]
            for i, n in enumerate(self.sizes)
        )
        one = len(self.index_map) == 1 and self.index_map == self.collapsed
        return self.index_map[0] if one and whole and not self.batching else None


def _are_bounded(indices: Value, w: _Window) -> bool:
    """Whether all windows are known to be inside."""
    if isinstance(indices.data, np.ndarray):
        return bool(np.all((indices.data >= 0) & (indices.data <= np.asarray(w.limits))))
    low, high = range_of(indices)
    return low >= 0 and high <= min(w.limits, default=0)


def _out_of_bounds(e: Emitter, indices: Value, limits: list[int]) -> Value:
    """Whether a window at each start is not inside; bool [*batch]."""
    inside = e.compute(
        "LOGICAL_AND",
        e.compute("GREATER_EQUAL", indices, e.like(indices, 0), dtype=BOOL),
        e.compute("LESS_EQUAL", indices, e.const(limits, indices.dtype), dtype=BOOL),
    )
    return e.compute("LOGICAL_NOT", e.reduce("REDUCE_ALL", inside, [indices.rank - 1]))


def _gather(
    e: Emitter, x: Value, indices: Value, *, dimension_numbers: Any, slice_sizes: Any, mode: Any,
    fill_value: Any, **_: Any,
) -> Value:  # fmt: skip
    w = _Window(x.shape, indices.shape, slice_sizes, dimension_numbers)
    if indices.dtype != np.int64:
        indices = e.cast(indices, I32)
    bounded = _are_bounded(indices, w)
    fills = mode.name == "FILL_OR_DROP" and not bounded
    inside = indices if bounded else clamped(e, indices, np.asarray(w.limits))
    result = _gathered(e, x, inside, w)
    if not fills:
        return result
    outside = _out_of_bounds(e, indices, w.limits)
    shape = [n if i in w.batch_at else 1 for i, n in enumerate(result.shape)]
    filler = _filler(x.dtype) if fill_value is None else fill_value
    return choose(e, e.reshape(outside, tuple(shape)), e.const(filler, x.dtype), result)


def _filler(dtype: np.dtype) -> Any:
    if dtype.kind == "f":
        return np.nan
    if dtype.kind == "b":
        return True
    return np.iinfo(dtype).min if dtype.kind == "i" else np.iinfo(dtype).max


def _gathered(e: Emitter, x: Value, indices: Value, w: _Window) -> Value:
    if w.axis is not None:
        return _along_axis(e, x, indices, w, w.axis)
    places = _places(e, indices, w)
    options = GatherOptions(0, 0)
    flat = e.op("GATHER", [e.flat(x), places], places.shape, x.dtype, options)
    return e.transpose(flat, w.result_order)


def _along_axis(e: Emitter, x: Value, indices: Value, w: _Window, axis: int) -> Value:
    places = e.reshape(indices, w.batch)
    shape = (*x.shape[:axis], *w.batch, *x.shape[axis + 1 :])
    y = e.op("GATHER", [x, places], shape, x.dtype, GatherOptions(axis, 0))
    n = len(w.batch)  # y is [*window before the axis, *batch, *window after it]
    order = [*range(axis, axis + n), *range(axis), *range(axis + n, y.rank)]
    return e.transpose(e.transpose(y, order), w.result_order)


def _places(e: Emitter, indices: Value, w: _Window) -> Value:
    """The positions in the flat operand of all elements of windows: int [*batch, *window]."""
    strides = np.append(np.cumprod(w.operand[:0:-1], dtype=np.int64)[::-1], 1)
    weights = e.const(strides[list(w.index_map)], indices.dtype)
    weighted = e.compute("MUL", indices, weights)
    starts = (
        e.reduce("SUM", weighted, [indices.rank - 1])
        if len(w.index_map) > 1
        else (e.reshape(weighted, w.batch))
    )
    offsets = _batch_offsets(w, strides)
    offsets = np.reshape(offsets, (*offsets.shape, *[1] * len(w.window)))
    offsets = offsets + _window_offsets(w, strides)
    column = e.reshape(starts, (*w.batch, *[1] * len(w.window)))
    return e.compute("ADD", column, e.const(offsets, indices.dtype))


def _batch_offsets(w: _Window, strides: np.ndarray) -> np.ndarray:
    total = np.zeros((1,) * len(w.batch), np.int64)
    for operand, at in zip(w.batching, w.indices_batching, strict=True):
        line = np.arange(w.operand[operand]) * strides[operand]
        total = total + np.reshape(line, [-1 if i == at else 1 for i in range(len(w.batch))])
    return total


def _window_offsets(w: _Window, strides: np.ndarray) -> np.ndarray:
    total = np.zeros((1,) * len(w.window), np.int64)
    for n, axis in enumerate(w.window):
        line = np.arange(w.sizes[axis]) * strides[axis]
        total = total + np.reshape(line, [-1 if i == n else 1 for i in range(len(w.window))])
    return total


# ---- scatters


def _scatter(kind: str) -> Lower:
    def lower(
        e: Emitter, x: Value, indices: Value, updates: Value, *, dimension_numbers: Any, mode: Any,
        **_: Any,
    ) -> Value:  # fmt: skip
        d = dimension_numbers
        names = lax.GatherDimensionNumbers(
            d.update_window_dims, d.inserted_window_dims, d.scatter_dims_to_operand_dims,
            d.operand_batching_dims, d.scatter_indices_batching_dims,
        )  # fmt: skip
        w = _Window(x.shape, indices.shape, _window_sizes(x, updates, d), names)
        if kind == "set" and math.prod(w.batch) == 1 and _is_in_bounds(indices, w, mode):
            return _one_window(e, x, indices, updates, w)
        return _scattered(e, kind, (x, indices, updates), w, mode)

    return lower


def _window_sizes(x: Value, updates: Value, d: Any) -> list[int]:
    gone = (*d.inserted_window_dims, *d.operand_batching_dims)
    sizes = iter([updates.shape[i] for i in d.update_window_dims])
    return [1 if i in gone else next(sizes) for i in range(x.rank)]


def _is_in_bounds(indices: Value, w: _Window, mode: Any) -> bool:
    """Whether the window is where its start says, or is moved inside."""
    if mode.name != "FILL_OR_DROP":
        return True
    return _are_bounded(indices, w)


def _one_window(e: Emitter, x: Value, indices: Value, updates: Value, w: _Window) -> Value:
    """DYNAMIC_UPDATE_SLICE, which moves a window inside."""
    update = e.reshape(e.transpose(updates, [*w.batch_at, *w.offsets]), w.sizes)
    flat = e.reshape(e.cast(indices, I32), (len(w.index_map),))
    if isinstance(flat.data, np.ndarray):
        starts = np.zeros(x.rank, np.int32)
        starts[list(w.index_map)] = flat.data
        return e.op("DYNAMIC_UPDATE_SLICE", [x, update, constant(starts)], x.shape, x.dtype)
    columns = [
        e.slice(flat, [w.index_map.index(i)], (1,)) if i in w.index_map else e.const([0], I32)
        for i in range(x.rank)
    ]
    start = e.concatenate(columns, 0)
    return e.op("DYNAMIC_UPDATE_SLICE", [x, update, start], x.shape, x.dtype)


def _scattered(
    e: Emitter, kind: str, inputs: tuple[Value, Value, Value], w: _Window, mode: Any
) -> Value:
    """Element by element into the flat operand, with one more for what is dropped."""
    x, indices, updates = inputs
    size = math.prod(x.shape)
    indices = e.cast(indices, I32)
    inside = indices if mode.name != "CLIP" else clamped(e, indices, np.asarray(w.limits))
    places = _places(e, inside, w)
    if mode.name == "FILL_OR_DROP" and not _is_in_bounds(indices, w, mode):
        outside = _out_of_bounds(e, indices, w.limits)
        column = e.reshape(outside, (*w.batch, *[1] * len(w.window)))
        places = choose(e, *aligned(e, column, e.const(size, I32), places))
    count = math.prod(places.shape)
    rows = e.reshape(e.broadcast(places, (*w.batch, *places.shape[len(w.batch) :])), (count, 1))
    values = e.flat(e.transpose(updates, [*w.batch_at, *w.offsets]))
    flat = e.pad(e.flat(x), [(0, 1)])
    if kind in ("add", "sub"):
        summed = e.op("SCATTER_ND", [rows, values, e.sizes([size + 1])], (size + 1,), x.dtype)
        total = e.compute(kind.upper(), flat, summed)
    else:
        total = _combined(e, kind, flat, rows, values)
    return e.reshape(e.slice(total, [0], (size,)), x.shape)


_COMBINERS = {"mul": "STABLEHLO_MULTIPLY", "min": "STABLEHLO_MINIMUM", "max": "STABLEHLO_MAXIMUM"}


def _combined(e: Emitter, kind: str, flat: Value, rows: Value, values: Value) -> Value:
    body = Graph(f"scatter_{kind}")
    body.inputs = [Value((), flat.dtype, name) for name in ("old", "new")]
    inner = e.under(body)
    op = _COMBINERS.get(kind)
    body.outputs = [inner.op(op, body.inputs, (), flat.dtype) if op else body.inputs[1]]
    options = StablehloScatterOptions(
        inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,), index_vector_dim=1
    )
    graphs = {"update_computation_subgraph_index": body}
    inputs, result = [flat, rows, values], [(flat.shape, flat.dtype)]
    return e.node("STABLEHLO_SCATTER", inputs, result, options, graphs=graphs)[0]


_STATIC = "constant shapes; an index out of bounds reads the fill value, or is moved inside"
_WRITES = "constant shapes"
PRIMITIVES = (
    Primitive("gather", "GATHER", _gather, _STATIC),
    Primitive("scatter", "DYNAMIC_UPDATE_SLICE, STABLEHLO_SCATTER", _scatter("set"), _WRITES),
    Primitive("scatter-add", "SCATTER_ND, ADD", _scatter("add"), _WRITES),
    Primitive("scatter-sub", "SCATTER_ND, SUB", _scatter("sub"), _WRITES),
    Primitive("scatter-mul", "STABLEHLO_SCATTER", _scatter("mul"), _WRITES),
    Primitive("scatter-min", "STABLEHLO_SCATTER", _scatter("min"), _WRITES),
    Primitive("scatter-max", "STABLEHLO_SCATTER", _scatter("max"), _WRITES),
)
