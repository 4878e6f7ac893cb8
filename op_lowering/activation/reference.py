"""Activation functions. Sources: kernels/activations.cc and kernels/internal/reference."""

import math
from typing import Any

import numpy as np

from jaxdelegate.op_lowering.activation.options import GeluOptions, LeakyReluOptions
from jaxdelegate.op_lowering.elementwise.reference_quantized import clamped, tabulated
from jaxdelegate.op_lowering.records.enums import ActivationFunctionType as Act
from jaxdelegate.op_lowering.spec import Shape, Specs, TensorSpec
from jaxdelegate.quant import fixed_point as fixed
from jaxdelegate.quant import lookup
from jaxdelegate.quant.multiplier import checked_log2, downscale_multiplier, quantize_multiplier
from jaxdelegate.reference.kernel import Array, Kernel, Run, same_shape
from jaxdelegate.reference.pointwise import by_scale, by_table, elementwise, with_options
from jaxdelegate.reference.quantization import (
    range_of,
    require_symmetric,
    scale_of,
    steps_of,
    zero_point_of,
)

# ---- of integers: RELU and variants


def _relu(name: str, lower: Act, upper: Act) -> Run:
    """Rescale, then clamp to the bounds of two fused activations (QuantizedReluX)."""

    def run(_o: object, inputs: Specs, outputs: Specs, x: Array) -> tuple[Array]:
        (y,) = outputs
        require_symmetric(name, *inputs, y)
        pair = quantize_multiplier(float(scale_of(inputs[0]) / scale_of(y)))
        steps = fixed.multiply_by_quantized_multiplier(steps_of(x, inputs[0]), *pair)
        (low, _), (_, high) = range_of(y, lower), range_of(y, upper)
        (q,) = clamped(steps, y)
        return (np.clip(q, low, high).astype(y.dtype),)

    return run


relu = _relu("RELU", Act.RELU, Act.RELU)
relu6 = _relu("RELU6", Act.RELU, Act.RELU6)
relu_n1_to_1 = _relu("RELU_N1_TO_1", Act.RELU_N1_TO_1, Act.RELU_N1_TO_1)
relu_0_to_1 = _relu("RELU_0_TO_1", Act.RELU, Act.RELU_N1_TO_1)


def leaky_relu(o: LeakyReluOptions, inputs: Specs, outputs: Specs, x: Array) -> tuple[Array]:
    """reference/leaky_relu.h."""
    require_symmetric("LEAKY_RELU", *inputs, *outputs)
    source, target = scale_of(inputs[0]), scale_of(outputs[0])
    kept = quantize_multiplier(float(source / target))
    multiplier, shift = quantize_multiplier(float(source * np.float32(o.alpha) / target))
    steps = steps_of(x, inputs[0])
    positive = fixed.multiply_by_quantized_multiplier(steps, *kept)
    negative = fixed.multiply_by_quantized_multiplier(steps, abs(multiplier), shift)
    negative = -negative if multiplier < 0 else negative
    return clamped(np.where(steps >= 0, positive, negative), outputs[0])


def prelu(_o: object, inputs: Specs, outputs: Specs, x: Array, alpha: Array) -> tuple[Array]:
    """reference/prelu.h; alpha is int8 if x is int16."""
    of_x, of_alpha, of_y = scale_of(inputs[0]), scale_of(inputs[1]), scale_of(outputs[0])
    steps = steps_of(x, inputs[0])
    product = steps * steps_of(alpha, inputs[1])
    positive = fixed.multiply_by_quantized_multiplier(
        steps, *quantize_multiplier(float(of_x / of_y))
    )
    pair = quantize_multiplier(float(of_x * of_alpha / of_y))
    negative = fixed.multiply_by_quantized_multiplier(product, *pair)
    return clamped(np.where(steps >= 0, positive, negative), outputs[0])


# ---- HARD_SWISH


def hard_swish(_o: object, inputs: Specs, outputs: Specs, x: Array) -> tuple[Array]:
    """reference/hard_swish.h, in int16."""
    hires_scale = np.float32(1) / np.float32(128) * scale_of(inputs[0])
    reluish_scale = np.float32(3) / np.float32(32768)
    output_multiplier, output_exponent = quantize_multiplier(
        float(hires_scale / scale_of(outputs[0]))
    )
    reluish_multiplier, reluish_exponent = quantize_multiplier(float(hires_scale / reluish_scale))
    if output_exponent > 0:
        raise ValueError(f"the output's scale {scale_of(outputs[0])} is too small")

    hires = (steps_of(x, inputs[0]) * 128).astype(np.int16)
    on_output_scale = fixed.saturating_rounding_doubling_high_mul(
        hires, downscale_multiplier(output_multiplier)
    )
    reluish = hires
    if reluish_exponent > 0:
        reluish = fixed.saturating_left_shift(reluish, reluish_exponent - 1)
    reluish = fixed.saturating_rounding_doubling_high_mul(
        reluish, downscale_multiplier(reluish_multiplier)
    )
    if reluish_exponent > 0:
        reluish = fixed.saturating_left_shift(reluish, 1)
    if reluish_exponent < 0:
        reluish = fixed.rounding_divide_by_pot(reluish, -reluish_exponent)
    gate = ((reluish.astype(np.int32) + 32768) >> 1).astype(np.int16)  # [-1, 1] -> [0, 1]
    y = fixed.rounding_divide_by_pot(
        fixed.saturating_doubling_high_mul(gate, on_output_scale), -output_exponent
    )
    zero_point = np.int16(zero_point_of(outputs[0]))
    with_zero_point = (y.astype(np.int32) + zero_point).astype(np.int16)  # wraps around
    limits = np.iinfo(outputs[0].dtype)
    return (np.clip(with_zero_point, limits.min, limits.max).astype(outputs[0].dtype),)


