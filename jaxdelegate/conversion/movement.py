"""Shapes, slices, pads, reductions along axes, and sorting."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdelegate.conversion.emitter import BOOL, F32, I32, Emitter
from jaxdelegate.conversion.graph import Shape, Value, scalar_of, stored_dtype
from jaxdelegate.conversion.interpreting import Lower, Primitive, by, each_part, write
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
_STEPS = "about log2(n) steps"


def _reshape(e: Emitter, x: Value, *, dimensions: Any, **_: Any) -> Value:
    """The elements in the order of `dimensions`, if it is not None, in another shape."""
    return e.reshape(x if dimensions is None else e.transpose(x, dimensions), e.shape)


def _shape_only(e: Emitter, x: Value, **_: Any) -> Value:
    return e.reshape(x, e.shape)


def _transpose(e: Emitter, x: Value, *, permutation: Sequence[int]) -> Value:
    return e.transpose(x, permutation)


def _broadcast_in_dim(
    e: Emitter, x: Value, *_: Value, broadcast_dimensions: Sequence[int], **__: Any
) -> Value:
    sizes: list[Any] = [1] * len(e.shape)
    for i, n in zip(broadcast_dimensions, x.shape, strict=True):
        sizes[i] = n
    return e.broadcast(e.reshape(x, tuple(sizes)), e.shape)


def _concatenate(e: Emitter, *parts: Value, dimension: int) -> Value:
    return e.concatenate(parts, dimension)


def _slice(e: Emitter, x: Value, *, start_indices: Any, limit_indices: Any, strides: Any) -> Value:
    if strides is None or set(strides) <= {1}:
        return e.slice(x, start_indices, e.shape)
    vectors = [e.sizes(v) for v in (start_indices, limit_indices, strides)]
    return e.op("STRIDED_SLICE", [x, *vectors], e.shape, x.dtype, StridedSliceOptions())


def _split(x: Any, *, sizes: Sequence[int], axis: int) -> list[Any]:
    ends = np.cumsum(sizes).tolist()
    parts = zip(ends, sizes, strict=True)
    return [lax.slice_in_dim(x, end - size, end, axis=axis) for end, size in parts]


def _rev(e: Emitter, x: Value, *, dimensions: Sequence[int]) -> Value:
    for axis in dimensions:
        x = e.op("REVERSE_V2", [x, e.sizes([axis])], x.shape, x.dtype)
    return x


def _pad(e: Emitter, x: Value, value: Value, *, padding_config: Sequence[Any]) -> Any:
    if x.dtype == BOOL:
        return write(e, _pad_of_booleans(padding_config), x, value)
    for axis, (_, _, between) in enumerate(padding_config):
        x = write(e, spread(axis, between), x, value) if between else x
    pads = [(max(low, 0), max(high, 0)) for low, high, _ in padding_config]
    is_zero = scalar_of(value) is not None and scalar_of(value) == 0
    x = e.pad(x, pads, None if is_zero else value)
    return e.slice(x, [max(-low, 0) for low, _, _ in padding_config], e.shape)


def _pad_of_booleans(config: Sequence[Any]) -> Callable[[Any, Any], Any]:
    return lambda x, value: lax.pad(x.astype(I32), value.astype(I32), config).astype(BOOL)


def spread(axis: int, between: int) -> Callable[[Any, Any], Any]:
    """Values between the elements along an axis: pads behind each, and the last pad cut off."""

    def function(x: Any, value: Any) -> Any:
        n = x.shape[axis]
        if n < 2:
            return x
        outer, inner = math.prod(x.shape[:axis]), math.prod(x.shape[axis + 1 :])
        rows = lax.pad(
            x.reshape(outer * n, 1, inner), value, ((0, 0, 0), (0, between, 0), (0, 0, 0))
        )
        joined = rows.reshape(outer, n * (between + 1), inner)[:, :-between]
        return joined.reshape(*x.shape[:axis], -1, *x.shape[axis + 1 :])

    return function


def starts_of(e: Emitter, indices: Sequence[Value]) -> Any:
    """Scalars as a vector of int32."""
    return write(e, lambda *i: jnp.stack([n.astype(I32) for n in i]), *indices)


def clamped(e: Emitter, index: Value, most: Any) -> Any:
    """An index between 0 and `most`; a scalar, or the last dimension's bounds in an array."""
    return write(e, lambda i: jnp.clip(i, 0, jnp.asarray(most, i.dtype)), index)


