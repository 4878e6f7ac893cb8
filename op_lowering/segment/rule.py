"""Reductions by segment: SEGMENT_SUM and UNSORTED_SEGMENT_{SUM,PROD,MAX,MIN}.

Semantics: kernels/{segment_sum,unsorted_segment}.cc, kernels/internal/reference/reference_ops.h.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from jaxdelegate.op_lowering.common.derivatives import with_64_bits
from jaxdelegate.op_lowering.common.signature import CONSTANTS32, INT32, Input, dtypes, typed_rule
from jaxdelegate.op_lowering.dtypes import FLOATS
from jaxdelegate.op_lowering.records.record import NoOptions, Options
from jaxdelegate.op_lowering.reduction.rule import limits
from jaxdelegate.op_lowering.rule import Function, Op, OpRule, table


def _why_not_segment_sum(op: Op[NoOptions]) -> str | None:
    x, ids = op.inputs[:2]
    if ids.shape != x.shape[:1] or not x.shape:
        return f"segment ids {list(ids.shape)} do not name the rows of {list(x.shape)}"
    steps = np.diff(np.asarray(ids.const, np.int64), prepend=-1)
    rising = steps.size == 0 or (steps[0] == 1 and set(steps[1:].tolist()) <= {0, 1})
    return None if rising else "segment ids do not rise from 0 in steps of at most 1"


def _lower_segment_sum(op: Op[NoOptions]) -> Function:
    accumulator, y = op.context.precision.accumulator(op.inputs[0].dtype), op.outputs[0]

    def segment_sum(x: jax.Array, ids: jax.Array) -> tuple[jax.Array]:
        zeros = jnp.zeros(y.shape, accumulator)
        total = zeros.at[ids].add(x.astype(accumulator), indices_are_sorted=True)
        return (total.astype(y.dtype),)

    return segment_sum


def _why_not_unsorted(op: Op[Options]) -> str | None:
    x, ids, count = op.inputs[:3]
    if ids.shape != x.shape[: len(ids.shape)]:
        return f"segment ids {list(ids.shape)} are not a prefix of {list(x.shape)}"
    n_segments = np.asarray(count.const)
    if n_segments.size != 1 or n_segments < 0:
        return f"{count.name!r} is {n_segments.tolist()}, not a number of segments"
    last = -1 if ids.const is None else int(np.asarray(ids.const).max(initial=-1))
    return f"segment id {last} has no segment" if last >= n_segments else None


_X = Input(FLOATS | dtypes(np.int32))
_Reduce = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]


def _scattered(scatter: str) -> _Reduce:
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

    inputs = [_X, INT32, CONSTANTS32]
    return typed_rule(name, inputs, lower, _why_not_unsorted, results=[None])


RULES = table(
    typed_rule(
        "SEGMENT_SUM", [_X, CONSTANTS32], _lower_segment_sum, _why_not_segment_sum, results=[None]
    ),
    _unsorted_rule(
        "UNSORTED_SEGMENT_MAX", _scattered("max"), lambda dtype: limits(dtype)[0], skips_nan=True
    ),
    _unsorted_rule(
        "UNSORTED_SEGMENT_MIN", _scattered("min"), lambda dtype: limits(dtype)[1], skips_nan=True
    ),
    _unsorted_rule("UNSORTED_SEGMENT_PROD", multiplied, lambda _: 1),
    _unsorted_rule("UNSORTED_SEGMENT_SUM", _scattered("add"), lambda _: 0),
)
