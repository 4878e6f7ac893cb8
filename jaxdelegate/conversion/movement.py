"""Shapes, slices, pads, reductions along axes, and sorting."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxdelegate.conversion.emitter import BOOL, F32, I32, Emitter
from jaxdelegate.conversion.graph import Shape, Value, constant, scalar_of, stored_dtype
from jaxdelegate.conversion.ranges import range_of
from jaxdelegate.conversion.table import Lower, Primitive
from jaxdelegate.op_lowering.dtypes import TENSOR_TYPES
from jaxdelegate.op_lowering.options import (
    ArgMaxOptions,
    ArgMinOptions,
    CumsumOptions,
    GatherOptions,
    PackOptions,
    StridedSliceOptions,
    UnpackOptions,
)

_PACKED = (F32, I32, np.dtype(np.int64))
_SMALL = "float32 and integers; others in a wider type"


def _reshape(e: Emitter, x: Value, *, new_sizes: Shape, dimensions: Any, **_: Any) -> Value:
    """The elements in the order of `dimensions`, if it is not None, in another shape."""
    ordered = x if dimensions is None else e.transpose(x, dimensions)
    return e.reshape(ordered, new_sizes)


def _squeeze(e: Emitter, x: Value, *, dimensions: Sequence[int]) -> Value:
    return e.reshape(x, tuple(n for i, n in enumerate(x.shape) if i not in dimensions))


def _expand_dims(e: Emitter, x: Value, *, dimensions: Sequence[int]) -> Value:
    sizes = list(x.shape)
    for i in sorted(dimensions):
        sizes.insert(i, 1)
    return e.reshape(x, tuple(sizes))


def _transpose(e: Emitter, x: Value, *, permutation: Sequence[int]) -> Value:
    return e.transpose(x, permutation)


def _broadcast_in_dim(
    e: Emitter, x: Value, *_: Value, shape: Shape, broadcast_dimensions: Sequence[int], **__: Any
) -> Value:
    sizes: list[Any] = [1] * len(shape)
    for i, n in zip(broadcast_dimensions, x.shape, strict=True):
        sizes[i] = n
    return e.broadcast(e.reshape(x, tuple(sizes)), shape)


def _concatenate(e: Emitter, *parts: Value, dimension: int) -> Value:
    return e.concatenate(parts, dimension)


def _slice(
    e: Emitter,
    x: Value,
    *,
    start_indices: Sequence[int],
    limit_indices: Sequence[Any],
    strides: Sequence[int] | None,
) -> Value:
    strides = strides or (1,) * x.rank
    spans = list(zip(start_indices, limit_indices, strides, strict=True))
    shape = tuple(n if (a, s) == (0, 1) else -(-(n - a) // s) for a, n, s in spans)
    if all(s == 1 for s in strides):
        return e.slice(x, start_indices, shape)
    vectors = [e.sizes(v) for v in (start_indices, limit_indices, strides)]
    return e.op("STRIDED_SLICE", [x, *vectors], shape, x.dtype, StridedSliceOptions())


def _split(e: Emitter, x: Value, *, sizes: Sequence[int], axis: int) -> list[Value]:
    starts = np.cumsum([0, *sizes])
    parts = []
    for start, size in zip(starts, sizes, strict=False):
        shape = (*x.shape[:axis], int(size), *x.shape[axis + 1 :])
        parts.append(e.slice(x, [0] * axis + [int(start)] + [0] * (x.rank - axis - 1), shape))
    return parts


def _rev(e: Emitter, x: Value, *, dimensions: Sequence[int]) -> Value:
    for axis in dimensions:
        x = e.op("REVERSE_V2", [x, e.sizes([axis])], x.shape, x.dtype)
    return x


def _pad(e: Emitter, x: Value, value: Value, *, padding_config: Sequence[Any]) -> Value:
    for axis, (_, _, between) in enumerate(padding_config):
        x = spread(e, x, value, axis, between)
    pads = [(max(low, 0), max(high, 0)) for low, high, _ in padding_config]
    is_zero = scalar_of(value) is not None and scalar_of(value) == 0
    if x.dtype == BOOL:
        return e.cast(_padded(e, e.cast(x, I32), pads, e.cast(value, I32), padding_config), BOOL)
    return _padded(e, x, pads, None if is_zero else value, padding_config)


def _padded(
    e: Emitter, x: Value, pads: Sequence[Any], value: Value | None, config: Sequence[Any]
) -> Value:
    x = e.pad(x, pads, value)
    starts = [max(-low, 0) for low, _, _ in config]
    cut = [max(-low, 0) + max(-high, 0) for low, high, _ in config]
    sizes = tuple(n - c if c else n for n, c in zip(x.shape, cut, strict=True))
    return e.slice(x, starts, sizes)


def spread(e: Emitter, x: Value, value: Value, axis: int, between: int) -> Value:
    """Elements between those along an axis: pads behind each, and the last pad cut off."""
    n = x.shape[axis]
    if not between or n < 2:
        return x
    outer, inner = math.prod(x.shape[:axis]), math.prod(x.shape[axis + 1 :])
    rows = e.pad(e.reshape(x, (outer * n, 1, inner)), [(0, 0), (0, between), (0, 0)], value)
    joined = e.reshape(rows, (outer, n * (between + 1), inner))
    size = n * (between + 1) - between
    cut = e.slice(joined, (0, 0, 0), (outer, size, inner))
    return e.reshape(cut, (*x.shape[:axis], size, *x.shape[axis + 1 :]))


def starts_of(e: Emitter, indices: Sequence[Value]) -> Value:
    """Scalars as a vector of int32."""
    parts = [e.cast(i, I32) for i in indices]
    if all(isinstance(p.data, np.ndarray) for p in parts):
        return constant(np.array([p.data for p in parts], np.int32))
    return e.op("PACK", parts, (len(parts),), I32, PackOptions(len(parts), 0))


def clamped(e: Emitter, index: Value, most: Any) -> Value:
    """An index between 0 and `most`; a scalar, or the last dimension's bounds in an array."""
    if isinstance(index.data, np.ndarray):
        return constant(np.clip(index.data, 0, most).astype(index.dtype))
    least, largest = range_of(index)
    if least >= 0 and largest <= np.min(most):
        return index
    low = e.compute("MAXIMUM", index, e.like(index, 0))
    return e.compute("MINIMUM", low, e.const(most, index.dtype))


