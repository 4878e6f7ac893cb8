"""Slices, each operator as LiteRT's kernels/<operator>.cc computes it."""

import itertools
from collections.abc import Sequence

import numpy as np

from jaxdelegate.op_lowering.records.record import Options
from jaxdelegate.op_lowering.slicing.options import SplitOptions, StridedSliceOptions, UnpackOptions
from jaxdelegate.op_lowering.spec import Shape, Specs
from jaxdelegate.reference.kernel import Array, Kernel, same_shape, without_specs
from jaxdelegate.reference.movement import ints, known, require_one_scaling, resolved_axis

_MOST_PARTS = 1 << 20  # about as many as a file may have tables


def slice_shape(_o: Options, inputs: Specs) -> tuple[Shape | None, ...]:
    """The sizes; -1 is what remains after begin, and so needs it."""
    x, begin, size = inputs[:3]
    sizes = None if size.const is None else ints(size.const)
    if sizes is not None and begin.const is not None:
        return (_sizes(x.shape, ints(begin.const), sizes),)
    return (None if sizes is None or -1 in sizes else tuple(sizes),)


def slice_(_o: Options, x: Array, begin: Array, size: Array) -> Array:
    starts = ints(begin)
    sizes = _sizes(x.shape, starts, ints(size))
    return x[tuple(slice(i, i + n) for i, n in zip(starts, sizes, strict=True))]


def _sizes(shape: Shape, begin: list[int], size: list[int]) -> Shape:
    sizes = [n - i if s == -1 else s for n, i, s in zip(shape, begin, size, strict=True)]
    if any(i < 0 or s < 0 or i + s > n for n, i, s in zip(shape, begin, sizes, strict=True)):
        raise ValueError(f"SLICE: {size} at {begin} leaves {list(shape)}")
    return tuple(sizes)


def strided_slice_shape(o: StridedSliceOptions, inputs: Specs) -> tuple[Shape | None, ...]:
    """The sizes that the constants among begin, end and strides decide.

    A dimension that is dropped, new or whole needs none; with `offset` end is a size.
    """
    x, *entries = inputs[:4]
    begin, end, strides = (None if e.const is None else ints(e.const) for e in entries)
    if strides is None:
        return (None,)
    if 0 in strides:
        raise ValueError("STRIDED_SLICE: strides must not be zero")
    sizes = [
        _taken(o, n, j, begin, end, strides)
        for n, j in _dimensions(o, x.shape, len(strides))
        if j is None or not o.shrink_axis_mask >> j & 1
    ]
    return (None if None in sizes else tuple(n for n in sizes if n is not None),)


