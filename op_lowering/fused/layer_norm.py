"""Layer, instance and root-mean-square normalization as one operator, which only rewrites create.

It computes in the accumulator's dtype and rounds once, at the end.
"""

import jax
import jax.numpy as jnp
from jax import lax

from jaxdelegate.op_lowering.common.basics import (
    align_ranks,
    finite,
    fused_activation,
    scalar,
    why_not_activation,
)
from jaxdelegate.op_lowering.dtypes import FLOATS
from jaxdelegate.op_lowering.fused import layer_norm_cpu_kernel
from jaxdelegate.op_lowering.fused.options import LayerNormOptions
from jaxdelegate.op_lowering.rule import Function, Op, first_reason, rule, table, why_not_dtype


def _why_not(op: Op[LayerNormOptions]) -> str | None:
    x, y = op.inputs[0], op.outputs[0]
    context = op.context
    by_kernel = layer_norm_cpu_kernel.takes(context, op.options, op.inputs)
    may_round = not context.follows_kernels or (context.program.follows_xnnpack and by_kernel)
    return first_reason(
        None if may_round else "in integer mode each operator rounds as its kernel does",
        *(why_not_dtype(spec, FLOATS) for spec in (*op.inputs, y) if spec is not None),
        None if x.shape == y.shape else f"{list(x.shape)} and {list(y.shape)} differ",
        why_not_activation(op.options.fused_activation_function),
    )


def _lower(op: Op[LayerNormOptions]) -> Function:
    o, wide = op.options, op.context.precision.accumulator(op.inputs[0].dtype)
    if layer_norm_cpu_kernel.takes(op.context, o, op.inputs):
        return layer_norm_cpu_kernel.layer_norm(o, op.inputs[0].shape)
    activate, dtype = fused_activation(o.fused_activation_function), op.outputs[0].dtype

    def layer_norm(
        x: jax.Array, scale: jax.Array | None = None, offset: jax.Array | None = None
    ) -> tuple[jax.Array]:
        y = x.astype(wide)
        if o.is_centered:
            y = y - _mean(y, o.axes)
        y = y * lax.rsqrt(finite(_mean(y * y, o.axes) + scalar(o.epsilon, y)))
        if scale is not None:
            y = jnp.multiply(*align_ranks(y, scale.astype(wide)))
        if offset is not None:
            y = jnp.add(*align_ranks(y, offset.astype(wide)))
        return (activate(y).astype(dtype),)

    return layer_norm


def _mean(x: jax.Array, axes: tuple[int, ...]) -> jax.Array:
    return jnp.mean(x, axis=axes, dtype=x.dtype, keepdims=True)


LAYER_NORM = rule("fused_layer_norm", 1, _why_not, _lower)

FUSED = table(LAYER_NORM)
