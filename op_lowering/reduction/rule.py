"""Reductions over axes: MEAN, SUM, REDUCE_*, ARG_MAX, ARG_MIN and the running sum CUMSUM.

Semantics: kernels/reduce.cc, kernels/internal/reference/{reduce,arg_min_max,cumsum}.h.
"""

import dataclasses
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdelegate.kernels.library import LEAST_CHANNELS, MEAN
from jaxdelegate.op_lowering.common.movement import why_not_axis, why_not_moved
from jaxdelegate.op_lowering.common.native_call import native_call
from jaxdelegate.op_lowering.common.pointwise import (
    BOOLS,
    INT8,
    INT16,
    INTEGERS,
    UINT8,
    why_not_stored,
)
from jaxdelegate.op_lowering.common.row_order import has_few_rows, sum_in_order
from jaxdelegate.op_lowering.dtypes import FLOATS, INDICES
from jaxdelegate.op_lowering.records.record import Options
from jaxdelegate.op_lowering.reduction import quantized as quantized_reduction
from jaxdelegate.op_lowering.reduction.options import CumsumOptions, ReducerOptions
from jaxdelegate.op_lowering.rule import (
    Function,
    LoweringContext,
    Op,
    OpRule,
    first_reason,
    rule,
    table,
    why_not_const,
    why_not_dtype,
    why_not_result,
)
from jaxdelegate.op_lowering.spec import Shape, TensorSpec

# ---- means of float32 over whole images, by a native CPU kernel

# The reduction of an operator's input over these axes; None: the kernel does not support it.
_Native = Callable[
    [LoweringContext, TensorSpec, tuple[int, ...]], Callable[[jax.Array], jax.Array] | None
]


def mean_by_kernel(
    context: LoweringContext, x: TensorSpec, axes: tuple[int, ...]
) -> Callable[[jax.Array], jax.Array] | None:
    """The mean over all axes except the first and the last; None for other tensors and contexts."""
    is_float32 = x.dtype == np.float32 and not x.is_quantized
    fits = axes == tuple(range(1, len(x.shape) - 1)) != () and 0 not in x.shape
    is_asked = context.kernels.cpu and context.precision.storage == np.float32
    if not (is_asked and is_float32 and fits and x.shape[-1] >= LEAST_CHANNELS):
        return None
    return None if context.follows_kernels else _kernel_mean


def _kernel_mean(x: jax.Array) -> jax.Array:
    """[N, ..., C] -> [N, C]."""
    n, *pixels, c = x.shape
    return native_call(MEAN, (n, c))(x.reshape(n, math.prod(pixels), c))


# ---- the operators

_Axes = tuple[int, ...]
_Reduce = Callable[[jax.Array, _Axes], jax.Array]  # drops the axes
_Compare = Callable[..., jax.Array]
_Dtypes = frozenset[np.dtype]

_SHORT: _Dtypes = frozenset([INT8, UINT8, INT16])


def why_not_ordered(context: LoweringContext, x: TensorSpec, y: TensorSpec | None) -> str | None:
    """A reason if `x` cannot be compared as stored, or `y` cannot hold its values unchanged.

    Quantized values have the order of their stored integers.
    """
    return first_reason(why_not_stored(x, FLOATS | INTEGERS), why_not_moved(context, x, y))


def why_not_axes(x: TensorSpec, axes: TensorSpec) -> str | None:
    reason = first_reason(why_not_const(axes), why_not_dtype(axes, INDICES))
    if reason is not None or axes.const is None:
        return reason
    rank = len(x.shape)
    if rank == 0:
        return None  # the reductions ignore the axes of a scalar
    return first_reason(*(why_not_axis(a, rank) for a in axes.const.ravel().tolist()))


def _resolve(axes: TensorSpec, rank: int) -> _Axes:
    if axes.const is None or rank == 0:
        return ()
    return tuple(sorted({int(a) % rank for a in axes.const.ravel()}))


def _sum(x: jax.Array, axes: _Axes) -> jax.Array:
    return jnp.sum(x, axis=axes, dtype=x.dtype)


