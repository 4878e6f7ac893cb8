"""Normalizations along the last axis, in numpy; each names the kernel's header."""

import numpy as np

from jaxdelegate.op_lowering.normalization.options import (
    L2NormOptions,
    LocalResponseNormalizationOptions,
    SoftmaxOptions,
)
from jaxdelegate.op_lowering.records.enums import ActivationFunctionType
from jaxdelegate.op_lowering.records.record import NoOptions
from jaxdelegate.op_lowering.reduction.reference import accumulator, refuse_quantized
from jaxdelegate.op_lowering.spec import Specs
from jaxdelegate.quant.fixed_math import (
    exp_on_negative_values,
    inverse_sqrt,
    log_at_least_one,
    reciprocal,
)
from jaxdelegate.quant.fixed_point import (
    count_leading_zeros,
    multiply_by_quantized_multiplier,
    rescale,
    rounding_divide_by_pot,
    saturate,
    saturating_rounding_doubling_high_mul,
    wrap,
)
from jaxdelegate.quant.lookup import exp, lookup_table, lut_lookup, one_over_one_plus
from jaxdelegate.quant.multiplier import (
    input_radius,
    log_softmax_multipliers,
    quantize_multiplier,
    softmax_multiplier,
)
from jaxdelegate.quant.params import tensor_scale, tensor_zero_point
from jaxdelegate.quant.requantize import clamp
from jaxdelegate.reference.kernel import Array, Kernel, same_shape
from jaxdelegate.reference.quantization import (
    quantization_of,
    require_quantization,
    require_symmetric,
)

# ---- integers; quantized.py names the sources

_INT16, _INT32 = np.dtype(np.int16), np.dtype(np.int32)
_RESULTS = {
    np.dtype(np.int8): (np.int8, np.int16),
    np.dtype(np.uint8): (np.uint8, np.int16),
    _INT16: (np.int16,),
}
# Integer bits: of exponents, of their exponentials' sums, of logarithms in the output.
_EXPONENT, _SUM, _LOG = 5, 12, 4


def quantized_softmax(o: SoftmaxOptions, inputs: Specs, outputs: Specs, x: Array) -> tuple[Array]:
    """exp(beta x) over its sum: 8 bits to 8 or 16, or 16 bits to 16.

    The output's scale is not read: its whole range, from int16 the positive half, is [0, 1].
    """
    source = quantization_of("SOFTMAX", inputs[0], *_RESULTS)
    quantization_of("SOFTMAX", outputs[0], *_RESULTS[x.dtype])
    require_symmetric("SOFTMAX", inputs[0])
    scale, beta = tensor_scale(source), np.float32(o.beta)
    if x.dtype == outputs[0].dtype and x.dtype != np.uint8:
        wanted = (1 / 256, -128) if x.dtype == np.int8 else (1 / 32768, 0)
        require_quantization("SOFTMAX", outputs[0], *wanted, tolerance=1e-3)
    if x.size == 0:
        return (np.zeros(x.shape, outputs[0].dtype),)
    if x.dtype == np.int16:
        return (_softmax_int16(x, np.float32(scale) * beta),)
    return (_softmax_8_bits(x, scale, float(beta), outputs[0].dtype),)


def _less_largest(x: Array) -> Array:
    row = x.astype(np.int32)
    return np.asarray(row - row.max(axis=-1, keepdims=True))


def _sum_exponentials(exponentials: Array, counted: Array) -> Array:
    """Q12. Sums of 4096 and more saturate; the kernels' int32 overflows."""
    terms = np.where(counted, rescale(exponentials, 0, _SUM), 0)
    return saturate(terms.sum(axis=-1, keepdims=True, dtype=np.int64), _INT32)


def _softmax_8_bits(x: Array, scale: float, beta: float, dtype: np.dtype) -> Array:
    multiplier, shift = softmax_multiplier(beta, scale, _EXPONENT)
    difference = _less_largest(x)
    counted = difference >= -input_radius(_EXPONENT, shift)
    exponents = multiply_by_quantized_multiplier(difference, multiplier, shift)
    exponentials = exp_on_negative_values(exponents, _EXPONENT)
    over_sum, bits_over_one = reciprocal(_sum_exponentials(exponentials, counted), _SUM)
    exponent = np.broadcast_to(bits_over_one + 31 - 8 * dtype.itemsize, x.shape)
    y = saturating_rounding_doubling_high_mul(over_sum, exponentials)
    y = rounding_divide_by_pot(y, np.minimum(exponent, 31))
    # The kernel aborts where the exponent exceeds 31: there no value reaches half a step.
    y = np.where(counted & (exponent <= 31), y, 0)
    low, high = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
    return clamp(y.astype(np.int64) + low, low, high, dtype)


