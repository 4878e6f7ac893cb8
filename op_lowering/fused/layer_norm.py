"""Layer, instance and root-mean-square normalization as one operator, which only rewrites create.

It computes in the accumulator's dtype and rounds once, at the end.
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdelegate.kernels import library
from jaxdelegate.op_lowering.common.basics import (
    align_ranks,
    finite,
    fused_activation,
    scalar,
    why_not_activation,
)
from jaxdelegate.op_lowering.common.native_call import native_call
from jaxdelegate.op_lowering.common.row_batches import OfRows, by_rows
from jaxdelegate.op_lowering.dtypes import FLOATS
from jaxdelegate.op_lowering.fused.options import LayerNormOptions
from jaxdelegate.op_lowering.records.enums import ActivationFunctionType as Act
from jaxdelegate.op_lowering.rule import (
    Function,
    LoweringContext,
    Op,
    first_reason,
    rule,
    table,
    why_not_dtype,
)
from jaxdelegate.op_lowering.spec import Shape, Specs

# ---- rows of float32 by this package's CPU kernel: one call instead of four
#
# A row has the same bits however many rows there are.


def _kernel_takes(context: LoweringContext, options: LayerNormOptions, arrays: Specs) -> bool:
    """Whether it normalizes x, the first of `arrays`; the others are scale and offset, or None."""
    x, *others = (spec for spec in arrays if spec is not None)
    count = x.shape[-1] if x.shape else 0
    return (
        context.kernels.cpu
        and context.precision.storage == np.float32
        and all(spec.dtype == np.float32 and not spec.is_quantized for spec in (x, *others))
        and options.axes == (len(x.shape) - 1,)
        and options.fused_activation_function is Act.NONE
        and all(math.prod(spec.shape) == spec.shape[-1] == count for spec in others)
        and math.prod(x.shape) > 0
    )


def _by_kernel(options: LayerNormOptions, shape: Shape) -> Function:
    """The function of x of a shape, and of a scale and an offset, or None."""

    def run(
        x: jax.Array, scale: jax.Array | None = None, offset: jax.Array | None = None
    ) -> tuple[jax.Array]:
        others = [None if a is None else a.reshape(-1) for a in (scale, offset)]
        has = options.is_centered, *(a is not None for a in others)
        normalized = _normalized(options.epsilon, has)
        rows = x.reshape(-1, shape[-1])
        return (normalized(rows, *(a for a in others if a is not None)).reshape(shape),)

    return run


@functools.cache
def _normalized(epsilon: float, has: tuple[bool, ...]) -> OfRows:
    attributes = {"epsilon": np.array([epsilon], np.float32), "has": np.array(has, np.int64)}

    @by_rows
    def normalized(x: jax.Array, *others: jax.Array) -> jax.Array:
        return native_call(library.LAYER_NORM, x.shape, **attributes)(x, *others)

    return normalized


# ---- the operator


def _why_not(op: Op[LayerNormOptions]) -> str | None:
    x, y = op.inputs[0], op.outputs[0]
    context = op.context
    by_kernel = _kernel_takes(context, op.options, op.inputs)
    may_round = not context.follows_kernels or (context.program.follows_xnnpack and by_kernel)
    return first_reason(
        None if may_round else "in integer mode each operator rounds as its kernel does",
        *(why_not_dtype(spec, FLOATS) for spec in (*op.inputs, y) if spec is not None),
        None if x.shape == y.shape else f"{list(x.shape)} and {list(y.shape)} differ",
        why_not_activation(op.options.fused_activation_function),
    )


def _lower(op: Op[LayerNormOptions]) -> Function:
    o, wide = op.options, op.context.precision.accumulator(op.inputs[0].dtype)
    if _kernel_takes(op.context, o, op.inputs):
        return _by_kernel(o, op.inputs[0].shape)
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