def _sum_in_order(x: jax.Array, axes: _Axes) -> jax.Array:
    return sum_in_order(x, axes) if x.dtype in FLOATS else _sum(x, axes)


def _mean(x: jax.Array, axes: _Axes) -> jax.Array:
    count = int(np.prod([x.shape[a] for a in axes], dtype=np.int64))
    if x.dtype in FLOATS:
        return jnp.sum(x, axis=axes, dtype=x.dtype) / count  # NaN without values, as in the kernel
    total = jnp.sum(x, axis=axes, dtype=np.int64)
    divisor = jnp.full_like(total, max(count, 1))
    return lax.div(total, divisor).astype(x.dtype)  # truncates; 0 without values


def _mean_of_rows(x: jax.Array, axes: _Axes) -> jax.Array:
    return sum_in_order(x, axes) / math.prod(x.shape[a] for a in axes)


def _mean_in_order(x: jax.Array, axes: _Axes) -> jax.Array:
    if x.dtype not in FLOATS:
        return _mean(x, axes)
    # XLA multiplies by the inverse of a constant divisor, which rounds correctly only in float64.
    total = _sum_in_order(x, axes).astype(np.float64)
    return (total / np.prod([x.shape[a] for a in axes], dtype=np.float64)).astype(x.dtype)


def _prod(x: jax.Array, axes: _Axes) -> jax.Array:
    return jnp.prod(x, axis=axes, dtype=x.dtype)


def _extreme(
    x: jax.Array, axes: _Axes, reduce: _Compare, both: _Compare, worst: float
) -> jax.Array:
    """The largest or smallest value, starting from `worst`, the result for an empty tensor.

    A value replaces the best so far only if it is better: NaN never does, nor the infinity on the
    worst side. But a reduction of all axes starts from the first value, and keeps it if it is NaN.
    """
    if x.size == 0:
        shape = [n for i, n in enumerate(x.shape) if i not in axes]
        return jnp.full(shape, worst, x.dtype)
    if x.dtype not in FLOATS:
        return reduce(x, axis=axes)
    if len(axes) == x.ndim:
        return reduce(jnp.where(jnp.isnan(x), x.reshape(-1)[0], x), axis=axes)
    start = jnp.asarray(worst, x.dtype)
    return both(reduce(jnp.where(jnp.isnan(x), start, x), axis=axes), start)


def _max(x: jax.Array, axes: _Axes) -> jax.Array:
    return _extreme(x, axes, jnp.max, jnp.maximum, limits(x.dtype)[0])


def _min(x: jax.Array, axes: _Axes) -> jax.Array:
    return _extreme(x, axes, jnp.min, jnp.minimum, limits(x.dtype)[1])


def limits(dtype: np.dtype) -> tuple[float, float]:
    """The lowest and the highest finite value."""
    if dtype in FLOATS:
        floats = jnp.finfo(dtype)  # type: ignore[no-untyped-call]
        return float(floats.min), float(floats.max)
    return int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)


