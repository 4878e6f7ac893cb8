"""Normalizations along the last axis, in the accumulator's dtype, rounded once, at the end."""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdelegate.kernels import library
from jaxdelegate.op_lowering.common.basics import scalar
from jaxdelegate.op_lowering.common.derivatives import root
from jaxdelegate.op_lowering.common.native_call import native_call
from jaxdelegate.op_lowering.common.row_batches import by_rows
from jaxdelegate.op_lowering.common.row_order import has_few_rows, largest, sum_in_order
from jaxdelegate.op_lowering.dtypes import FLOATS
from jaxdelegate.op_lowering.normalization import quantized
from jaxdelegate.op_lowering.normalization.options import (
    L2NormOptions,
    LocalResponseNormalizationOptions,
    SoftmaxOptions,
)
from jaxdelegate.op_lowering.records.enums import ActivationFunctionType
from jaxdelegate.op_lowering.records.record import NoOptions
from jaxdelegate.op_lowering.rule import (
    Function,
    LoweringContext,
    Op,
    first_reason,
    rule,
    table,
    why_not_dtype,
    why_not_result,
)
from jaxdelegate.op_lowering.spec import TensorSpec

# ---- SOFTMAX of float32 by this package's CPU kernel, whose exponential is vectorized

_LEAST = 32  # values of a row; whatever the number of rows, so that it does not change their bits


def kernel_takes(context: LoweringContext, options: SoftmaxOptions, x: TensorSpec) -> bool:
    """Whether it normalizes x, which is not quantized."""
    return (
        context.kernels.cpu
        and context.precision.storage == x.dtype == np.float32
        and options.beta == 1
        and x.shape[-1] >= _LEAST
        and math.prod(x.shape) > 0
    )


def _softmax_by_kernel(x: jax.Array) -> tuple[jax.Array]:
    return (_softmax_of_rows(x.reshape(-1, x.shape[-1])).reshape(x.shape),)


@by_rows
def _softmax_of_rows(x: jax.Array) -> jax.Array:
    return native_call(library.SOFTMAX, x.shape)(x)


# ---- the operators

_L2_EPSILON = 1e-6  # kernels/l2norm.cc


def _why_not_scalar(x: TensorSpec) -> str | None:
    return None if x.shape else f"{x.name!r} is a scalar: it has no last axis"


def _why_not_floats(x: TensorSpec, y: TensorSpec) -> str | None:
    return first_reason(_why_not_scalar(x), why_not_dtype(x, FLOATS), why_not_result(y, x.dtype))


def _integers(run: Callable[[jax.Array], jax.Array]) -> Function:
    return lambda x: (run(x),)


def _shifted(x: jax.Array) -> jax.Array:
    """`x` minus its largest value, so that no exponential overflows; it cancels in the result."""
    return x - lax.stop_gradient(jnp.max(x, axis=-1, keepdims=True))


def _why_not_softmax(op: Op[SoftmaxOptions]) -> str | None:
    x, y = op.inputs[0], op.outputs[0]
    if x.is_quantized:
        return _why_not_scalar(x) or quantized.why_not_softmax(op.options, x, y)
    return _why_not_floats(x, y)


def _lower_softmax(op: Op[SoftmaxOptions]) -> Function:
    """Compute exp(beta (x - max)) / sum, kernels/internal/reference/softmax.h."""
    x, y, beta = op.inputs[0], op.outputs[0], op.options.beta
    if x.is_quantized:
        return _integers(quantized.lower_softmax(op.options, x, y))
    if kernel_takes(op.context, op.options, x):
        return _softmax_by_kernel
    accumulator = op.context.precision.accumulator(x.dtype)
    is_ordered = has_few_rows(op.context, x)

    def softmax(x: jax.Array) -> tuple[jax.Array]:
        if x.size == 0:
            return (x,)
        wide, last = x.astype(accumulator), (x.ndim - 1,)
        shifted = wide - largest(wide, last)[..., None] if is_ordered else _shifted(wide)
        y = jnp.exp(shifted * scalar(beta, shifted))
        total = sum_in_order(y, last)[..., None] if is_ordered else jnp.sum(y, -1, keepdims=True)
        return ((y / total).astype(x.dtype),)

    return softmax


