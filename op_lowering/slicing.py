"""Slices: SLICE, STRIDED_SLICE, SPLIT, SPLIT_V, UNPACK, DYNAMIC_UPDATE_SLICE.

A start that is computed at run time is clamped, as XLA's dynamic slices do, so that the slice lies inside the
tensor. LiteRT's kernels fail there instead (SLICE) or write nothing (STRIDED_SLICE).
"""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdelegate.op_lowering.movement import (
    integers,
    why_not_axis,
    why_not_indices,
    why_not_moved,
)
from jaxdelegate.op_lowering.options import (
    DynamicUpdateSliceOptions,
    Options,
    SliceOptions,
    SplitOptions,
    SplitVOptions,
    StridedSliceOptions,
    UnpackOptions,
)
from jaxdelegate.op_lowering.rule import (
    Function,
    LoweringContext,
    OpRule,
    first_reason,
    why_not_const,
)
from jaxdelegate.op_lowering.spec import Shape, Specs, TensorSpec


def _why_not_slice(
    context: LoweringContext, _o: SliceOptions, inputs: Specs, outputs: Specs
) -> str | None:
    x, begin, size = inputs[:3]
    rank = len(x.shape)
    aligned = begin.shape == size.shape == (rank,)
    return first_reason(
        why_not_moved(context, x, outputs[0]),
        why_not_indices(begin, size),
        None if aligned else f"begin and size must be vectors of {rank}",
    ) or _why_not_inside(x, begin, outputs[0])


def _why_not_inside(x: TensorSpec, begin: TensorSpec, y: TensorSpec) -> str | None:
    starts = (0,) * len(x.shape) if begin.const is None else integers(begin)
    reach = zip(starts, y.shape, x.shape, strict=False)
    inside = len(x.shape) == len(y.shape) and all(0 <= i <= i + n <= end for i, n, end in reach)
    return None if inside else f"{list(y.shape)} values at {starts} leave {list(x.shape)}"


def _lower_slice(
    _context: LoweringContext, _o: SliceOptions, inputs: Specs, outputs: Specs
) -> Function:
    sizes, begin = outputs[0].shape, inputs[1]

    def moving_slice(x: jax.Array, begin: jax.Array, _size: jax.Array) -> tuple[jax.Array]:
        return (lax.dynamic_slice(x, begin, sizes, allow_negative_indices=False),)

    if begin.const is None:
        return moving_slice
    starts = integers(begin)
    limits = [start + size for start, size in zip(starts, sizes, strict=True)]
    return lambda x, _begin, _size: (lax.slice(x, starts, limits),)


SLICE = OpRule("SLICE", SliceOptions, 8, _why_not_slice, _lower_slice, arity=3)


@dataclasses.dataclass(frozen=True)
class _Moving:
    """A slice of one dimension whose start is entry `position` of a begin tensor computed at run time."""

    position: int
    count: int
    stride: int = 1

    @property
    def span(self) -> int:
        """How many elements it reaches over."""
        return max((self.count - 1) * self.stride + 1, 0) if self.count else 0


_Window = range | _Moving | str  # str: why the dimension cannot be sliced


