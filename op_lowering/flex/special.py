"""Special functions (core/kernels/{igamma,betainc,zeta,special_math,...}_op*.cc)."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy import special

from jaxdelegate.op_lowering.common.movement import integers, why_not_axis
from jaxdelegate.op_lowering.common.pointwise import Elementwise, Operands, pointwise
from jaxdelegate.op_lowering.common.wide_lowering import lowered_wide
from jaxdelegate.op_lowering.dtypes import FLOATS, INDICES
from jaxdelegate.op_lowering.flex import options as flex
from jaxdelegate.op_lowering.flex.options import FlexScanOptions
from jaxdelegate.op_lowering.records.flex import FLEX, FlexOptions
from jaxdelegate.op_lowering.rule import (
    Function,
    Op,
    OpRule,
    first_reason,
    host_only,
    table,
    why_not_const,
    why_not_dtype,
    why_not_result,
)

_REALS = frozenset(np.dtype(t) for t in (np.float32, np.float64))
# By the number of arguments.
_FUNCTIONS: dict[int, dict[str, Elementwise]] = {
    1: {
        "BesselI0": special.i0,
        "BesselI0e": special.i0e,
        "BesselI1": special.i1,
        "BesselI1e": special.i1e,
        "Ndtri": special.ndtri,
    },
    2: {
        "Igamma": lax.igamma,
        "Igammac": lax.igammac,
    },
}
_HOSTED = {
    **dict.fromkeys(flex.HOSTED_SPECIAL, "JAX has no such function"),
    **dict.fromkeys(("Betainc", "Polygamma", "Zeta"), "JAX has its derivative by one input only"),
}


# ---- CumulativeLogsumexp: values, axis


def _why_not_scan(op: Op[FlexScanOptions]) -> str | None:
    x, axis = op.inputs[:2]
    reason = first_reason(
        why_not_dtype(x, FLOATS),
        why_not_result(op.outputs[0], x.dtype),
        why_not_const(axis) or why_not_dtype(axis, INDICES),
        None if axis.shape == () else f"{axis.name!r} is not one number",
    )
    return reason or why_not_axis(integers(axis)[0], len(x.shape))


def _lower_scan(op: Op[FlexScanOptions]) -> Function:
    """Before the first value the result is minus infinity."""
    x, o = op.inputs[0], op.options
    axis = integers(op.inputs[1])[0] % len(x.shape)
    n = x.shape[axis]
    wide = op.context.precision.accumulator(x.dtype)

    def cumulative_logsumexp(x: jax.Array, _axis: jax.Array) -> tuple[jax.Array]:
        y = lax.cumlogsumexp(jnp.asarray(x, wide), axis, reverse=o.reverse)
        if o.exclusive and n:
            first = jnp.full_like(lax.slice_in_dim(y, 0, 1, axis=axis), -np.inf)
            kept = lax.slice_in_dim(y, int(o.reverse), n - 1 + int(o.reverse), axis=axis)
            y = jnp.concatenate([kept, first] if o.reverse else [first, kept], axis)
        return (y.astype(x.dtype),)

    return cumulative_logsumexp


def _rule(name: str, function: Elementwise, arity: int) -> OpRule[FlexOptions]:
    wide = lowered_wide(function, arity)

    def build(op: Op[FlexOptions]) -> Elementwise:
        return wide if op.inputs[0].dtype == np.float64 else function

    return pointwise(f"{FLEX}{name}", FlexOptions, 1, build, Operands(_REALS, arity))


RULES = table(
    *(
        _rule(name, function, arity)
        for arity, functions in _FUNCTIONS.items()
        for name, function in functions.items()
    ),
    OpRule(f"{FLEX}CumulativeLogsumexp", FlexScanOptions, 1, _why_not_scan, _lower_scan, arity=2),
    *(host_only(f"{FLEX}{name}", FlexOptions, 1, reason) for name, reason in _HOSTED.items()),
)