def _dynamic_slice(e: Emitter, x: Value, *starts: Value, slice_sizes: Shape) -> Value:
    limits = [n - size for n, size in zip(x.shape, slice_sizes, strict=True)]
    inside = [
        e.const(0, np.int32) if most == 0 else clamped(e, e.cast(s, I32), most)
        for s, most in zip(starts, limits, strict=True)
    ]
    if tuple(slice_sizes) == x.shape:
        return x
    inputs = [x, starts_of(e, inside), e.sizes(slice_sizes)]
    return e.op("SLICE", inputs, tuple(slice_sizes), x.dtype)


def _dynamic_update_slice(e: Emitter, x: Value, update: Value, *starts: Value) -> Value:
    return e.op("DYNAMIC_UPDATE_SLICE", [x, update, starts_of(e, starts)], x.shape, x.dtype)


def _stack(e: Emitter, *parts: Value, axis: int) -> Value:
    x = parts[0]
    shape = (*x.shape[:axis], len(parts), *x.shape[axis:])
    if x.dtype not in _PACKED:
        row = (*shape[:axis], 1, *shape[axis + 1 :])
        return e.concatenate([e.reshape(p, row) for p in parts], axis)
    return e.op("PACK", parts, shape, x.dtype, PackOptions(len(parts), axis))


def _unstack(e: Emitter, x: Value, *, axis: int) -> list[Value]:
    shape = (*x.shape[:axis], *x.shape[axis + 1 :])
    n = x.shape[axis]
    if x.dtype not in (*_PACKED, BOOL):
        parts = _split(e, x, sizes=[1] * n, axis=axis)
        return [e.reshape(part, shape) for part in parts]
    return e.node("UNPACK", [x], [(shape, x.dtype)] * n, UnpackOptions(n, axis))


def _empty(e: Emitter, *_: Value, **__: Any) -> Value:
    aval = e.eqn.outvars[0].aval
    return e.broadcast(e.const(0, stored_dtype(aval.dtype)), aval.shape)


def _tile(e: Emitter, x: Value, *, reps: Sequence[int]) -> Value:
    shape = tuple(n * count for n, count in zip(x.shape, reps, strict=True))
    return e.op("TILE", [x, e.sizes(reps)], shape, x.dtype)