@dataclasses.dataclass(frozen=True)
class _Reduction:
    """A reduction over axes: inputs x and axes, one output."""

    reduce: _Reduce  # the function of values without a scale
    dtypes: _Dtypes  # their dtypes
    compares: bool = False  # the result is one of the values, so quantized ones need no arithmetic
    # The arithmetic of quantized values.
    quantized: quantized_reduction.IntegerReduction | None = None
    # The same with the kernels' rounding, for a CPU in integer mode: dynamic range operators that
    # follow quantize floats on the fly, and a difference in the last bit that moves a value to the
    # next step grows large after a few layers.
    in_order: _Reduce | None = None
    of_rows: _Reduce | None = None  # the same for a few rows of floats by a CPU's delegate
    # Our CPU kernel's function, if it supports the operator.
    native: _Native | None = None

    def rule(self, name: str, max_version: int) -> OpRule[ReducerOptions]:
        return rule(name, max_version, self.why_not, self.lower, arity=2)

    def why_not(self, op: Op[ReducerOptions]) -> str | None:
        x, axes = op.inputs[:2]
        reason = why_not_axes(x, axes)
        if reason is not None:
            return reason
        if x.is_quantized and self.quantized is not None:
            return self.quantized.why_not(x, op.outputs[0], _resolve(axes, len(x.shape)))
        if self.compares:
            return why_not_ordered(op.context, x, op.outputs[0])
        return why_not_dtype(x, self.dtypes)

    def lower(self, op: Op[ReducerOptions]) -> Function:
        (x, axes), y = op.inputs[:2], op.outputs[0]
        over = _resolve(axes, len(x.shape))
        if x.is_quantized and self.quantized is not None:
            of_integers = self.quantized.lower(x, y, over)
            return lambda x, _axes: (of_integers(x).reshape(y.shape),)
        by_kernel = None if self.native is None else self.native(op.context, x, over)
        if by_kernel is not None:
            return lambda x, _axes: (by_kernel(x).reshape(y.shape),)
        wide = x.dtype if self.compares else op.context.precision.accumulator(x.dtype)
        reduce = self._rounding(op.context, x, over) or self.reduce
        return lambda x, _axes: (reduce(x.astype(wide), over).reshape(y.shape).astype(y.dtype),)

    def _rounding(self, context: LoweringContext, x: TensorSpec, over: _Axes) -> _Reduce | None:
        if context.follows_kernels:
            return self.in_order
        is_last = over == (len(x.shape) - 1,)
        return self.of_rows if is_last and has_few_rows(context, x) else None


def _why_not_arg(op: Op[Options]) -> str | None:
    x, axis = op.inputs[:2]
    reason = first_reason(
        why_not_one_axis(x, axis),
        why_not_stored(x, FLOATS | INTEGERS | BOOLS),
        why_not_moved(op.context, x),
        why_not_dtype(op.outputs[0], INDICES),
    )
    if reason is not None or axis.const is None:
        return reason
    empty = x.shape[int(axis.const.ravel()[0])] == 0
    return f"{x.name!r} has no values along the axis" if empty else None


def why_not_one_axis(x: TensorSpec, axis: TensorSpec) -> str | None:
    reason = first_reason(
        None if x.shape else f"{x.name!r} is a scalar: it has no axis", why_not_axes(x, axis)
    )
    if reason is not None or axis.const is None or axis.const.size == 1:
        return reason
    return f"{axis.name!r} holds {axis.const.size} axes, not one"


def _arg_rule(name: str, reduce: Callable[..., jax.Array]) -> OpRule:
    """The lowest index among equal values; any number beats NaN."""

    def lower(op: Op[Options]) -> Function:
        shape, dtype = op.inputs[0].shape, op.outputs[0].dtype
        (axis,) = _resolve(op.inputs[1], len(shape))
        is_stepwise = op.context.platform == "cpu" and _is_stepwise(shape, axis)

        def arg(x: jax.Array, _axis: jax.Array) -> tuple[jax.Array]:
            x = x.astype(np.uint8) if x.dtype == np.bool_ else x
            if is_stepwise:
                return (_arg_stepwise(x, reduce, dtype),)
            if x.dtype in _SHORT and x.shape[axis] <= 1 << 16:
                return (_arg_of_short(x, axis, reduce).astype(dtype),)
            # JAX lowers argmax when the model is jitted, perhaps without 64-bit types.
            index = lax.argmax(x == _best(x, axis, reduce), axis, np.int32)
            return (index.astype(dtype),)

        return arg

    return rule(name, 3, _why_not_arg, lower, arity=2)


def _is_stepwise(shape: Shape, axis: int) -> bool:
    """Whether to go class by class through all pixels, which is four times faster on a CPU.

    XLA:CPU reduces a short last axis pixel by pixel, with one pass for the extreme and one for its
    index. More than 64 classes make a long program; few pixels gain nothing.
    """
    classes, pixels = shape[axis], math.prod(shape[:-1])
    return axis == len(shape) - 1 and 1 < classes <= 64 and pixels >= 256


