"""Comparisons, logic and selection. Sources: kernels/{comparisons,logical,select}.cc."""

import functools

import jax
import jax.numpy as jnp

from jaxdelegate.op_lowering.common.basics import align_ranks, why_not_broadcast
from jaxdelegate.op_lowering.common.pointwise import (
    BOOLS,
    COMPLEX,
    NUMBERS,
    binary,
    unary,
    why_not_count,
    why_not_one_dtype,
    why_not_one_shape,
    why_not_stored,
)
from jaxdelegate.op_lowering.elementwise import quantized
from jaxdelegate.op_lowering.records.record import NoOptions
from jaxdelegate.op_lowering.rule import Function, Op, first_reason, rule, table
from jaxdelegate.op_lowering.spec import Shape

_VALUES = NUMBERS | COMPLEX | BOOLS
_comparison = functools.partial(binary, results=BOOLS)


def _why_not_choice(op: Op[NoOptions]) -> str | None:
    condition, x, y = op.inputs[:3]
    return first_reason(
        why_not_count(op.inputs, 3),
        why_not_stored(condition, BOOLS),
        why_not_stored(x, _VALUES),
        why_not_one_dtype(x, y),
        why_not_one_dtype(x, op.outputs[0]),
    )


def _why_not_select(op: Op[NoOptions]) -> str | None:
    condition, x, y = op.inputs[:3]
    fits = condition.shape in (x.shape, (), x.shape[:1]) or _is_one(condition.shape, x.shape)
    return first_reason(
        _why_not_choice(op),
        why_not_one_shape(x, y),
        None if fits else f"a {list(condition.shape)} condition for {list(x.shape)} inputs",
    )


def _is_one(*shapes: Shape) -> bool:
    return all(n == 1 for shape in shapes for n in shape)


def _lower_select(op: Op[NoOptions]) -> Function:
    # A condition of rank 1 aligns with the first dimension, not the last: it selects rows.
    condition, x = op.inputs[:2]
    wide = condition.shape + (1,) * (len(x.shape) - len(condition.shape))
    wide = (1,) * len(x.shape) if _is_one(condition.shape) else wide
    return lambda c, x, y: (jnp.where(c.reshape(wide), x, y),)


def _why_not_select_v2(op: Op[NoOptions]) -> str | None:
    return first_reason(_why_not_choice(op), why_not_broadcast(*(s.shape for s in op.inputs[:3])))


def _lower_select_v2(_op: Op[NoOptions]) -> Function:
    def select_v2(*arrays: jax.Array) -> tuple[jax.Array]:
        condition, x, y = align_ranks(*arrays)
        return (jnp.where(condition, x, y),)

    return select_v2


RULES = table(
    _comparison("EQUAL", 5, jnp.equal, integer=quantized.EQUAL, dtypes=_VALUES),
    _comparison("NOT_EQUAL", 4, jnp.not_equal, integer=quantized.NOT_EQUAL, dtypes=_VALUES),
    _comparison("LESS", 3, jnp.less, integer=quantized.LESS),
    _comparison("LESS_EQUAL", 2, jnp.less_equal, integer=quantized.LESS_EQUAL),
    _comparison("GREATER", 2, jnp.greater, integer=quantized.GREATER),
    _comparison("GREATER_EQUAL", 3, jnp.greater_equal, integer=quantized.GREATER_EQUAL),
    binary("LOGICAL_AND", 1, jnp.logical_and, dtypes=BOOLS),
    binary("LOGICAL_OR", 1, jnp.logical_or, dtypes=BOOLS),
    unary("LOGICAL_NOT", 1, jnp.logical_not, dtypes=BOOLS),
    rule("SELECT", 4, _why_not_select, _lower_select, arity=3),
    rule("SELECT_V2", 2, _why_not_select_v2, _lower_select_v2, arity=3),
)