def _iota(e: Emitter, *_: Value, dtype: Any, shape: Shape, dimension: int, **__: Any) -> Value:
    if not isinstance(shape[dimension], int):
        e.refuse("its size is symbolic", "give an example with constant dimensions")
    sizes = [1] * len(shape)
    sizes[dimension] = shape[dimension]
    line = np.arange(shape[dimension]).astype(stored_dtype(dtype)).reshape(sizes)
    return e.broadcast(Value(tuple(sizes), line.dtype, "", line), shape)


# ---- reductions


def _reducer(op: str) -> Lower:
    def lower(e: Emitter, x: Value, *, axes: Sequence[int], **_: Any) -> Value:
        if not axes:
            return x
        wide = x.dtype if op in ("REDUCE_ANY", "REDUCE_ALL") else e.wider(op, x.dtype)
        return e.cast(e.reduce(op, e.cast(x, wide), axes), x.dtype)

    return lower


def _bool_reducer(op: str) -> Lower:
    def lower(e: Emitter, x: Value, *, axes: Sequence[int], **_: Any) -> Value:
        if x.dtype != BOOL:
            e.refuse("there is no reduction of bits", "reduce booleans")
        return e.reduce(op, x, axes) if axes else x

    return lower


def _arg(op: str, options: type[Any]) -> Lower:
    def lower(e: Emitter, x: Value, *, axes: Sequence[int], index_dtype: Any) -> Value:
        (axis,) = axes
        x = e.cast(x, e.wider(op, x.dtype))
        shape = tuple(n for i, n in enumerate(x.shape) if i != axis)
        dtype = np.dtype(index_dtype)
        stored = dtype if dtype == np.int64 else I32
        inputs = [x, e.const(axis, np.int32)]
        return e.cast(e.op(op, inputs, shape, stored, options(TENSOR_TYPES[stored])), dtype)

    return lower


def _cumsum(e: Emitter, x: Value, *, axis: int, reverse: bool) -> Value:
    wide = e.cast(x, e.wider("CUMSUM", x.dtype))
    inputs, options = [wide, e.const(axis, np.int32)], CumsumOptions(False, reverse)
    return e.cast(e.op("CUMSUM", inputs, x.shape, wide.dtype, options), x.dtype)


def _cumulative(op: str) -> Lower:
    """A scan by doubling: each step combines with what is 1, 2, 4, ... elements before."""

    def lower(e: Emitter, x: Value, *, axis: int, reverse: bool) -> Value:
        size, step = x.shape[axis], 1
        while step < size:
            before = list(x.shape)
            before[axis] = step
            rest = list(x.shape)
            rest[axis] = size - step
            zeros = [0] * x.rank
            there = [step if i == axis else 0 for i in range(x.rank)]
            first, last = (there, zeros) if reverse else (zeros, there)
            combined = e.compute(op, e.slice(x, last, rest), e.slice(x, first, rest))
            kept_at = [size - step if i == axis and reverse else 0 for i in range(x.rank)]
            kept = e.slice(x, kept_at, before)
            parts = [combined, kept] if reverse else [kept, combined]
            x = e.concatenate(parts, axis)
            step *= 2
        return x

    return lower


# ---- sorting


def _top_k(e: Emitter, x: Value, *, k: int, axis: int = -1, **_: Any) -> list[Value]:
    axis %= x.rank
    order = [i for i in range(x.rank) if i != axis] + [axis]
    wide = e.transpose(e.cast(x, e.wider("TOPK_V2", x.dtype)), order)
    values, places = _largest(e, wide, k)
    back = np.argsort(order)
    return [e.cast(e.transpose(values, back), x.dtype), e.transpose(places, back)]


def _largest(e: Emitter, x: Value, k: int) -> list[Value]:
    shape = (*x.shape[:-1], k)
    return e.node("TOPK_V2", [x, e.const(k, np.int32)], [(shape, x.dtype), (shape, I32)])


def _sort(e: Emitter, *operands: Value, dimension: int, num_keys: int, **_: Any) -> Any:
    order = [i for i in range(operands[0].rank) if i != dimension] + [dimension]
    moved = [e.transpose(x, order) for x in operands]
    for key in reversed(range(num_keys)):  # of equal ones, those that are first stay first
        wide = _sortable(e, moved[key])
        places = _largest(e, _descending(e, wide), wide.shape[-1])[1]
        moved = [_picked(e, x, places) for x in moved]
    return [e.transpose(x, np.argsort(order)) for x in moved]