SOFTMAX = rule("SOFTMAX", 4, _why_not_softmax, _lower_softmax)


def _why_not_log_softmax(op: Op[NoOptions]) -> str | None:
    x, y = op.inputs[0], op.outputs[0]
    if x.is_quantized:
        return _why_not_scalar(x) or quantized.why_not_log_softmax(x, y)
    return _why_not_floats(x, y)


def _lower_log_softmax(op: Op[NoOptions]) -> Function:
    """Compute x - max - log(sum), kernels/internal/reference/log_softmax.h."""
    x, y = op.inputs[0], op.outputs[0]
    if x.is_quantized:
        return _integers(quantized.lower_log_softmax(x, y))
    accumulator = op.context.precision.accumulator(x.dtype)

    def log_softmax(x: jax.Array) -> tuple[jax.Array]:
        if x.size == 0:
            return (x,)
        shifted = _shifted(x.astype(accumulator))
        y = shifted - jnp.log(jnp.sum(jnp.exp(shifted), axis=-1, keepdims=True))
        return (y.astype(x.dtype),)

    return log_softmax


def _why_not_l2(op: Op[L2NormOptions]) -> str | None:
    x, y, activation = op.inputs[0], op.outputs[0], op.options.fused_activation_function
    if activation is not ActivationFunctionType.NONE:
        return f"LiteRT normalizes without a fused activation, not with {activation.name}"
    if x.is_quantized:
        return _why_not_scalar(x) or quantized.why_not_l2_normalization(x, y)
    return _why_not_floats(x, y)


def _lower_l2(op: Op[L2NormOptions]) -> Function:
    """Compute x / max(sqrt(sum x^2), epsilon), kernels/internal/reference/l2normalization.h."""
    x, y = op.inputs[0], op.outputs[0]
    if x.is_quantized:
        return _integers(quantized.lower_l2_normalization(x, y))
    accumulator = op.context.precision.accumulator(x.dtype)

    def l2_normalization(x: jax.Array) -> tuple[jax.Array]:
        wide = x.astype(accumulator)
        norm = root(jnp.sum(wide * wide, axis=-1, keepdims=True))
        return ((wide / jnp.maximum(norm, scalar(_L2_EPSILON, norm))).astype(x.dtype),)

    return l2_normalization


def _why_not_local_response(op: Op[LocalResponseNormalizationOptions]) -> str | None:
    x, radius = op.inputs[0], op.options.radius
    return first_reason(
        None if len(x.shape) == 4 else f"{x.name!r} has rank {len(x.shape)}, not 4",
        why_not_dtype(x, FLOATS),
        why_not_result(op.outputs[0], x.dtype),
        f"radius {radius} is negative" if radius < 0 else None,
    )


def _lower_local_response(op: Op[LocalResponseNormalizationOptions]) -> Function:
    """Compute x (bias + alpha sum x_i^2)^-beta, over the channels up to `radius` away.

    As kernels/internal/optimized/optimized_ops.h and TensorFlow; the reference kernel omits the
    last neighbor.
    """
    o, x = op.options, op.inputs[0]
    accumulator = op.context.precision.accumulator(x.dtype)
    radius = min(o.radius, x.shape[-1])  # beyond the channels there are only zeros

    def local_response_normalization(x: jax.Array) -> tuple[jax.Array]:  # [N, H, W, C]
        wide = x.astype(accumulator)
        near = lax.reduce_window(
            wide * wide,
            np.zeros((), accumulator),  # traced, it would hide from JAX that this is a sum
            lax.add,
            window_dimensions=(1, 1, 1, 2 * radius + 1),
            window_strides=(1, 1, 1, 1),
            padding=((0, 0), (0, 0), (0, 0), (radius, radius)),
        )
        base = scalar(o.bias, wide) + scalar(o.alpha, wide) * near
        return ((wide * base ** scalar(-o.beta, wide)).astype(x.dtype),)

    return local_response_normalization


RULES = table(
    SOFTMAX,
    rule("LOG_SOFTMAX", 2, _why_not_log_softmax, _lower_log_softmax),
    rule("L2_NORMALIZATION", 2, _why_not_l2, _lower_l2),
    rule("LOCAL_RESPONSE_NORMALIZATION", 1, _why_not_local_response, _lower_local_response),
)