def _softmax_int16(x: Array, step: np.float32) -> Array:
    """Tables of exp on [-10, 0] and of 1 / (1 + x) on [0, 1]; 32767 stands for 1 in both."""
    unit = 2.0 / 65535
    of_exp = lookup_table(exp, 10.0 / 65535, 32767, unit, 0, _INT16, real=np.float64)
    of_inverse = lookup_table(
        one_over_one_plus, 1.0 / 65535, -32768, unit, 0, _INT16, real=np.float64
    )
    multiplier, shift = quantize_multiplier(float(step) / (10.0 / 65535))
    exponents = multiply_by_quantized_multiplier(_less_largest(x), multiplier, shift)
    centered = clamp(exponents.astype(np.int64) + 32767, -32768, 32767, _INT16)
    exponentials = lut_lookup(centered, of_exp).astype(np.int64)
    total = wrap(exponentials.sum(axis=-1, keepdims=True), _INT32)
    zeros = count_leading_zeros(total).astype(np.int64)
    # The sum's significand in [1, 2), where 2**16 is 1.
    significand = ((total.astype(np.int64) << (zeros - 1)) + (1 << 13)) >> 14
    centered = clamp(significand - (1 << 15) - (1 << 16), -32768, 32767, _INT16)
    inverse = lut_lookup(centered, of_inverse).astype(np.int64)
    right = 31 - zeros
    y = (exponentials * inverse + (np.int64(1) << (right - 1))) >> right
    return clamp(y, 0, 32767, _INT16)


def quantized_log_softmax(inputs: Specs, outputs: Specs, x: Array) -> tuple[Array]:
    """In sixteenths below the largest integer."""
    source = quantization_of("LOG_SOFTMAX", inputs[0], np.int8, np.uint8)
    quantization_of("LOG_SOFTMAX", outputs[0], x.dtype)
    low, high = int(np.iinfo(x.dtype).min), int(np.iinfo(x.dtype).max)
    require_quantization("LOG_SOFTMAX", outputs[0], 16 / 256, high)
    if x.size == 0:
        return (x,)
    multiplier, shift, back, back_shift = log_softmax_multipliers(
        1.0, tensor_scale(source), _EXPONENT
    )
    difference, radius = _less_largest(x), input_radius(_EXPONENT, shift)
    exponents = multiply_by_quantized_multiplier(difference, multiplier, shift)
    exponentials = exp_on_negative_values(exponents, _EXPONENT)
    total = _sum_exponentials(exponentials, difference >= -radius)
    log_total = log_at_least_one(total, _SUM, _EXPONENT).astype(np.int64)
    # Below this difference, exponents less the logarithm leave the range of Q5.
    reach = multiply_by_quantized_multiplier(wrap(log_total - 2**31, _INT32), back, back_shift)
    y = rounding_divide_by_pot(wrap(exponents - log_total, _INT32), 31 - _EXPONENT - _LOG)
    y = np.where(difference > np.maximum(reach, -radius - 1), y.astype(np.int64) + high, low)
    return (clamp(y, low, high, x.dtype),)


def quantized_l2_normalization(inputs: Specs, outputs: Specs, x: Array) -> tuple[Array]:
    """In steps of 1/128; rows of zeros stay zeros."""
    source = quantization_of("L2_NORMALIZATION", inputs[0], np.int8, np.uint8)
    quantization_of("L2_NORMALIZATION", outputs[0], x.dtype)
    zero_point = 128 if x.dtype == np.uint8 else 0
    require_quantization("L2_NORMALIZATION", outputs[0], 1 / 128, zero_point)
    steps = x.astype(np.int64) - tensor_zero_point(source)
    squares = wrap(np.square(steps).sum(axis=-1, keepdims=True), _INT32)
    multiplier, shift = inverse_sqrt(squares)
    if x.dtype == np.uint8:
        y = multiply_by_quantized_multiplier(wrap(128 * steps, _INT32), multiplier, shift)
    else:
        y = multiply_by_quantized_multiplier(wrap(steps, _INT32), multiplier, shift + 7)
    return (clamp(y + zero_point, np.iinfo(x.dtype).min, np.iinfo(x.dtype).max, x.dtype),)


# ---- floats


def _less_max(x: Array) -> Array:
    wide = x.astype(accumulator(x.dtype))
    largest = wide.max(axis=-1, keepdims=True, initial=-np.inf)
    return np.asarray(wide - largest)


@np.errstate(all="ignore")
def softmax(o: SoftmaxOptions, inputs: Specs, outputs: Specs, x: Array) -> tuple[Array]:
    """Compute exp(beta (x - max)) over its sum, kernels/internal/reference/softmax.h."""
    if inputs[0].is_quantized:
        return quantized_softmax(o, inputs, outputs, x)
    shifted = _less_max(x)
    powers = np.exp(shifted * np.asarray(o.beta, shifted.dtype))
    return ((powers / powers.sum(axis=-1, keepdims=True)).astype(outputs[0].dtype),)


@np.errstate(all="ignore")
def log_softmax(_o: NoOptions, inputs: Specs, outputs: Specs, x: Array) -> tuple[Array]:
    """Compute x - max - log(sum(exp(x - max))), kernels/internal/reference/log_softmax.h."""
    if inputs[0].is_quantized:
        return quantized_log_softmax(inputs, outputs, x)
    shifted = _less_max(x)
    log_sum = np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return ((shifted - log_sum).astype(outputs[0].dtype),)


@np.errstate(all="ignore")
def l2_normalization(o: L2NormOptions, inputs: Specs, outputs: Specs, x: Array) -> tuple[Array]:
    """Divide by the norm, at least 1e-6, as kernels/internal/reference/l2normalization.h."""
    if o.fused_activation_function is not ActivationFunctionType.NONE:
        raise ValueError(f"L2_NORMALIZATION with {o.fused_activation_function.name}")
    if inputs[0].is_quantized:
        return quantized_l2_normalization(inputs, outputs, x)
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