def _sortable(e: Emitter, x: Value) -> Value:
    """In a type that TOPK_V2 orders: uint32 as int32 with the first bit inverted."""
    if x.dtype != np.uint32:
        return e.cast(x, e.wider("TOPK_V2", x.dtype))
    return e.cast(e.compute("BITWISE_XOR", x, e.like(x, 1 << 31)), I32)


def _descending(e: Emitter, x: Value) -> Value:
    """Values in the opposite order, also of the smallest integer."""
    return e.compute("NEG", x) if x.dtype == F32 else e.compute("SUB", e.like(x, -1), x)


def _picked(e: Emitter, x: Value, places: Value) -> Value:
    """The elements of each row at places."""
    if isinstance(x.data, np.ndarray) and _counts(x.data):
        return e.cast(places, x.dtype)
    if x.rank == 1:
        return e.op("GATHER", [x, places], places.shape, x.dtype, GatherOptions(0, 0))
    rows = math.prod(x.shape[:-1])
    x, flat = (e.reshape(v, (rows, v.shape[-1])) for v in (x, places))
    picked = e.op("GATHER", [x, flat], flat.shape, x.dtype, GatherOptions(1, 1))
    return e.reshape(picked, places.shape)


def _counts(data: np.ndarray) -> bool:
    return bool(np.array_equal(data, np.broadcast_to(np.arange(data.shape[-1]), data.shape)))


def _moves(name: str, operators: str, lower: Lower, condition: str = "") -> Primitive:
    return Primitive(name, operators, lower, condition, parts=True)


PRIMITIVES = (
    _moves("reshape", "RESHAPE", _reshape),
    _moves("squeeze", "RESHAPE", _squeeze),
    _moves("expand_dims", "RESHAPE", _expand_dims),
    _moves("transpose", "TRANSPOSE", _transpose),
    _moves("broadcast_in_dim", "BROADCAST_TO", _broadcast_in_dim, "only where no operator repeats"),
    _moves("stack", "PACK, CONCATENATION", _stack),
    _moves("unstack", "UNPACK, SLICE", _unstack),
    Primitive("empty", "none: a constant", _empty),
    Primitive("empty2", "none: a constant", _empty),
    _moves("tile", "TILE", _tile),
    _moves("concatenate", "CONCATENATION", _concatenate),
    _moves("slice", "SLICE, STRIDED_SLICE", _slice),
    _moves("split", "SLICE", _split),
    _moves("rev", "REVERSE_V2", _rev),
    _moves("dynamic_slice", "SLICE, PACK", _dynamic_slice),
    _moves("dynamic_update_slice", "DYNAMIC_UPDATE_SLICE", _dynamic_update_slice),
    Primitive("pad", "PAD, PADV2, SLICE", _pad),
    Primitive("iota", "none: a constant", _iota),
    Primitive("reduce_sum", "SUM, MEAN", _reducer("SUM"), _SMALL),
    Primitive("reduce_prod", "REDUCE_PROD", _reducer("REDUCE_PROD"), _SMALL),
    Primitive("reduce_max", "REDUCE_MAX", _reducer("REDUCE_MAX"), _SMALL),
    Primitive("reduce_min", "REDUCE_MIN", _reducer("REDUCE_MIN"), _SMALL),
    Primitive("reduce_and", "REDUCE_ALL", _bool_reducer("REDUCE_ALL"), "booleans"),
    Primitive("reduce_or", "REDUCE_ANY", _bool_reducer("REDUCE_ANY"), "booleans"),
    Primitive("argmax", "ARG_MAX", _arg("ARG_MAX", ArgMaxOptions), "no NaN among the values"),
    Primitive("argmin", "ARG_MIN", _arg("ARG_MIN", ArgMinOptions), "no NaN among the values"),
    Primitive("cumsum", "CUMSUM", _cumsum, _SMALL),
    Primitive("cumprod", "MUL, CONCATENATION", _cumulative("MUL"), "about log2(n) steps"),
    Primitive("cummax", "MAXIMUM, CONCATENATION", _cumulative("MAXIMUM"), "about log2(n) steps"),
    Primitive("cummin", "MINIMUM, CONCATENATION", _cumulative("MINIMUM"), "about log2(n) steps"),
    Primitive("top_k", "TOPK_V2", _top_k, "float32, integers of at most 32 bits; no NaN"),
    Primitive("sort", "TOPK_V2, GATHER", _sort, "float32, integers of at most 32 bits; no NaN"),
)