# ---- sigmoids and tables


def _require_scale(spec: TensorSpec, expected: float) -> None:
    if scale_of(spec) != expected:
        raise ValueError(f"the scale of {spec.name!r} is {scale_of(spec)}, not {expected}")


def logistic(_o: object, inputs: Specs, outputs: Specs, x: Array) -> tuple[Array]:
    """SigmoidPrepare; reference/integer_ops/logistic.h for int16."""
    require_symmetric("LOGISTIC", *inputs, *outputs)
    if x.dtype != np.int16:
        _require_scale(outputs[0], 1 / 256)
        return tabulated(x, inputs[0], outputs[0], lookup.logistic)
    _require_scale(outputs[0], 1 / 32768)
    pair = lookup.int16_input_multiplier(float(scale_of(inputs[0])), 0)
    return (lookup.logistic_int16(x, *pair),)


def tanh(_o: object, inputs: Specs, outputs: Specs, x: Array) -> tuple[Array]:
    """TanhPrepare; reference/integer_ops/tanh.h for int16."""
    require_symmetric("TANH", *inputs, *outputs)
    if x.dtype != np.int16:
        return tabulated(x, inputs[0], outputs[0], lookup.tanh)
    if checked_log2(float(scale_of(outputs[0]))) != (-15, True):
        raise ValueError(f"the scale of {outputs[0].name!r} is {scale_of(outputs[0])}, not 2**-15")
    pair = lookup.int16_input_multiplier(float(scale_of(inputs[0])), 1)
    return (lookup.tanh_int16(x, *pair),)


def elu(_o: object, inputs: Specs, outputs: Specs, x: Array) -> tuple[Array]:
    """EluPrepare, for int8."""
    return tabulated(x, inputs[0], outputs[0], lookup.elu)


def gelu(o: GeluOptions, inputs: Specs, outputs: Specs, x: Array) -> tuple[Array]:
    """GeluPrepare, reference/gelu.h."""
    function = lookup.gelu_approximate if o.approximate else lookup.gelu
    return tabulated(x, inputs[0], outputs[0], function)


# ---- of floats

_erfc = np.vectorize(math.erfc, otypes=[np.float64])


def _clip(low: float, high: float, x: Array) -> Any:
    return np.where(x > high, x.dtype.type(high), np.where(x < low, x.dtype.type(low), x))


def _logistic(x: Array) -> Any:
    # kernels/internal/reference/logistic.h
    middle = 1 / (1 + np.exp(-x))
    return np.where(x > 16.619047164916992188, 1, np.where(x < -9, np.exp(x), middle))


def _leaky_relu(o: LeakyReluOptions, x: Array) -> Any:
    return np.where(x > 0, x, x * x.dtype.type(o.alpha))


def _gelu(o: GeluOptions, x: Array) -> Any:
    # kernels/internal/reference/gelu.h
    if o.approximate:
        return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return 0.5 * x * _erfc(x * -math.sqrt(0.5))


_8_BITS, _16_BITS = "int8 uint8", "int8 uint8 int16"


def _kernel(plain: Run, integer: Run, takes: str) -> Kernel:
    return Kernel(by_scale(plain, by_table(integer), takes), same_shape)


def prelu_shape(_options: object, inputs: Specs) -> tuple[Shape]:
    x, alpha = inputs[:2]
    if np.broadcast_shapes(x.shape, alpha.shape) != x.shape:
        raise ValueError(f"PRELU: alpha {alpha.shape} is larger than the input {x.shape}")
    return (x.shape,)


KERNELS = {
    "RELU": _kernel(elementwise(lambda x: np.where(x < 0, x.dtype.type(0), x)), relu, _16_BITS),
    "RELU6": _kernel(elementwise(lambda x: _clip(0, 6, x)), relu6, _16_BITS),
    "RELU_N1_TO_1": _kernel(elementwise(lambda x: _clip(-1, 1, x)), relu_n1_to_1, _8_BITS),
    "RELU_0_TO_1": _kernel(elementwise(lambda x: _clip(0, 1, x)), relu_0_to_1, _8_BITS),
    "LOGISTIC": _kernel(elementwise(_logistic), logistic, _16_BITS),
    "TANH": _kernel(elementwise(np.tanh), tanh, _16_BITS),
    "PRELU": Kernel(
        by_scale(elementwise(lambda x, alpha: np.where(x >= 0, x, x * alpha)), prelu, _16_BITS),
        prelu_shape,
    ),
    "LEAKY_RELU": _kernel(with_options(_leaky_relu), leaky_relu, _16_BITS),
    "ELU": _kernel(elementwise(lambda x: np.where(x < 0, np.expm1(x), x)), elu, "int8"),
    "GELU": _kernel(with_options(_gelu), gelu, _16_BITS),
    "HARD_SWISH": _kernel(elementwise(lambda x: x * _clip(0, 6, x + 3) / 6), hard_swish, _8_BITS),
}
