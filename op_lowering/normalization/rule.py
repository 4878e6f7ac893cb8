"""Normalizations along the last axis.

SOFTMAX, LOG_SOFTMAX, L2_NORMALIZATION, LOCAL_RESPONSE_NORMALIZATION; all compute in the
accumulator's dtype and round once, at the end.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdelegate.op_lowering.common.basics import scalar
from jaxdelegate.op_lowering.common.derivatives import root
from jaxdelegate.op_lowering.dtypes import FLOATS
from jaxdelegate.op_lowering.normalization.options import (
    L2NormOptions,
    LocalResponseNormalizationOptions,
    LogSoftmaxOptions,
    SoftmaxOptions,
)
from jaxdelegate.op_lowering.normalization.quantized import (
    lower_l2_normalization,
    lower_log_softmax,
    lower_softmax,
    why_not_l2_normalization,
    why_not_log_softmax,
    why_not_softmax,
)
from jaxdelegate.op_lowering.records.enums import ActivationFunctionType
from jaxdelegate.op_lowering.rule import (
    Function,
    LoweringContext,
    OpRule,
    first_reason,
    table,
    why_not_dtype,
    why_not_result,
)
from jaxdelegate.op_lowering.spec import Specs, TensorSpec

_L2_EPSILON = 1e-6  # kernels/l2norm.cc


def _why_not_scalar(x: TensorSpec) -> str | None:
    return None if x.shape else f"{x.name!r} is a scalar: it has no last axis"


def _why_not(inputs: Specs, outputs: Specs) -> str | None:
    x = inputs[0]
    return first_reason(
        _why_not_scalar(x), why_not_dtype(x, FLOATS), why_not_result(outputs[0], x.dtype)
    )


def _integers(run: Callable[[jax.Array], jax.Array]) -> Function:
    return lambda x: (run(x),)


def _shifted(x: jax.Array) -> jax.Array:
    """`x` less its largest value, so that no exponential overflows; results do not depend on it."""
    return x - lax.stop_gradient(jnp.max(x, axis=-1, keepdims=True))


def _why_not_softmax(
    _context: LoweringContext, o: SoftmaxOptions, inputs: Specs, outputs: Specs
) -> str | None:
    if inputs[0].is_quantized:
        return _why_not_scalar(inputs[0]) or why_not_softmax(o, inputs[0], outputs[0])
    return _why_not(inputs, outputs)


def _lower_softmax(
    context: LoweringContext, o: SoftmaxOptions, inputs: Specs, outputs: Specs
) -> Function:
    """Compute exp(beta (x - max)) / sum, kernels/internal/reference/softmax.h."""
    if inputs[0].is_quantized:
        return _integers(lower_softmax(o, inputs[0], outputs[0]))
    accumulator = context.precision.accumulator(inputs[0].dtype)

    def softmax(x: jax.Array) -> tuple[jax.Array]:
        if x.size == 0:
            return (x,)
        shifted = _shifted(x.astype(accumulator))
        y = jnp.exp(shifted * scalar(o.beta, shifted))
        return ((y / jnp.sum(y, axis=-1, keepdims=True)).astype(x.dtype),)

    return softmax


SOFTMAX = OpRule("SOFTMAX", SoftmaxOptions, 4, _why_not_softmax, _lower_softmax)


def _why_not_log_softmax(
    _context: LoweringContext, _o: LogSoftmaxOptions, inputs: Specs, outputs: Specs
) -> str | None:
    if inputs[0].is_quantized:
        return _why_not_scalar(inputs[0]) or why_not_log_softmax(inputs[0], outputs[0])
    return _why_not(inputs, outputs)


def _lower_log_softmax(
    context: LoweringContext, _o: LogSoftmaxOptions, inputs: Specs, outputs: Specs
) -> Function:
    """Compute x - max - log(sum), kernels/internal/reference/log_softmax.h."""
    if inputs[0].is_quantized:
        return _integers(lower_log_softmax(inputs[0], outputs[0]))
    accumulator = context.precision.accumulator(inputs[0].dtype)

    def log_softmax(x: jax.Array) -> tuple[jax.Array]:
        if x.size == 0:
            return (x,)
        shifted = _shifted(x.astype(accumulator))
        y = shifted - jnp.log(jnp.sum(jnp.exp(shifted), axis=-1, keepdims=True))
        return (y.astype(x.dtype),)

    return log_softmax


LOG_SOFTMAX = OpRule("LOG_SOFTMAX", LogSoftmaxOptions, 2, _why_not_log_softmax, _lower_log_softmax)


def _why_not_l2(
    _context: LoweringContext, o: L2NormOptions, inputs: Specs, outputs: Specs
) -> str | None:
    activation = o.fused_activation_function
    fused = f"LiteRT normalizes without a fused activation, not with {activation.name}"
    if activation is not ActivationFunctionType.NONE:
        return fused
    if inputs[0].is_quantized:
        return _why_not_scalar(inputs[0]) or why_not_l2_normalization(inputs[0], outputs[0])
    return _why_not(inputs, outputs)


def _lower_l2(
    context: LoweringContext, _o: L2NormOptions, inputs: Specs, outputs: Specs
) -> Function:
    """Compute x / max(sqrt(sum x^2), epsilon), kernels/internal/reference/l2normalization.h."""
    if inputs[0].is_quantized:
        return _integers(lower_l2_normalization(inputs[0], outputs[0]))
    accumulator = context.precision.accumulator(inputs[0].dtype)

    def l2_normalization(x: jax.Array) -> tuple[jax.Array]:
        wide = x.astype(accumulator)
        norm = root(jnp.sum(wide * wide, axis=-1, keepdims=True))
        return ((wide / jnp.maximum(norm, scalar(_L2_EPSILON, norm))).astype(x.dtype),)

    return l2_normalization


L2_NORMALIZATION = OpRule("L2_NORMALIZATION", L2NormOptions, 2, _why_not_l2, _lower_l2)


def _why_not_local_response(
    _context: LoweringContext,
    o: LocalResponseNormalizationOptions,
    inputs: Specs,
    outputs: Specs,
) -> str | None:
    x = inputs[0]
    return first_reason(
        None if len(x.shape) == 4 else f"{x.name!r} has rank {len(x.shape)}, not 4",
        why_not_dtype(x, FLOATS),
        why_not_result(outputs[0], x.dtype),
        f"radius {o.radius} is negative" if o.radius < 0 else None,
    )


def _lower_local_response(
    context: LoweringContext,
    o: LocalResponseNormalizationOptions,
    inputs: Specs,
    _outputs: Specs,
) -> Function:
    """Compute x (bias + alpha sum x_i^2)^-beta, over the channels up to `radius` away.

    As kernels/internal/optimized/optimized_ops.h and TensorFlow; the reference kernel leaves the
    last neighbor out.
    """
    accumulator = context.precision.accumulator(inputs[0].dtype)
    radius = min(o.radius, inputs[0].shape[-1])  # beyond the channels there are only zeros

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


LOCAL_RESPONSE_NORMALIZATION = OpRule(
    "LOCAL_RESPONSE_NORMALIZATION",
    LocalResponseNormalizationOptions,
    1,
    _why_not_local_response,
    _lower_local_response,
)

RULES = table(SOFTMAX, LOG_SOFTMAX, L2_NORMALIZATION, LOCAL_RESPONSE_NORMALIZATION)