def _taken(
    o: StridedSliceOptions,
    n: int,
    j: int | None,
    begin: list[int] | None,
    end: list[int] | None,
    strides: list[int],
) -> int | None:
    """How many elements of a dimension of n entry j selects; None if that is not known yet."""
    if j is None:
        return n
    from_start, to_end = o.begin_mask >> j & 1, o.end_mask >> j & 1
    if o.offset and end is not None and not to_end and not from_start:
        return max(-(-end[j] // strides[j]), 0)
    if (begin is None and not from_start) or (end is None and not to_end):
        return None
    none = [0] * len(strides)
    return len(_positions(o, n, j, begin or none, end or none, strides))


def strided_slice(
    o: StridedSliceOptions, x: Array, begin: Array, end: Array, strides: Array
) -> Array:
    """The masks are those of kernels/strided_slice.cc."""
    entries = (ints(begin), ints(end), ints(strides))
    dimensions = _dimensions(o, x.shape, strides.size)
    x = x.reshape([n for n, _ in dimensions])
    dropped, taken = [], []
    for axis, (n, j) in enumerate(dimensions):
        p = range(n) if j is None else _positions(o, n, j, *entries)
        taken.append(slice(p.start, p.stop if p.stop >= 0 else None, p.step) if p else slice(0))
        if j is not None:
            dropped += [axis] * (o.shrink_axis_mask >> j & 1)
    return np.squeeze(x[tuple(taken)], tuple(dropped))


def _dimensions(o: StridedSliceOptions, shape: Shape, n: int) -> list[tuple[int, int | None]]:
    """The dimensions, the new ones among them: size, and the entry that slices it (None: whole).

    The ellipsis stands for the dimensions without an entry, at least one, as in the kernel (numpy's
    may stand for none); surplus entries are ignored.
    """
    is_ellipsis = [bool(o.ellipsis_mask >> j & 1) for j in range(n)]
    is_new = [bool(o.new_axis_mask >> j & 1) and not is_ellipsis[j] for j in range(n)]
    rank = len(shape) + sum(is_new)
    sizes = iter(shape)
    dimensions: list[tuple[int, int | None]] = []
    for j in range(n):
        for _ in range(max(rank - n + 1, 1) if is_ellipsis[j] else 1):
            if len(dimensions) < rank:
                named = None if is_ellipsis[j] or is_new[j] else j
                dimensions.append((1 if is_new[j] else next(sizes, 0), named))
    return [*dimensions, *((size, None) for size in sizes)]


def _positions(
    o: StridedSliceOptions,
    n: int,
    j: int,
    begin: Sequence[int],
    end: Sequence[int],
    strides: Sequence[int],
) -> range:
    """The elements of a dimension of n that entry j selects (reference/strided_slice.h)."""
    stride = strides[j]
    if stride == 0:
        raise ValueError("STRIDED_SLICE: strides must not be zero")
    first, last = (0, n) if stride > 0 else (-1, n - 1)
    start = min(max(begin[j] + n * (begin[j] < 0), first), last)
    if o.begin_mask >> j & 1:
        start = 0 if stride > 0 else n - 1
    if o.shrink_axis_mask >> j & 1:
        if not 0 <= start < n:
            raise ValueError(f"STRIDED_SLICE: index {begin[j]} is outside a dimension of {n}")
        return range(start, start + 1)
    stop = end[j] + start * o.offset
    stop = min(max(stop + n * (stop < 0), first), last)
    if o.end_mask >> j & 1:
        stop = n if stride > 0 else -1
    return range(start, stop, stride)


def split_shape(o: SplitOptions, inputs: Specs) -> tuple[Shape | None, ...]:
    axis, x = inputs[:2]
    if o.num_splits > _MOST_PARTS:
        raise ValueError(f"SPLIT: at most {_MOST_PARTS} parts, got {o.num_splits}")
    if axis.const is None:
        return (None,) * o.num_splits
    at = resolved_axis(ints(axis.const)[0], len(x.shape), "SPLIT")
    return (_resized(x.shape, at, _even(o, x.shape[at])),) * o.num_splits


def _even(o: SplitOptions, n: int) -> int:
    if o.num_splits <= 0 or n % o.num_splits:
        raise ValueError(f"SPLIT: {n} does not divide into {o.num_splits}")
    return n // o.num_splits


def _resized(shape: Shape, axis: int, size: int) -> Shape:
    return (*shape[:axis], size, *shape[axis + 1 :])


def split(o: SplitOptions, axis: Array, x: Array) -> tuple[Array, ...]:
    at = resolved_axis(ints(axis)[0], x.ndim, "SPLIT")
    return _cut(x, [_even(o, x.shape[at])] * o.num_splits, at)


def _cut(x: Array, sizes: list[int], axis: int) -> tuple[Array, ...]:
    return tuple(np.split(x, list(itertools.accumulate(sizes))[:-1], axis))


def split_v_shape(_o: Options, inputs: Specs) -> tuple[Shape | None, ...]:
    x, sizes, axis = inputs[:3]
    values = known(sizes, axis)
    if values is None:
        return (None,) * sizes.shape[0]
    at = resolved_axis(values[1][0], len(x.shape), "SPLIT_V")
    return tuple(_resized(x.shape, at, n) for n in _parts(values[0], x.shape[at]))


def split_v(_o: Options, x: Array, sizes: Array, axis: Array) -> tuple[Array, ...]:
    """One size may be -1, the rest."""
    at = resolved_axis(ints(axis)[0], x.ndim, "SPLIT_V")
    return _cut(x, _parts(ints(sizes), x.shape[at]), at)


def _parts(sizes: list[int], n: int) -> list[int]:
    rest = n - sum(size for size in sizes if size != -1)
    parts = [rest if size == -1 else size for size in sizes]
    if sizes.count(-1) > 1 or min(parts, default=0) < 0 or sum(parts) != n:
        raise ValueError(f"SPLIT_V: {sizes} do not make up {n}")
    return parts


def unpack_shape(o: UnpackOptions, inputs: Specs) -> tuple[Shape | None, ...]:
    shape = inputs[0].shape
    axis = _unpacked_axis(o, shape)
    if o.num > _MOST_PARTS:
        raise ValueError(f"UNPACK: at most {_MOST_PARTS} parts, got {o.num}")
    return ((*shape[:axis], *shape[axis + 1 :]),) * o.num


def unpack(o: UnpackOptions, inputs: Specs, outputs: Specs, x: Array) -> tuple[Array, ...]:
    require_one_scaling("UNPACK", inputs[0], *outputs)
    return tuple(np.moveaxis(x, _unpacked_axis(o, x.shape), 0))


def _unpacked_axis(o: UnpackOptions, shape: Shape) -> int:
    axis = resolved_axis(o.axis, len(shape), "UNPACK")
    if shape[axis] != o.num:
        raise ValueError(f"UNPACK: num must be {shape[axis]}, got {o.num}")
    return axis


def settled_update(_o: Options, inputs: Specs) -> tuple[Shape | None, ...]:
    """The shape is known even if the update's is not."""
    return (None if inputs[0].is_dynamic else inputs[0].shape,)


def dynamic_update_slice(_o: Options, x: Array, update: Array, start: Array) -> Array:
    """A start is clamped so that the update fits."""
    if any(n > end for n, end in zip(update.shape, x.shape, strict=True)):
        raise ValueError(f"DYNAMIC_UPDATE_SLICE: {update.shape} does not fit into {x.shape}")
    room = zip(ints(start), x.shape, update.shape, strict=True)
    first = [min(max(i, 0), end - n) for i, end, n in room]
    y = x.copy()
    y[tuple(slice(i, i + n) for i, n in zip(first, update.shape, strict=True))] = update
    return y


KERNELS = {
    "SLICE": Kernel(without_specs(slice_), slice_shape),
    "STRIDED_SLICE": Kernel(without_specs(strided_slice), strided_slice_shape),
    "SPLIT": Kernel(without_specs(split), split_shape),
    "SPLIT_V": Kernel(without_specs(split_v), split_v_shape),
    "UNPACK": Kernel(unpack, unpack_shape),
    "DYNAMIC_UPDATE_SLICE": Kernel(
        without_specs(dynamic_update_slice), same_shape, settled=settled_update
    ),
}