def _arg_stepwise(x: jax.Array, reduce: Callable[..., jax.Array], dtype: np.dtype) -> jax.Array:
    """[..., classes] -> [...], a vector of all pixels for each class."""
    is_better = lax.lt if reduce is jnp.min else lax.gt
    best, at = x[..., 0], jnp.zeros(x.shape[:-1], dtype)
    for i in range(1, x.shape[-1]):
        value = x[..., i]
        wins = is_better(value, best)
        if x.dtype in FLOATS:
            wins |= jnp.isnan(best) & ~jnp.isnan(value)
        best, at = jnp.where(wins, value, best), jnp.where(wins, dtype.type(i), at)
    return at


def _arg_of_short(x: jax.Array, axis: int, reduce: Callable[..., jax.Array]) -> jax.Array:
    """The lowest index of the extreme of integers of 8 or 16 bits, int32.

    One reduction of values with their indices in the low bits: XLA:CPU vectorizes no `argmax`.
    """
    count = x.shape[axis]
    indices = np.arange(count) if reduce is jnp.min else np.arange(count)[::-1]
    indices = np.expand_dims(indices, [i for i in range(x.ndim) if i != axis])
    low_bits = jnp.asarray(indices, np.int32)
    best = reduce((x.astype(np.int32) << 16) | low_bits, axis=axis) & 0xFFFF
    return best if reduce is jnp.min else count - 1 - best


def _best(x: jax.Array, axis: int, reduce: Callable[..., jax.Array]) -> jax.Array:
    """The extreme without NaN; `axis` is kept with size 1."""
    if x.dtype in FLOATS:
        worst = jnp.inf if reduce is jnp.min else -jnp.inf
        x = jnp.where(jnp.isnan(x), jnp.asarray(worst, x.dtype), x)
    return reduce(x, axis=axis, keepdims=True)


def _why_not_cumsum(op: Op[CumsumOptions]) -> str | None:
    x, axis = op.inputs[:2]
    return first_reason(
        why_not_one_axis(x, axis),
        why_not_dtype(x, FLOATS | INDICES),
        why_not_result(op.outputs[0], x.dtype),
    )


def _lower_cumsum(op: Op[CumsumOptions]) -> Function:
    spec, is_exclusive, reverse = op.inputs[0], op.options.exclusive, op.options.reverse
    (axis,) = _resolve(op.inputs[1], len(spec.shape))
    accumulator = op.context.precision.accumulator(spec.dtype)
    # Exclusive: a zero at the start and one value less at the end; the opposite in reverse.
    shift = (-1, 1, 0) if reverse else (1, -1, 0)
    padding = [shift if i == axis else (0, 0, 0) for i in range(len(spec.shape))]

    def cumsum(x: jax.Array, _axis: jax.Array) -> tuple[jax.Array]:
        terms = x.astype(accumulator)
        if is_exclusive and x.shape[axis]:
            terms = lax.pad(terms, jnp.zeros((), accumulator), padding)
        return (lax.cumsum(terms, axis, reverse=reverse).astype(x.dtype),)

    return cumsum


RULES = table(
    _Reduction(
        _mean,
        FLOATS | INDICES,
        quantized=quantized_reduction.MEAN,
        in_order=_mean_in_order,
        of_rows=_mean_of_rows,
        native=mean_by_kernel,
    ).rule("MEAN", 3),
    _Reduction(
        _sum,
        FLOATS | INDICES,
        quantized=quantized_reduction.SUM,
        in_order=_sum_in_order,
        of_rows=_sum_in_order,
    ).rule("SUM", 2),
    _Reduction(_prod, FLOATS | INTEGERS, quantized=quantized_reduction.REDUCE_PROD).rule(
        "REDUCE_PROD", 2
    ),
    _Reduction(_max, FLOATS | INTEGERS, compares=True).rule("REDUCE_MAX", 3),
    _Reduction(_min, FLOATS | INTEGERS, compares=True).rule("REDUCE_MIN", 3),
    _Reduction(jnp.any, BOOLS).rule("REDUCE_ANY", 1),
    _Reduction(jnp.all, BOOLS).rule("REDUCE_ALL", 1),
    _arg_rule("ARG_MAX", jnp.max),
    _arg_rule("ARG_MIN", jnp.min),
    rule("CUMSUM", 1, _why_not_cumsum, _lower_cumsum, arity=2),
)