def _dynamic_slice(e: Emitter, x: Value, *starts: Value, slice_sizes: Shape) -> Value:
    limits = [n - size for n, size in zip(x.shape, slice_sizes, strict=True)]
    inside = [
        e.const(0, I32) if most == 0 else clamped(e, e.cast(s, I32), most)
        for s, most in zip(starts, limits, strict=True)
    ]
    if e.shape == x.shape:
        return x
    return e.op("SLICE", [x, starts_of(e, inside), e.sizes(slice_sizes)], e.shape, x.dtype)


def _dynamic_update_slice(e: Emitter, x: Value, update: Value, *starts: Value) -> Value:
    return e.op("DYNAMIC_UPDATE_SLICE", [x, update, starts_of(e, starts)], x.shape, x.dtype)


def _stack(e: Emitter, *parts: Value, axis: int) -> Value:
    if parts[0].dtype in _PACKED:
        return e.op("PACK", parts, e.shape, parts[0].dtype, PackOptions(len(parts), axis))
    row = (*e.shape[:axis], 1, *e.shape[axis + 1 :])
    return e.concatenate([e.reshape(p, row) for p in parts], axis)


def _unstack(e: Emitter, x: Value, *, axis: int) -> Any:
    n = x.shape[axis]
    if x.dtype in (*_PACKED, BOOL):
        return e.node("UNPACK", [x], [(e.shape, x.dtype)] * n, UnpackOptions(n, axis))
    return write(e, lambda x: [lax.index_in_dim(x, i, axis, keepdims=False) for i in range(n)], x)


def _empty(e: Emitter, *_: Value, **__: Any) -> Value:
    return e.broadcast(e.const(0, stored_dtype(e.eqn.outvars[0].aval.dtype)), e.shape)


def _tile(e: Emitter, x: Value, *, reps: Sequence[int]) -> Value:
    return e.op("TILE", [x, e.sizes(reps)], e.shape, x.dtype)


def _iota(e: Emitter, *_: Value, dtype: Any, dimension: int, **__: Any) -> Value:
    size = e.shape[dimension]
    if not isinstance(size, int):
        e.refuse("its size is symbolic", "give an example with constant dimensions")
    line = np.arange(size).astype(stored_dtype(dtype))
    line = line.reshape([size if i == dimension else 1 for i in range(len(e.shape))])
    return e.broadcast(Value(line.shape, line.dtype, "", line), e.shape)


# ---- reductions


def _reducer(op: str) -> Lower:
    def lower(e: Emitter, x: Value, *, axes: Sequence[int], **_: Any) -> Value:
        if not axes:
            return x
        return e.cast(e.reduce(op, e.cast(x, e.wider(op, x.dtype)), axes), x.dtype)

    return lower


def _bool_reducer(op: str) -> Lower:
    def lower(e: Emitter, x: Value, *, axes: Sequence[int], **_: Any) -> Value:
        if x.dtype != BOOL:
            e.refuse("there is no reduction of bits", "reduce booleans")
        return e.reduce(op, x, axes) if axes else x

    return lower


def _arg(op: str, options: type[Any]) -> Lower:
    def lower(e: Emitter, x: Value, *, axes: Sequence[int], index_dtype: Any) -> Value:
        dtype = np.dtype(index_dtype)
        stored = dtype if dtype == np.int64 else I32
        inputs = [e.cast(x, e.wider(op, x.dtype)), e.const(axes[0], I32)]
        return e.cast(e.op(op, inputs, e.shape, stored, options(TENSOR_TYPES[stored])), dtype)

    return lower


def _cumsum(e: Emitter, x: Value, *, axis: int, reverse: bool) -> Value:
    wide = e.cast(x, e.wider("CUMSUM", x.dtype))
    inputs, options = [wide, e.const(axis, I32)], CumsumOptions(False, reverse)
    return e.cast(e.op("CUMSUM", inputs, x.shape, wide.dtype, options), x.dtype)


def _cumulative(combine: Callable[[Any, Any], Any], neutral: Callable[[Any], Any]) -> Lower:
    """A scan by doubling: each step combines with what is 1, 2, 4, ... elements before."""

    def function(x: Any, *, axis: int, reverse: bool) -> Any:
        edge, step = neutral(x.dtype), 1
        while step < x.shape[axis]:
            shift = (-step, step, 0) if reverse else (step, -step, 0)
            config = [shift if i == axis else (0, 0, 0) for i in range(x.ndim)]
            x = combine(x, lax.pad(x, jnp.asarray(edge, x.dtype), config))
            step *= 2
        return x

    return by(function)


def _one(_: Any) -> int:
    return 1


def _least(dtype: Any) -> Any:
    return -math.inf if dtype == F32 else np.iinfo(dtype).min


