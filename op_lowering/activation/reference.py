"""Activation functions. Sources: kernels/activations.cc and kernels/internal/reference."""

import math
from typing import Any

import numpy as np

from jaxdelegate.op_lowering.activation import reference_quantized as quantized
from jaxdelegate.op_lowering.activation.options import GeluOptions, LeakyReluOptions
from jaxdelegate.op_lowering.spec import Shape, Specs
from jaxdelegate.reference.kernel import Array, Kernel, same_shape
from jaxdelegate.reference.pointwise import by_scale, by_table, elementwise, with_options

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

relu = by_scale(
    elementwise(lambda x: np.where(x < 0, x.dtype.type(0), x)), by_table(quantized.relu), _16_BITS
)
relu6 = by_scale(elementwise(lambda x: _clip(0, 6, x)), by_table(quantized.relu6), _16_BITS)
relu_n1_to_1 = by_scale(
    elementwise(lambda x: _clip(-1, 1, x)), by_table(quantized.relu_n1_to_1), _8_BITS
)
relu_0_to_1 = by_scale(
    elementwise(lambda x: _clip(0, 1, x)), by_table(quantized.relu_0_to_1), _8_BITS
)
logistic = by_scale(elementwise(_logistic), by_table(quantized.logistic), _16_BITS)
tanh = by_scale(elementwise(np.tanh), by_table(quantized.tanh), _16_BITS)
elu = by_scale(
    elementwise(lambda x: np.where(x < 0, np.expm1(x), x)), by_table(quantized.elu), "int8"
)
hard_swish = by_scale(
    elementwise(lambda x: x * _clip(0, 6, x + 3) / 6), by_table(quantized.hard_swish), _8_BITS
)
prelu = by_scale(
    elementwise(lambda x, alpha: np.where(x >= 0, x, x * alpha)), quantized.prelu, _16_BITS
)
leaky_relu = by_scale(with_options(_leaky_relu), by_table(quantized.leaky_relu), _16_BITS)
gelu = by_scale(with_options(_gelu), by_table(quantized.gelu), _16_BITS)


def prelu_shape(_options: object, inputs: Specs) -> tuple[Shape]:
    x, alpha = inputs[:2]
    if np.broadcast_shapes(x.shape, alpha.shape) != x.shape:
        raise ValueError(f"PRELU: alpha {alpha.shape} is larger than the input {x.shape}")
    return (x.shape,)


KERNELS = {
    "RELU": Kernel(relu, same_shape),
    "RELU6": Kernel(relu6, same_shape),
    "RELU_N1_TO_1": Kernel(relu_n1_to_1, same_shape),
    "RELU_0_TO_1": Kernel(relu_0_to_1, same_shape),
    "LOGISTIC": Kernel(logistic, same_shape),
    "TANH": Kernel(tanh, same_shape),
    "PRELU": Kernel(prelu, prelu_shape),
    "LEAKY_RELU": Kernel(leaky_relu, same_shape),
    "ELU": Kernel(elu, same_shape),
    "GELU": Kernel(gelu, same_shape),
    "HARD_SWISH": Kernel(hard_swish, same_shape),
}
