"""Integers of one scale as integers of another. Its counterpart is jax_requantize.py."""

from typing import Any

import numpy as np

from jaxdelegate.quant import fixed_point as fixed
from jaxdelegate.quant.affine import round_half_away
from jaxdelegate.quant.multiplier import quantize_multiplier, quantize_multipliers
from jaxdelegate.quant.params import (
    Quantization,
    channel_scales,
    integer_range,
    tensor_scale,
    tensor_zero_point,
)

_INT32 = np.dtype(np.int32)


# ---- Multipliers


def rescale_multiplier(
    source: Quantization, target: Quantization, *, in_float32: bool = False
) -> tuple[int, int]:
    """Multiplier and shift of source scale / target scale.

    `in_float32` rounds the quotient to float32 first, as RELU, LEAKY_RELU, PRELU and ABS do
    (kernels/activations.cc, elementwise.cc); QUANTIZE does not (kernels/quantize.cc).
    """
    real = _quotient(tensor_scale(source), tensor_scale(target))
    return quantize_multiplier(float(np.float32(real)) if in_float32 else real)


def convolution_multipliers(
    x: Quantization, w: Quantization, y: Quantization, channels: int
) -> tuple[np.ndarray, np.ndarray]:
    """Multipliers and shifts, int32 [channels], of x scale * w scale / y scale.

    The float32 scales are multiplied, then divided, in float64. Source:
    PopulateConvolutionQuantizationParams in kernels/kernel_util.cc, for all convolutions of
    int8 and int16, and FULLY_CONNECTED with a scale for each row (kernels/fully_connected.cc).
    """
    return quantize_multipliers(effective_scales(x, w, y, channels))


def effective_scales(
    x: Quantization, w: Quantization, y: Quantization, channels: int
) -> np.ndarray:
    """float64 [channels]: x scale * w scale / y scale, what convolution_multipliers stand for."""
    product = tensor_scale(x) * channel_scales(w, channels).astype(np.float64)
    return np.asarray(_quotient(product, tensor_scale(y)))


def product_multiplier(x: Quantization, w: Quantization, y: Quantization) -> tuple[int, int]:
    """Multiplier and shift of x scale * w scale / y scale, one scale each.

    The product is rounded to float32, the quotient is taken in float64: other low bits than
    convolution_multipliers. Source: GetQuantizedConvolutionMultipler in kernels/kernel_util.cc, for
    BATCH_MATMUL, convolutions of uint8 and FULLY_CONNECTED with one filter scale; the reference
    kernel of the last computes in float64 instead, see requantize_accumulator_by_real.
    """
    product = np.float32(tensor_scale(x)) * np.float32(tensor_scale(w))
    return quantize_multiplier(_quotient(float(product), tensor_scale(y)))


def float32_product_multiplier(
    a: Quantization, b: Quantization, y: Quantization
) -> tuple[int, int]:
    """Multiplier and shift of a scale * b scale / y scale, all of it in float32.

    Source: MUL in kernels/mul.cc, PRELU in kernels/activations.cc.
    """
    product = np.float32(tensor_scale(a)) * np.float32(tensor_scale(b))
    return quantize_multiplier(float(_quotient(product, np.float32(tensor_scale(y)))))


def bias_scale_fits(x: Quantization, w: Quantization, bias: Quantization, y: Quantization) -> bool:
    """Whether the bias' scale is x scale * w scale, as the kernel assumes.

    Source: GetQuantizedConvolutionMultipler in kernels/kernel_util.cc, which refuses a difference
    of more than 0.02 output steps; without a bias it checks nothing.
    """
    difference = abs(tensor_scale(x) * tensor_scale(w) - tensor_scale(bias))
    return bool(_quotient(difference, tensor_scale(y)) <= 0.02)


def _quotient(x: Any, y: Any) -> Any:
    """Division; for a divisor of 0 infinity or NaN, which quantize_multiplier refuses."""
    with np.errstate(all="ignore"):
        return np.divide(x, y)


# ---- Data


def clamp(
    x: fixed.Integers, low: fixed.Integers, high: fixed.Integers, dtype: np.dtype
) -> np.ndarray:
    return np.asarray(np.minimum(np.maximum(fixed.wide(x), low), high), dtype)


def add_bias(accumulator: np.ndarray, bias: np.ndarray | None) -> np.ndarray:
    """The sum accumulator [..., channels] + bias [channels], of the accumulator's dtype.

    Accumulators are int32, or int64 for int16 activations, see
    fixed_point.multiply_by_quantized_multiplier_64. The sum wraps around.
    """
    if bias is None:
        return accumulator
    return fixed.wrap(fixed.wide(accumulator) + fixed.wide(bias), accumulator.dtype)


def requantize(
    q: np.ndarray, source: Quantization, target: Quantization, dtype: np.dtype
) -> np.ndarray:
    """Integers of the source's scale as integers of the target's, rounded and saturated.

    Source: the reference kernel of QUANTIZE between int8, uint8, int16 and int32
    (kernels/quantize.cc, reference/requantize.h). Differences of an int32 input from its zero point
    wrap around.
    """
    multiplier, shift = rescale_multiplier(source, target)
    steps = fixed.wrap(fixed.wide(q) - tensor_zero_point(source), _INT32)
    low, high = integer_range(dtype)
    return requantize_accumulator(
        steps, multiplier, shift, tensor_zero_point(target), (low, high), dtype
    )


def requantize_accumulator(
    accumulator: np.ndarray,
    multiplier: fixed.Integers,
    shift: fixed.Integers,
    zero_point: int,
    bounds: tuple[int, int],
    dtype: np.dtype,
) -> np.ndarray:
    """The end of an integer kernel: scale the accumulator, add the zero point, clamp.

    int64 accumulators are multiplied differently from int32 ones. There is one multiplier and
    shift, or [channels] for the last dimension. `bounds` is the output's range under the fused
    activation (params.activation_range).
    """
    multiply = (
        fixed.multiply_by_quantized_multiplier_64
        if accumulator.dtype == np.int64
        else fixed.multiply_by_quantized_multiplier
    )
    scaled = fixed.wide(multiply(accumulator, multiplier, shift)) + zero_point
    return clamp(fixed.wrap(scaled, _INT32), *bounds, dtype)


@np.errstate(invalid="ignore")  # a scale of NaN
def requantize_accumulator_by_real(
    accumulator: np.ndarray,
    scale: float | np.ndarray,
    zero_point: int,
    bounds: tuple[int, int],
    dtype: np.dtype,
) -> np.ndarray:
    """requantize_accumulator in float64, rounded once, halves away from zero; int32 saturates.

    Source: the reference kernels of FULLY_CONNECTED (reference/fully_connected.h, reference/
    integer_ops/fully_connected.h); the optimized ones use fixed point. `scale` is one, or float64
    [channels] for the last dimension (effective_scales).
    """
    steps = round_half_away(accumulator.astype(np.float64) * scale)
    return np.asarray(np.clip(steps + zero_point, *bounds), dtype)
