"""Normalizations along the last axis, in numpy; each names the kernel's header."""

import numpy as np

from jaxdelegate.op_lowering.normalization import reference_quantized as quantized_normalization
from jaxdelegate.op_lowering.normalization.options import (
    L2NormOptions,
    LocalResponseNormalizationOptions,
    SoftmaxOptions,
)
from jaxdelegate.op_lowering.records.enums import ActivationFunctionType
from jaxdelegate.op_lowering.records.record import NoOptions
from jaxdelegate.op_lowering.reduction.reference import accumulator, refuse_quantized
from jaxdelegate.op_lowering.spec import Specs
from jaxdelegate.reference.kernel import Array, Kernel, same_shape


def _less_max(x: Array) -> Array:
    wide = x.astype(accumulator(x.dtype))
    largest = wide.max(axis=-1, keepdims=True, initial=-np.inf)
    return np.asarray(wide - largest)


@np.errstate(all="ignore")
def softmax(o: SoftmaxOptions, inputs: Specs, outputs: Specs, x: Array) -> tuple[Array]:
    """Compute exp(beta (x - max)) over its sum, kernels/internal/reference/softmax.h."""
    if inputs[0].is_quantized:
        return quantized_normalization.softmax(o, inputs, outputs, x)
    shifted = _less_max(x)
    powers = np.exp(shifted * np.asarray(o.beta, shifted.dtype))
    return ((powers / powers.sum(axis=-1, keepdims=True)).astype(outputs[0].dtype),)


@np.errstate(all="ignore")
def log_softmax(_o: NoOptions, inputs: Specs, outputs: Specs, x: Array) -> tuple[Array]:
    """Compute x - max - log(sum(exp(x - max))), kernels/internal/reference/log_softmax.h."""
    if inputs[0].is_quantized:
        return quantized_normalization.log_softmax(inputs, outputs, x)
    shifted = _less_max(x)
    log_sum = np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return ((shifted - log_sum).astype(outputs[0].dtype),)


@np.errstate(all="ignore")
def l2_normalization(o: L2NormOptions, inputs: Specs, outputs: Specs, x: Array) -> tuple[Array]:
    """Divide by the norm, at least 1e-6, as kernels/internal/reference/l2normalization.h."""
    if o.fused_activation_function is not ActivationFunctionType.NONE:
        raise ValueError(f"L2_NORMALIZATION with {o.fused_activation_function.name}")
    if inputs[0].is_quantized:
        return quantized_normalization.l2_normalization(inputs, outputs, x)
    wide = x.astype(accumulator(x.dtype))
    norm = np.sqrt(np.square(wide).sum(axis=-1, keepdims=True))
    return ((wide / np.maximum(norm, np.asarray(1e-6, norm.dtype))).astype(outputs[0].dtype),)


@np.errstate(all="ignore")
def local_response_normalization(
    o: LocalResponseNormalizationOptions, inputs: Specs, outputs: Specs, x: Array
) -> tuple[Array]:
    """Compute x (bias + alpha sum of squares up to `radius` channels away)^-beta.

    As kernels/internal/optimized/optimized_ops.h; the reference kernel omits the last neighbor.
    """
    refuse_quantized("LOCAL_RESPONSE_NORMALIZATION", inputs[0])
    wide = x.astype(accumulator(x.dtype))
    y, n = np.empty_like(wide), x.shape[-1]
    for c in range(n):
        near = wide[..., max(c - o.radius, 0) : min(c + o.radius + 1, n)]
        base = wide.dtype.type(o.bias) + wide.dtype.type(o.alpha) * np.square(near).sum(axis=-1)
        y[..., c] = wide[..., c] * np.power(base, wide.dtype.type(-o.beta))
    return (y.astype(outputs[0].dtype),)


KERNELS = {
    "SOFTMAX": Kernel(softmax, same_shape),
    "LOG_SOFTMAX": Kernel(log_softmax, same_shape),
    "L2_NORMALIZATION": Kernel(l2_normalization, same_shape),
    "LOCAL_RESPONSE_NORMALIZATION": Kernel(local_response_normalization, same_shape),
}