def _most(dtype: Any) -> Any:
    return math.inf if dtype == F32 else np.iinfo(dtype).max


# ---- sorting


def _top_k(e: Emitter, x: Value, *, k: int, axis: int = -1, **_: Any) -> list[Value]:
    axis %= x.rank
    order = [i for i in range(x.rank) if i != axis] + [axis]
    wide = e.transpose(e.cast(x, e.wider("TOPK_V2", x.dtype)), order)
    values, places = _largest(e, wide, k)
    back = np.argsort(order)
    return [e.cast(e.transpose(values, back), x.dtype), e.transpose(places, back)]


def _approximate_top_k(
    e: Emitter, x: Value, *, k: int, reduction_dimension: int, is_max_k: bool, **_: Any
) -> list[Value]:
    if is_max_k:
        return _top_k(e, x, k=k, axis=reduction_dimension)
    values, places = _top_k(e, _descending(e, x), k=k, axis=reduction_dimension)
    return [_descending(e, values), places]


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


def _sortable(e: Emitter, x: Value) -> Any:
    """In a type that TOPK_V2 orders: uint32 as int32 with the first bit inverted."""
    if x.dtype != np.uint32:
        return e.cast(x, e.wider("TOPK_V2", x.dtype))
    return write(e, lambda x: (x ^ np.uint32(1 << 31)).astype(I32), x)


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
    return Primitive(name, operators, lower, condition, each_part(lower))


PRIMITIVES = (
    _moves("reshape", "RESHAPE", _reshape),
    _moves("squeeze", "RESHAPE", _shape_only),
    _moves("expand_dims", "RESHAPE", _shape_only),
    _moves("transpose", "TRANSPOSE", _transpose),
    _moves("broadcast_in_dim", "BROADCAST_TO", _broadcast_in_dim, "only where no operator repeats"),
    _moves("stack", "PACK, CONCATENATION", _stack),
    _moves("unstack", "UNPACK, SLICE", _unstack),
    Primitive("empty", "none: a constant", _empty),
    Primitive("empty2", "none: a constant", _empty),
    _moves("tile", "TILE", _tile),
    _moves("concatenate", "CONCATENATION", _concatenate),
    _moves("slice", "SLICE, STRIDED_SLICE", _slice),
    _moves("split", "SLICE", by(_split)),
    _moves("rev", "REVERSE_V2", _rev),
    _moves("dynamic_slice", "SLICE, PACK", _dynamic_slice),
    _moves("dynamic_update_slice", "DYNAMIC_UPDATE_SLICE", _dynamic_update_slice),
    _moves("pad", "PAD, PADV2, SLICE", _pad),
    Primitive("iota", "none: a constant", _iota),
    _moves("reduce_sum", "SUM, MEAN", _reducer("SUM"), _SMALL),
    Primitive("reduce_prod", "REDUCE_PROD", _reducer("REDUCE_PROD"), _SMALL),
    Primitive("reduce_max", "REDUCE_MAX", _reducer("REDUCE_MAX"), _SMALL),
    Primitive("reduce_min", "REDUCE_MIN", _reducer("REDUCE_MIN"), _SMALL),
    Primitive("reduce_and", "REDUCE_ALL", _bool_reducer("REDUCE_ALL"), "booleans"),
    Primitive("reduce_or", "REDUCE_ANY", _bool_reducer("REDUCE_ANY"), "booleans"),
    Primitive("argmax", "ARG_MAX", _arg("ARG_MAX", ArgMaxOptions), "no NaN among the values"),
    Primitive("argmin", "ARG_MIN", _arg("ARG_MIN", ArgMinOptions), "no NaN among the values"),
    _moves("cumsum", "CUMSUM", _cumsum, _SMALL),
    Primitive("cumprod", "MUL, PADV2, SLICE", _cumulative(jnp.multiply, _one), _STEPS),
    Primitive("cummax", "MAXIMUM, PADV2, SLICE", _cumulative(jnp.maximum, _least), _STEPS),
    Primitive("cummin", "MINIMUM, PADV2, SLICE", _cumulative(jnp.minimum, _most), _STEPS),
    Primitive("cumlogsumexp", "as log1p", _cumulative(jnp.logaddexp, _least), _STEPS),
    Primitive("top_k", "TOPK_V2", _top_k, "float32, integers of at most 32 bits; no NaN"),
    Primitive("approx_top_k", "TOPK_V2", _approximate_top_k, "float32; exactly"),
    Primitive("sort", "TOPK_V2, GATHER", _sort, "float32, integers of at most 32 bits; no NaN"),
)
