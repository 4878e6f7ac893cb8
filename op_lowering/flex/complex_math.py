"""Arithmetic of complex numbers and doubles, which TFLite's kernels lack (core/kernels/cwise_*)."""

import jax
import jax.numpy as jnp

from jaxdelegate.op_lowering.common.movement import MOVABLE, integers, why_not_axis
from jaxdelegate.op_lowering.common.pointwise import COMPLEX, binary, unary, why_not_one_dtype
from jaxdelegate.op_lowering.dtypes import FLOATS, INDICES
from jaxdelegate.op_lowering.flex.options import FlexMatrixOptions, FlexReductionOptions
from jaxdelegate.op_lowering.records.flex import FLEX, FlexOptions
from jaxdelegate.op_lowering.rule import (
    Function,
    Op,
    OpRule,
    first_reason,
    table,
    why_not_const,
    why_not_dtype,
    why_not_result,
)
from jaxdelegate.op_lowering.spec import Shape

_NUMBERS = FLOATS | COMPLEX
_UNARY = {
    "Cos": jnp.cos,
    "Exp": jnp.exp,
    "Log": jnp.log,
    "Rsqrt": lambda x: 1 / jnp.sqrt(x),
    "Sigmoid": lambda x: 1 / (1 + jnp.exp(-x)),
    "Sin": jnp.sin,
    "Sqrt": jnp.sqrt,
    "Square": jnp.square,
    "Tanh": jnp.tanh,
}


def _div_no_nan(x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.where(y == 0, jnp.zeros_like(x), x / jnp.where(y == 0, jnp.ones_like(y), y))


def _why_not_angle(op: Op[FlexOptions]) -> str | None:
    x, y = op.inputs[0], op.outputs[0]
    return why_not_dtype(x, COMPLEX) or why_not_result(y, x.dtype.type(0).real.dtype)


def _lower_angle(_op: Op[FlexOptions]) -> Function:
    return lambda x: (jnp.angle(x),)


# ---- MatMul


def _matrices(o: FlexMatrixOptions, x: Shape, y: Shape) -> tuple[Shape, Shape]:
    return x[::-1] if o.transpose_a else x, y[::-1] if o.transpose_b else y


def _why_not_matmul(op: Op[FlexMatrixOptions]) -> str | None:
    x, y = op.inputs[:2]
    reason = first_reason(
        why_not_dtype(x, _NUMBERS | INDICES),
        why_not_one_dtype(x, y),
        why_not_result(op.outputs[0], x.dtype),
        None if len(x.shape) == len(y.shape) == 2 else "expected two matrices",
    )
    if reason is not None:
        return reason
    left, right = _matrices(op.options, x.shape, y.shape)
    return None if left[1] == right[0] else f"{list(left)} times {list(right)}"


def _lower_matmul(op: Op[FlexMatrixOptions]) -> Function:
    o, dtype = op.options, op.outputs[0].dtype
    wide = op.context.precision.accumulator(dtype)

    def matmul(x: jax.Array, y: jax.Array) -> tuple[jax.Array]:
        x, y = jnp.asarray(x, wide), jnp.asarray(y, wide)
        x, y = x.T if o.transpose_a else x, y.T if o.transpose_b else y
        return (jnp.matmul(x, y, precision="highest").astype(dtype),)

    return matmul


# ---- Mean, Prod, Sum: values, axes


def _why_not_reduction(op: Op[FlexReductionOptions]) -> str | None:
    x, axes = op.inputs[:2]
    reason = first_reason(
        why_not_dtype(x, _NUMBERS),
        why_not_result(op.outputs[0], x.dtype),
        why_not_const(axes) or why_not_dtype(axes, INDICES),
    )
    return reason or first_reason(*(why_not_axis(axis, len(x.shape)) for axis in integers(axes)))


def _lower_reduction(op: Op[FlexReductionOptions], name: str) -> Function:
    x, function = op.inputs[0], {"Mean": jnp.mean, "Prod": jnp.prod, "Sum": jnp.sum}[name]
    axes = tuple({axis % len(x.shape) for axis in integers(op.inputs[1])})
    wide, keep = op.context.precision.accumulator(x.dtype), op.options.keep_dims

    def reduce(x: jax.Array, _axes: jax.Array) -> tuple[jax.Array]:
        return (function(jnp.asarray(x, wide), axes, keepdims=keep).astype(x.dtype),)

    return reduce


def _reduction(name: str) -> OpRule[FlexReductionOptions]:
    def lower(op: Op[FlexReductionOptions]) -> Function:
        return _lower_reduction(op, name)

    return OpRule(f"{FLEX}{name}", FlexReductionOptions, 1, _why_not_reduction, lower, arity=2)


# ---- ConcatV2: values, axis


def _why_not_concat(op: Op[FlexOptions]) -> str | None:
    *values, axis = op.inputs
    if any(spec is None for spec in op.inputs):
        return "an input is left out"
    reason = first_reason(
        *(why_not_dtype(spec, MOVABLE) for spec in values),
        *(why_not_one_dtype(values[0], spec) for spec in values[1:]),
        why_not_result(op.outputs[0], values[0].dtype),
        why_not_const(axis) or why_not_dtype(axis, INDICES),
        None if axis.shape in ((), (1,)) else f"{axis.name!r} is not one axis",
    )
    return reason or why_not_axis(integers(axis)[0], len(values[0].shape))


def _lower_concat(op: Op[FlexOptions]) -> Function:
    axis = integers(op.inputs[-1])[0]
    return lambda *arrays: (jnp.concatenate(arrays[:-1], axis),)


RULES = table(
    *(
        unary(f"{FLEX}{name}", FlexOptions, 1, function, dtypes=_NUMBERS)
        for name, function in _UNARY.items()
    ),
    binary(f"{FLEX}DivNoNan", FlexOptions, 1, _div_no_nan, dtypes=_NUMBERS),
    binary(f"{FLEX}Pow", FlexOptions, 1, jnp.power, dtypes=_NUMBERS),
    unary(f"{FLEX}Conj", FlexOptions, 1, jnp.conj, dtypes=COMPLEX),
    OpRule(f"{FLEX}Angle", FlexOptions, 1, _why_not_angle, _lower_angle),
    OpRule(f"{FLEX}ConcatV2", FlexOptions, 1, _why_not_concat, _lower_concat, arity=2),
    OpRule(f"{FLEX}MatMul", FlexMatrixOptions, 1, _why_not_matmul, _lower_matmul, arity=2),
    *map(_reduction, ("Mean", "Prod", "Sum")),
)