@dataclasses.dataclass(frozen=True)
class _Spec:
    """begin, end and strides with their masks; kernels/strided_slice.cc gives the masks their meaning."""

    options: StridedSliceOptions
    begin: tuple[int, ...] | None
    end: tuple[int, ...] | None
    strides: tuple[int, ...]

    def windows(self, shape: Shape) -> tuple[Shape, list[_Window]]:
        """The input's shape with the new axes in it, and what is taken of each of its dimensions."""
        entries = self._entries(len(shape))
        old = iter(shape)
        sizes = tuple(1 if is_new else next(old, 0) for _, is_new in entries)
        windows: list[_Window] = [
            range(n) if position is None else self._window(position, n)
            for n, (position, _) in zip(sizes, entries, strict=True)
        ]
        return sizes, windows

    def _entries(self, rank: int) -> list[tuple[int | None, bool]]:
        """For each dimension of the widened input: the entry that slices it (None: none does), and is it new."""
        o, n = self.options, len(self.strides)
        new = [_bit(o.new_axis_mask, j) and not _bit(o.ellipsis_mask, j) for j in range(n)]
        rank += sum(new)
        ellipsis = max(rank + 1 - n, 1)  # the kernel lets an ellipsis stand for one dimension at least
        entries: list[tuple[int | None, bool]] = []
        for j, is_new in enumerate(new):
            one = (None if is_new else j, is_new)
            entries += [(None, False)] * ellipsis if _bit(o.ellipsis_mask, j) else [one]
        return (entries + [(None, False)] * rank)[:rank]

    def _window(self, j: int, n: int) -> _Window:
        o, stride = self.options, self.strides[j]
        is_index = _bit(o.shrink_axis_mask, j)
        if stride == 0:
            return "a stride is zero"
        if self.begin is None and not _bit(o.begin_mask, j):
            return _Moving(j, 1) if is_index else self._moving(j)
        start = self._start(j, n)
        if is_index:
            return range(start, start + 1) if 0 <= start < n else f"an index is outside {n}"
        if self.end is None and not _bit(o.end_mask, j):
            return "end is computed at run time; XLA needs it constant"
        return range(start, self._stop(j, n, start), stride)

    def _moving(self, j: int) -> _Window:
        o, stride = self.options, self.strides[j]
        if not o.offset or self.end is None or _bit(o.end_mask, j) or stride < 0:
            return "begin is computed at run time; XLA needs it constant"
        return _Moving(j, max(-(-self.end[j] // stride), 0), stride)

    def _start(self, j: int, n: int) -> int:
        backward = self.strides[j] < 0
        if self.begin is None or _bit(self.options.begin_mask, j):
            return n - 1 if backward else 0
        return _clamped(self.begin[j], n, backward)

    def _stop(self, j: int, n: int, start: int) -> int:
        backward = self.strides[j] < 0
        if self.end is None or _bit(self.options.end_mask, j):
            return -1 if backward else n
        return _clamped(self.end[j] + (start if self.options.offset else 0), n, backward)


def _bit(mask: int, j: int) -> bool:
    return bool(mask >> j & 1)


def _clamped(at: int, n: int, backward: bool) -> int:
    """A begin or end, counted from the end where negative, within the positions its direction may name."""
    at += n if at < 0 else 0
    return min(max(at, -1), n - 1) if backward else min(max(at, 0), n)


def _strided_spec(o: StridedSliceOptions, inputs: Specs) -> _Spec:
    begin, end = (None if spec.const is None else integers(spec) for spec in inputs[1:3])
    return _Spec(o, begin, end, integers(inputs[3]))


def _why_not_strided_slice(
    context: LoweringContext, o: StridedSliceOptions, inputs: Specs, outputs: Specs
) -> str | None:
    x, *places = inputs[:4]
    vectors = len({p.shape for p in places}) == 1 and len(places[0].shape) == 1
    reason = first_reason(
        why_not_moved(context, x, outputs[0]),
        why_not_indices(*places),
        why_not_const(places[2]),
        None if vectors else "begin, end and strides must be vectors of one length",
    )
    return reason or _why_not_windows(_strided_spec(o, inputs), x.shape, outputs[0].shape)


def _why_not_windows(spec: _Spec, shape: Shape, out: Shape) -> str | None:
    sizes, windows = spec.windows(shape)
    reason = next((w for w in windows if isinstance(w, str)), None)
    if reason is not None:
        return reason
    if any(isinstance(w, _Moving) and w.span > n for w, n in zip(windows, sizes, strict=True)):
        return f"the slice is longer than a dimension of {list(shape)}"
    taken = int(np.prod([_length(w) for w in windows], dtype=np.int64))
    want = int(np.prod(out, dtype=np.int64))
    return None if taken == want else f"masks and shapes disagree: {taken} values for {list(out)}"


def _length(window: _Window) -> int:
    return window.count if isinstance(window, _Moving) else len(window)


def _lower_strided_slice(
    _context: LoweringContext, o: StridedSliceOptions, inputs: Specs, outputs: Specs
) -> Function:
    widened, windows = _strided_spec(o, inputs).windows(inputs[0].shape)
    moving = {i: w for i, w in enumerate(windows) if isinstance(w, _Moving)}
    spans = [moving[i].span if i in moving else n for i, n in enumerate(widened)]
    fixed = [range(0, w.span, w.stride) if isinstance(w, _Moving) else w for w in windows]

    def strided_slice(
        x: jax.Array, begin: jax.Array, _end: jax.Array, _strides: jax.Array
    ) -> tuple[jax.Array]:
        x = x.reshape(widened)
        if moving:
            zero = jnp.zeros((), begin.dtype)
            starts = [begin[moving[i].position] if i in moving else zero for i in range(x.ndim)]
            x = lax.dynamic_slice(x, starts, spans)
        return (_take_ranges(x, fixed).reshape(outputs[0].shape),)

    return strided_slice


def _take_ranges(x: jax.Array, ranges: list[range]) -> jax.Array:
    """What each range takes of its dimension; XLA slices forward only, and reverses after."""
    low = [min(r[0], r[-1]) if r else 0 for r in ranges]
    high = [max(r[0], r[-1]) + 1 if r else 0 for r in ranges]
    x = lax.slice(x, low, high, [abs(r.step) for r in ranges])
    return lax.rev(x, [i for i, r in enumerate(ranges) if r.step < 0])


STRIDED_SLICE = OpRule(
    "STRIDED_SLICE", StridedSliceOptions, 8, _why_not_strided_slice, _lower_strided_slice, arity=4
)


def _why_not_split(
    context: LoweringContext, o: SplitOptions, inputs: Specs, outputs: Specs
) -> str | None:
    return _why_not_pieces(context, inputs[1], inputs[0], outputs)


def _why_not_split_v(
    context: LoweringContext, o: SplitVOptions, inputs: Specs, outputs: Specs
) -> str | None:
    return _why_not_pieces(context, inputs[0], inputs[2], outputs)


def _why_not_pieces(
    context: LoweringContext, x: TensorSpec, axis: TensorSpec, outputs: Specs
) -> str | None:
    reason = first_reason(
        why_not_moved(context, x, *outputs),
        why_not_const(axis),
        why_not_indices(axis),
        None if np.prod(axis.shape, dtype=int) == 1 else f"{axis.name!r} must hold one axis",
    )
    if reason is not None:
        return reason
    at = integers(axis)[0]
    return why_not_axis(at, len(x.shape)) or _why_not_sum(x, at, outputs)


def _why_not_sum(x: TensorSpec, axis: int, outputs: Specs) -> str | None:
    n = x.shape[axis]
    if any(len(y.shape) != len(x.shape) for y in outputs):
        return "the pieces have another rank than the tensor"
    sizes = [y.shape[axis] for y in outputs]
    return None if sum(sizes) == n else f"pieces of {sizes} do not make up {n}"


def _lower_split(
    _context: LoweringContext, _o: SplitOptions, inputs: Specs, outputs: Specs
) -> Function:
    cut = _cutter(inputs[1], integers(inputs[0])[0], outputs)
    return lambda _axis, x: cut(x)


def _lower_split_v(
    _context: LoweringContext, _o: SplitVOptions, inputs: Specs, outputs: Specs
) -> Function:
    cut = _cutter(inputs[0], integers(inputs[2])[0], outputs)
    return lambda x, _sizes, _axis: cut(x)


def _cutter(x: TensorSpec, axis: int, outputs: Specs) -> Function:
    axis %= len(x.shape)
    ends = list(itertools.accumulate(y.shape[axis] for y in outputs))
    starts = [0, *ends[:-1]]

    def cut(x: jax.Array) -> tuple[jax.Array, ...]:
        bounds = zip(starts, ends, strict=True)
        return tuple(lax.slice_in_dim(x, start, end, axis=axis) for start, end in bounds)

    return cut


SPLIT = OpRule("SPLIT", SplitOptions, 5, _why_not_split, _lower_split, arity=2)
SPLIT_V = OpRule("SPLIT_V", SplitVOptions, 3, _why_not_split_v, _lower_split_v, arity=3)


def _why_not_unpack(
    context: LoweringContext, o: UnpackOptions, inputs: Specs, outputs: Specs
) -> str | None:
    x = inputs[0]
    reason = first_reason(
        why_not_moved(context, x, *outputs), why_not_axis(o.axis, len(x.shape))
    )
    if reason is not None:
        return reason
    n = x.shape[o.axis]
    return None if n == len(outputs) else f"{n} slices for {len(outputs)} outputs"


def _lower_unpack(
    _context: LoweringContext, o: UnpackOptions, _inputs: Specs, outputs: Specs
) -> Function:
    def unpack(x: jax.Array) -> tuple[jax.Array, ...]:
        n = len(outputs)
        return tuple(lax.index_in_dim(x, i, o.axis, keepdims=False) for i in range(n))

    return unpack


UNPACK = OpRule("UNPACK", UnpackOptions, 6, _why_not_unpack, _lower_unpack)


def _why_not_dynamic_update_slice(
    context: LoweringContext, _o: Options, inputs: Specs, outputs: Specs
) -> str | None:
    x, update, start = inputs[:3]
    inside = len(x.shape) == len(update.shape) and all(
        n <= end for n, end in zip(update.shape, x.shape, strict=True)
    )
    aligned = start.shape == (len(x.shape),)
    return first_reason(
        why_not_moved(context, x, update, outputs[0]),
        why_not_indices(start),
        None if inside else f"{list(update.shape)} does not fit into {list(x.shape)}",
        None if aligned else f"{start.name!r} must be a vector of {len(x.shape)}",
    )


def _lower_dynamic_update_slice(
    _context: LoweringContext, _o: DynamicUpdateSliceOptions, inputs: Specs, _outputs: Specs
) -> Function:
    x, update = inputs[:2]
    last = np.subtract(x.shape, update.shape).astype(inputs[2].dtype)

    def dynamic_update_slice(
        x: jax.Array, update: jax.Array, start: jax.Array
    ) -> tuple[jax.Array]:
        start = jnp.clip(start, np.zeros_like(last), last)
        return (lax.dynamic_update_slice(x, update, start, allow_negative_indices=False),)

    return dynamic_update_slice


DYNAMIC_UPDATE_SLICE = OpRule(
    "DYNAMIC_UPDATE_SLICE",
    DynamicUpdateSliceOptions,
    6,
    _why_not_dynamic_update_slice,
    _lower_dynamic_update_slice,
    arity=3,
)
