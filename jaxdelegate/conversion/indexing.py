"""Gathers and scatters: what jnp indexing becomes."""

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdelegate.conversion.elementwise import aligned, choose
from jaxdelegate.conversion.emitter import BOOL, I32, Emitter
from jaxdelegate.conversion.graph import Graph, Value
from jaxdelegate.conversion.interpreting import Lower, Primitive, write
from jaxdelegate.conversion.movement import clamped
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
    def has_one_index(self) -> bool:
        return len(self.index_map) == 1

    @property
    def most(self) -> Any:
        """The largest start that is inside, or those of several."""
        return self.limits[0] if self.has_one_index else np.asarray(self.limits)

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


def _is_inside(e: Emitter, indices: Value, w: _Window) -> Value | None:
    """Whether a window at each start is inside; bool [*batch]. None: all are known to be."""
    clipped = clamped(e, indices, w.most)
    if clipped is indices or (indices.is_constant and np.array_equal(clipped.data, indices.data)):
        return None
    is_same = e.compute("EQUAL", clipped, indices, dtype=BOOL)
    return is_same if w.has_one_index else e.reduce("REDUCE_ALL", is_same, [indices.rank - 1])


def _indices_of(e: Emitter, indices: Value, w: _Window) -> Value:
    """[*batch], or [*batch, several]."""
    indices = indices if indices.dtype == np.int64 else e.cast(indices, I32)
    return e.reshape(indices, w.batch) if w.has_one_index else indices


def _gather(
    e: Emitter, x: Value, indices: Value, *, dimension_numbers: Any, slice_sizes: Any, mode: Any,
    fill_value: Any, **_: Any,
) -> Value:  # fmt: skip
    w = _Window(x.shape, indices.shape, slice_sizes, dimension_numbers)
    indices = _indices_of(e, indices, w)
    result = _gathered(e, x, clamped(e, indices, w.most), w)
    is_inside = _is_inside(e, indices, w) if mode.name == "FILL_OR_DROP" else None
    if is_inside is None:
        return result
    shape = [n if i in w.batch_at else 1 for i, n in enumerate(result.shape)]
    filler = _filler(x.dtype) if fill_value is None else fill_value
    return choose(e, e.reshape(is_inside, tuple(shape)), result, e.const(filler, x.dtype))


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


def _places(e: Emitter, indices: Value, w: _Window) -> Any:
    """The positions in the flat operand of all elements of windows: int [*batch, *window]."""
    strides = np.append(np.cumprod(w.operand[:0:-1], dtype=np.int64)[::-1], 1)
    steps = strides[w.index_map[0] if w.has_one_index else list(w.index_map)]
    offsets = _offsets(w, strides)

    def places(indices: Any) -> Any:
        starts = indices * steps.astype(indices.dtype)
        starts = starts if w.has_one_index else starts.sum(-1, dtype=indices.dtype)
        column = starts.reshape(*w.batch, *[1] * len(w.window))
        return column + offsets.astype(indices.dtype)

    return write(e, places, indices)


def _offsets(w: _Window, strides: np.ndarray) -> np.ndarray:
    """What batching dimensions and the places in a window add to a start."""
    n, rank = len(w.batch), len(w.batch) + len(w.window)
    lines = {
        at: (w.operand[i], strides[i]) for i, at in zip(w.batching, w.indices_batching, strict=True)
    }
    lines |= {n + at: (w.sizes[i], strides[i]) for at, i in enumerate(w.window)}
    total = np.zeros((1,) * rank, np.int64)
    for at, (size, stride) in lines.items():
        line = np.arange(size) * stride
        total = total + line.reshape([-1 if i == at else 1 for i in range(rank)])
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
        indices = _indices_of(e, e.cast(indices, I32), w)
        is_inside = _is_inside(e, indices, w) if mode.name == "FILL_OR_DROP" else None
        if kind == "set" and math.prod(w.batch) == 1 and is_inside is None:
            return _one_window(e, x, indices, updates, w)
        indices = clamped(e, indices, w.most) if mode.name == "CLIP" else indices
        return _scattered(e, kind, (x, indices, updates), w, is_inside)

    return lower


def _window_sizes(x: Value, updates: Value, d: Any) -> list[int]:
    gone = (*d.inserted_window_dims, *d.operand_batching_dims)
    sizes = iter([updates.shape[i] for i in d.update_window_dims])
    return [1 if i in gone else next(sizes) for i in range(x.rank)]


def _one_window(e: Emitter, x: Value, indices: Value, updates: Value, w: _Window) -> Value:
    """DYNAMIC_UPDATE_SLICE, which moves a window inside."""
    update = e.reshape(e.transpose(updates, [*w.batch_at, *w.offsets]), w.sizes)

    def full(start: Any) -> Any:
        each = {axis: start[i : i + 1] for i, axis in enumerate(w.index_map)}
        return jnp.concatenate([each.get(i, np.zeros(1, np.int32)) for i in range(x.rank)])

    start = write(e, full, e.reshape(indices, (len(w.index_map),)))
    return e.op("DYNAMIC_UPDATE_SLICE", [x, update, start], x.shape, x.dtype)


def _scattered(
    e: Emitter, kind: str, inputs: tuple[Value, Value, Value], w: _Window, is_inside: Value | None
) -> Value:
    """Element by element into the flat operand, with one more for what is dropped."""
    x, indices, updates = inputs
    size = math.prod(x.shape)
    places = _places(e, indices, w)
    if is_inside is not None:
        column = e.reshape(is_inside, (*w.batch, *[1] * len(w.window)))
        places = choose(e, *aligned(e, column, places, e.const(size, I32)))
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
