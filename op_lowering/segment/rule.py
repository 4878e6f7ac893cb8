"""Reductions by segment: SEGMENT_SUM and UNSORTED_SEGMENT_{SUM,PROD,MAX,MIN}.

Semantics: kernels/{segment_sum,unsorted_segment}.cc, kernels/internal/reference/reference_ops.h.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from jaxdelegate.op_lowering.common.derivatives import with_64_bits
from jaxdelegate.op_lowering.dtypes import FLOATS
from jaxdelegate.op_lowering.records.record import NoOptions, Options
from jaxdelegate.op_lowering.reduction.rule import limits
from jaxdelegate.op_lowering.rule import (
    Function,
    Op,
    OpRule,
    first_reason,
    table,
    why_not_const,
    why_not_dtype,
)
from jaxdelegate.op_lowering.spec import TensorSpec


def _why_not_segment_sum(op: Op[NoOptions]) -> str | None:
    x, ids = op.inputs[:2]
    reason = first_reason(
        why_not_const(ids), why_not_dtype(x, FLOATS, np.int32), why_not_dtype(ids, np.int32)
    )
    if reason is not None or ids.const is None:
        return reason
    if ids.shape != x.shape[:1] or not x.shape:
        return f"segment ids {list(ids.shape)} do not name the rows of {list(x.shape)}"
    steps = np.diff(ids.const.astype(np.int64), prepend=-1)
    rising = steps.size == 0 or (steps[0] == 1 and set(steps[1:].tolist()) <= {0, 1})
    return None if rising else "segment ids do not rise from 0 in steps of at most 1"


def _lower_segment_sum(op: Op[NoOptions]) -> Function:
    accumulator, y = op.context.precision.accumulator(op.inputs[0].dtype), op.outputs[0]

    def segment_sum(x: jax.Array, ids: jax.Array) -> tuple[jax.Array]:
        zeros = jnp.zeros(y.shape, accumulator)
        total = zeros.at[ids].add(x.astype(accumulator), indices_are_sorted=True)
        return (total.astype(y.dtype),)

    return segment_sum


SEGMENT_SUM = OpRule("SEGMENT_SUM", NoOptions, 1, _why_not_segment_sum, _lower_segment_sum, arity=2)


def _why_not_unsorted(op: Op[Options]) -> str | None:
    x, ids, count = op.inputs[:3]
    prefix = ids.shape == x.shape[: len(ids.shape)]
    reason = first_reason(
        why_not_const(count),
        why_not_dtype(x, FLOATS, np.int32),
        why_not_dtype(ids, np.int32),
        why_not_dtype(count, np.int32),
        None if prefix else f"segment ids {list(ids.shape)} are not a prefix of {list(x.shape)}",
    )
    return reason or _why_not_count(ids, count)


def _why_not_count(ids: TensorSpec, count: TensorSpec) -> str | None:
    if count.const is None:
        return None
    if count.const.size != 1 or int(count.const.ravel()[0]) < 0:
        return f"{count.name!r} is {count.const.tolist()}, not a number of segments"
    if ids.const is None or not ids.const.size:
        return None
    beyond = int(ids.const.max()) >= int(count.const.ravel()[0])
    return f"segment id {int(ids.const.max())} has no segment" if beyond else None


_Reduce = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]


def _scattered(scatter: str) -> _Reduce:
    """`scatter` is a method of `array.at[...]`."""

    def reduce(values: jax.Array, rows: jax.Array, start: jax.Array) -> jax.Array:
        reduced: jax.Array = getattr(start.at[rows], scatter)(values, mode="drop")
        return reduced

    return reduce


@jax.custom_jvp
def multiplied(values: jax.Array, rows: jax.Array, start: jax.Array) -> jax.Array:
    return _scattered("multiply")(values, rows, start)


@multiplied.defjvp
@with_64_bits
def _multiplied_jvp(
    primals: tuple[jax.Array, ...], tangents: tuple[jax.Array, ...]
) -> tuple[jax.Array, jax.Array]:
    """The derivative by each value: the product of the others, which JAX does not define.

    That is the product without zeros, divided by the value unless that is zero; and 0 for a value
    whose segment has another zero.
    """
    values, rows, ones = primals
    is_zero = values == 0
    zeros = jnp.zeros_like(ones).at[rows].add(is_zero.astype(values.dtype), mode="drop")
    regular = jnp.where(is_zero, jnp.ones_like(values), values)
    others = multiplied(regular, rows, ones)[rows] / regular
    left_out = is_zero.astype(values.dtype)
    slopes = jnp.where(zeros[rows] == left_out, others, jnp.zeros_like(others))
    total = jnp.zeros_like(ones).at[rows].add(slopes * tangents[0], mode="drop")
    return multiplied(*primals), total


def _unsorted_rule(
    name: str,
    options: type[Options],
    reduce: _Reduce,
    initial: Callable[[np.dtype], float],
    *,
    skips_nan: bool = False,
) -> OpRule:
    """`reduce` combines the values of each segment.

    Values with a negative id are dropped; so are those with an id beyond the segments, at which
    the kernel stops. A segment without values keeps the initial value. `skips_nan`: minimum and
    maximum ignore NaN, because a comparison with it is false.
    """

    def lower(op: Op[Options]) -> Function:
        x, ids = op.inputs[:2]
        accumulator, y = op.context.precision.accumulator(x.dtype), op.outputs[0]
        if 0 in y.shape:  # JAX cannot differentiate an empty scatter
            return lambda *_arrays: (jnp.zeros(y.shape, y.dtype),)
        start = np.asarray(initial(x.dtype), accumulator)
        rows = (math.prod(ids.shape), *x.shape[len(ids.shape) :])

        def run(x: jax.Array, ids: jax.Array, _count: jax.Array) -> tuple[jax.Array]:
            values = x.astype(accumulator).reshape(rows)
            if skips_nan and x.dtype in FLOATS:
                values = jnp.where(jnp.isnan(values), start, values)
            rows_of = ids.reshape(-1)
            rows_of = jnp.where(rows_of < 0, jnp.full_like(rows_of, y.shape[0]), rows_of)
            reduced = reduce(values, rows_of, jnp.full(y.shape, start))
            return (reduced.astype(y.dtype),)

        return run

    return OpRule(name, options, 1, _why_not_unsorted, lower, arity=3)


UNSORTED_SEGMENT_SUM = _unsorted_rule(
    "UNSORTED_SEGMENT_SUM", NoOptions, _scattered("add"), lambda _: 0
)
UNSORTED_SEGMENT_PROD = _unsorted_rule("UNSORTED_SEGMENT_PROD", NoOptions, multiplied, lambda _: 1)
UNSORTED_SEGMENT_MAX = _unsorted_rule(
    "UNSORTED_SEGMENT_MAX",
    NoOptions,
    _scattered("max"),
    lambda d: limits(d)[0],
    skips_nan=True,
)
UNSORTED_SEGMENT_MIN = _unsorted_rule(
    "UNSORTED_SEGMENT_MIN",
    NoOptions,
    _scattered("min"),
    lambda d: limits(d)[1],
    skips_nan=True,
)

RULES = table(
    SEGMENT_SUM,
    UNSORTED_SEGMENT_SUM,
    UNSORTED_SEGMENT_PROD,
    UNSORTED_SEGMENT_MAX,
    UNSORTED_SEGMENT_MIN,
)
