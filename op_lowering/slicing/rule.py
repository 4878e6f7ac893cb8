"""Slices: SLICE, STRIDED_SLICE, SPLIT, SPLIT_V, UNPACK, DYNAMIC_UPDATE_SLICE.

A start that is computed at run time is clamped, as in XLA's dynamic slices, so that the slice stays
inside the tensor. LiteRT's kernels fail there instead (SLICE) or write nothing (STRIDED_SLICE).
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.custom_batching import custom_vmap

from jaxdelegate.op_lowering.common.downcast import downcast
from jaxdelegate.op_lowering.common.fusion_barrier import fused_alone, traced_once
from jaxdelegate.op_lowering.common.movement import integers, why_not_axis
from jaxdelegate.op_lowering.common.quantized_cache import QuantizedCache
from jaxdelegate.op_lowering.common.signature import ANY, KNOWN, MOVED, WHOLE, moving_rule
from jaxdelegate.op_lowering.records.record import NoOptions, Options
from jaxdelegate.op_lowering.rule import Function, Lowered, LoweringContext, Op, first_reason, table
from jaxdelegate.op_lowering.slicing import cache_update_mosaic
from jaxdelegate.op_lowering.slicing.options import (
    SplitOptions,
    SplitVOptions,
    StridedSliceOptions,
    UnpackOptions,
)
from jaxdelegate.op_lowering.spec import Shape, Specs, TensorSpec


def _why_not_slice(op: Op[NoOptions]) -> str | None:
    x, begin, size = op.inputs[:3]
    rank = len(x.shape)
    aligned = begin.shape == size.shape == (rank,)
    reason = None if aligned else f"begin and size must be vectors of {rank}"
    return reason or _why_not_inside(x, begin, op.outputs[0])


def _why_not_inside(x: TensorSpec, begin: TensorSpec, y: TensorSpec) -> str | None:
    starts = (0,) * len(x.shape) if begin.const is None else integers(begin)
    reach = zip(starts, y.shape, x.shape, strict=False)
    inside = len(x.shape) == len(y.shape) and all(0 <= i <= i + n <= end for i, n, end in reach)
    return None if inside else f"{list(y.shape)} values at {starts} leave {list(x.shape)}"


def _lower_slice(op: Op[NoOptions]) -> Function:
    sizes, begin = op.outputs[0].shape, op.inputs[1]

    def moving_slice(x: jax.Array, begin: jax.Array, _size: jax.Array) -> tuple[jax.Array]:
        return (lax.dynamic_slice(x, begin, sizes, allow_negative_indices=False),)

    if begin.const is None:
        return moving_slice
    starts = integers(begin)
    limits = [start + size for start, size in zip(starts, sizes, strict=True)]
    return lambda x, _begin, _size: (lax.slice(x, starts, limits),)


@dataclasses.dataclass(frozen=True)
class _Moving:
    """A slice of one dimension that starts at an entry of a begin tensor computed at run time."""

    entry: int
    count: int
    stride: int = 1

    @property
    def span(self) -> int:
        return (self.count - 1) * self.stride + 1 if self.count else 0


@dataclasses.dataclass(frozen=True)
class _Slicing:
    """The entries of begin, end and strides, as kernels/strided_slice.cc reads them.

    None: the tensor is computed at run time.
    """

    options: StridedSliceOptions
    begin: tuple[int, ...] | None
    end: tuple[int, ...] | None
    strides: tuple[int, ...]

    def dimensions(self, shape: Shape) -> list[tuple[int, int | None]]:
        """The input's dimensions and the new ones: size, entry that slices it (None: whole)."""
        o, n = self.options, len(self.strides)
        is_new = [_bit(o.new_axis_mask & ~o.ellipsis_mask, j) for j in range(n)]
        rank = len(shape) + sum(is_new)
        ellipsis = max(rank + 1 - n, 1)  # at least one dimension; numpy's may be none
        entries: list[int | None] = []
        for j in range(n):
            entries += [None] * ellipsis if _bit(o.ellipsis_mask, j) else [j]
        entries = (entries + [None] * rank)[:rank]
        sizes = iter(shape)
        return [(1, None) if j is not None and is_new[j] else (next(sizes, 0), j) for j in entries]

    def why_not(self, j: int | None, n: int) -> str | None:
        """A reason if the range of entry j in a dimension of n is not known before the run."""
        if j is None:
            return None
        if self.strides[j] == 0:
            return "a stride is zero"
        if self._is_moving(j):
            return self._why_not_moving(j, n)
        if _bit(self.options.shrink_axis_mask, j):
            return None if 0 <= self._start(j, n) < n else f"an index is outside {n}"
        late = self.end is None and not _bit(self.options.end_mask, j)
        return "end is computed at run time; XLA needs it constant" if late else None

    def window(self, j: int | None, n: int) -> range | _Moving:
        """The elements of a dimension of n that entry j selects."""
        if j is None:
            return range(n)
        is_index = _bit(self.options.shrink_axis_mask, j)
        if self._is_moving(j):
            return _Moving(j, 1) if is_index else _Moving(j, self._size(j), self.strides[j])
        start = self._start(j, n)
        return range(start, start + 1) if is_index else self._from(start, j, n)

    def _is_moving(self, j: int) -> bool:
        return self.begin is None and not _bit(self.options.begin_mask, j)

    def _why_not_moving(self, j: int, n: int) -> str | None:
        o = self.options
        if _bit(o.shrink_axis_mask, j):
            return None if n else "an index is outside 0"
        if not o.offset or self.end is None or self.strides[j] < 0 or _bit(o.end_mask, j):
            return "begin is computed at run time; XLA needs it constant"
        longer = _Moving(j, self._size(j), self.strides[j]).span > n
        return f"the slice is longer than a dimension of {n}" if longer else None

    def _size(self, j: int) -> int:
        """The number of elements: with `offset` end is a size, which the stride divides."""
        return 0 if self.end is None else max(-(-self.end[j] // self.strides[j]), 0)

    def _start(self, j: int, n: int) -> int:
        backward = self.strides[j] < 0
        if self.begin is None or _bit(self.options.begin_mask, j):
            return n - 1 if backward else 0
        return _clamped(self.begin[j], n, backward=backward)

    def _from(self, start: int, j: int, n: int) -> range:
        o, backward = self.options, self.strides[j] < 0
        stop = -1 if backward else n
        if self.end is not None and not _bit(o.end_mask, j):
            stop = _clamped(self.end[j] + (start if o.offset else 0), n, backward=backward)
        return range(start, stop, self.strides[j])


def _bit(mask: int, j: int) -> bool:
    return bool(mask >> j & 1)


def _clamped(at: int, n: int, *, backward: bool) -> int:
    at += n if at < 0 else 0
    return min(max(at, -1), n - 1) if backward else min(max(at, 0), n)


def _slicing(op: Op[StridedSliceOptions]) -> _Slicing:
    begin, end = (None if spec.const is None else integers(spec) for spec in op.inputs[1:3])
    return _Slicing(op.options, begin, end, integers(op.inputs[3]))


def _why_not_strided_slice(op: Op[StridedSliceOptions]) -> str | None:
    x, *places = op.inputs[:4]
    vectors = len({place.shape for place in places}) == len(places[0].shape) == 1
    reason = None if vectors else "begin, end and strides must be vectors of one length"
    return reason or _why_not_taken(_slicing(op), x.shape, op.outputs[0].shape)


def _why_not_taken(slicing: _Slicing, shape: Shape, out: Shape) -> str | None:
    dimensions = slicing.dimensions(shape)
    reason = first_reason(*(slicing.why_not(j, n) for n, j in dimensions))
    if reason is not None:
        return reason
    windows = [slicing.window(j, n) for n, j in dimensions]
    taken = math.prod(w.count if isinstance(w, _Moving) else len(w) for w in windows)
    alike = taken == math.prod(out) and math.prod(n for n, _ in dimensions) == math.prod(shape)
    return None if alike else f"the masks do not lead from {list(shape)} to {list(out)}"


def _lower_strided_slice(op: Op[StridedSliceOptions]) -> Function:
    slicing, shape = _slicing(op), op.outputs[0].shape
    dimensions = slicing.dimensions(op.inputs[0].shape)
    sizes = [n for n, _ in dimensions]
    windows = [slicing.window(j, n) for n, j in dimensions]
    moving = {i: w for i, w in enumerate(windows) if isinstance(w, _Moving)}
    spans = [moving[i].span if i in moving else n for i, n in enumerate(sizes)]
    fixed = [range(0, w.span, w.stride) if isinstance(w, _Moving) else w for w in windows]

    def strided_slice(
        x: jax.Array, begin: jax.Array, _end: jax.Array, _strides: jax.Array
    ) -> tuple[jax.Array]:
        x = x.reshape(sizes)
        if moving:
            zero = jnp.zeros((), begin.dtype)
            starts = [begin[moving[i].entry] if i in moving else zero for i in range(x.ndim)]
            x = lax.dynamic_slice(x, starts, spans)
        return (_take_ranges(x, fixed).reshape(shape),)

    return strided_slice


def _take_ranges(x: jax.Array, ranges: list[range]) -> jax.Array:
    """Slice each dimension by a range; XLA slices forward only, so negative steps are reversed."""
    low = [min(r[0], r[-1]) if r else 0 for r in ranges]
    high = [max(r[0], r[-1]) + 1 if r else 0 for r in ranges]
    x = lax.slice(x, low, high, [abs(r.step) for r in ranges])
    return lax.rev(x, [i for i, r in enumerate(ranges) if r.step < 0])


def _why_not_split(op: Op[SplitOptions]) -> str | None:
    return _why_not_pieces(op.inputs[1], op.inputs[0], op.outputs)


def _why_not_split_v(op: Op[SplitVOptions]) -> str | None:
    return _why_not_pieces(op.inputs[0], op.inputs[2], op.outputs)


def _why_not_pieces(x: TensorSpec, axis: TensorSpec, outputs: Specs) -> str | None:
    if math.prod(axis.shape) != 1:
        return f"{axis.name!r} must hold one axis"
    at = integers(axis)[0]
    return why_not_axis(at, len(x.shape)) or _why_not_sum(x, at, outputs)


def _why_not_sum(x: TensorSpec, axis: int, outputs: Specs) -> str | None:
    n = x.shape[axis]
    if any(len(y.shape) != len(x.shape) for y in outputs):
        return "the pieces and the tensor differ in rank"
    sizes = [y.shape[axis] for y in outputs]
    return None if sum(sizes) == n else f"pieces of {sizes} do not make up {n}"


def _lower_split(op: Op[SplitOptions]) -> Function:
    cut = _cutter(op.inputs[1], integers(op.inputs[0])[0], op.outputs)
    return lambda _axis, x: cut(x)


def _lower_split_v(op: Op[SplitVOptions]) -> Function:
    cut = _cutter(op.inputs[0], integers(op.inputs[2])[0], op.outputs)
    return lambda x, _sizes, _axis: cut(x)


def _cutter(x: TensorSpec, axis: int, outputs: Specs) -> Function:
    axis %= len(x.shape)
    ends = list(itertools.accumulate(y.shape[axis] for y in outputs))
    starts = [0, *ends[:-1]]

    def cut(x: jax.Array) -> tuple[jax.Array, ...]:
        bounds = zip(starts, ends, strict=True)
        return tuple(lax.slice_in_dim(x, start, end, axis=axis) for start, end in bounds)

    return cut


def _why_not_unpack(op: Op[UnpackOptions]) -> str | None:
    x, axis = op.inputs[0], op.options.axis
    reason = why_not_axis(axis, len(x.shape))
    if reason is not None:
        return reason
    n = x.shape[axis]
    return None if n == len(op.outputs) else f"{n} slices for {len(op.outputs)} outputs"


def _lower_unpack(op: Op[UnpackOptions]) -> Function:
    axis, n = op.options.axis, len(op.outputs)
    return lambda x: tuple(lax.index_in_dim(x, i, axis, keepdims=False) for i in range(n))


def _why_not_dynamic_update_slice(op: Op[Options]) -> str | None:
    x, update, start = op.inputs[:3]
    inside = len(x.shape) == len(update.shape) and all(
        n <= end for n, end in zip(update.shape, x.shape, strict=True)
    )
    aligned = start.shape == (len(x.shape),)
    return first_reason(
        None if inside else f"{list(update.shape)} does not fit into {list(x.shape)}",
        None if aligned else f"{start.name!r} must be a vector of {len(x.shape)}",
    )


# Elements of a cache, for which it matters where updates are written.
_CACHE = 1 << 12
# The name of an axis of `jax.vmap` over tokens of one sequence: on a CPU their updates are all
# written to its one cache, which so has no such axis. Their masks say what each of them sees.
ONE_SEQUENCE = "tokens of one sequence"


def _lower_dynamic_update_slice(op: Op[NoOptions]) -> Function:
    x, update = op.inputs[:2]
    last = np.subtract(x.shape, update.shape).astype(op.inputs[2].dtype)

    updated = _update_of(op.context, x.shape)

    def dynamic_update_slice(x: Any, update: jax.Array, start: jax.Array) -> tuple[Any]:
        start = jnp.clip(start, np.zeros_like(last), last)
        if isinstance(x, QuantizedCache):
            if last[x.axis]:  # a part of an entry, which would change its scale
                return (updated(x.astype(update.dtype), update, start),)
            new = QuantizedCache.of(update, x.axis)
            return (QuantizedCache(*(updated(*pair, start) for pair in zip(x, new, strict=True))),)
        return (updated(x, downcast(update, x.dtype), start),)

    return Lowered(dynamic_update_slice, {}, carries=True)


def _update_of(context: LoweringContext, shape: Shape) -> Callable[..., jax.Array]:
    is_cache = math.prod(shape) >= _CACHE
    if context.kernels.cpu:
        return _UPDATED_IN_PLACE if is_cache else _UPDATED
    return _updated_by_kernel if is_cache and context.kernels.mosaic else _updated


def _updated(x: jax.Array, update: jax.Array, start: jax.Array) -> jax.Array:
    return lax.dynamic_update_slice(x, update, start, allow_negative_indices=False)


def _updated_by_kernel(x: jax.Array, update: jax.Array, start: jax.Array) -> jax.Array:
    """For caches on a TPU, where an update is one place and the kernel supports it."""
    axis = cache_update_mosaic.axis_of(x.shape, update.shape, x.dtype)
    if axis is None:
        return _updated(x, update, start)
    place = start[axis].astype(np.int32)[None]
    return cache_update_mosaic.update_places(x[None], update.squeeze(axis)[None], place, axis)[0]


def _updated_on_cpu(*, in_place: bool) -> Callable[..., jax.Array]:
    """Updates on a CPU, of caches `in_place`.

    XLA might fuse an update into each reader of its result, and then copies the cache for each. A
    batch with several starts would be a scatter, which is slow on a CPU; it is a loop, with an
    iteration for each item. So is a batch over ONE_SEQUENCE, whose items update one array.
    """
    call = custom_vmap(fused_alone(_updated) if in_place else _updated)

    @call.def_vmap
    def _(size: int, batched: Sequence[bool], *arrays: jax.Array) -> tuple[jax.Array, bool]:
        x, update, starts = arrays
        is_one = not batched[0] and batched[1] and _is_bound(ONE_SEQUENCE)
        if not is_one and not (in_place and all(batched[:2])):
            axes = [0 if is_batched else None for is_batched in batched]
            return jax.vmap(_updated, axes, axis_size=size)(*arrays), True

        def update_item(i: jax.Array, x: jax.Array) -> jax.Array:
            start = starts[i] if batched[2] else starts
            if is_one:
                return _updated(x, update[i], start)
            item = lax.dynamic_index_in_dim(update, i, 0)
            return _updated(x, item, jnp.concatenate([i.astype(start.dtype)[None], start]))

        return lax.fori_loop(0, size, update_item, x), not is_one

    return call


def _is_bound(axis: str) -> bool:
    try:
        lax.axis_size(axis)
    except NameError:
        return False
    return True


_UPDATED_IN_PLACE: Callable[..., jax.Array] = traced_once(_updated_on_cpu(in_place=True))
_UPDATED: Callable[..., jax.Array] = traced_once(_updated_on_cpu(in_place=False))


RULES = table(
    moving_rule("SLICE", 8, [MOVED, WHOLE, WHOLE], _lower_slice, _why_not_slice),
    moving_rule(
        "STRIDED_SLICE",
        8,
        [MOVED, WHOLE, WHOLE, KNOWN],
        _lower_strided_slice,
        _why_not_strided_slice,
    ),
    moving_rule("SPLIT", 5, [KNOWN, MOVED], _lower_split, _why_not_split),
    moving_rule("SPLIT_V", 3, [MOVED, ANY, KNOWN], _lower_split_v, _why_not_split_v),
    moving_rule("UNPACK", 6, [MOVED], _lower_unpack, _why_not_unpack),
    moving_rule(
        "DYNAMIC_UPDATE_SLICE",
        6,
        [MOVED, MOVED, WHOLE],
        _lower_dynamic_update_slice,
        _why_not_dynamic_update_slice,
    ),
)
