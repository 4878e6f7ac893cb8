"""Activation functions. Sources: kernels/activations.cc and kernels/internal/reference."""

import math
from typing import Any

import numpy as np

from jaxdelegate.op_lowering.activation import reference_quantized as quantized
from jaxdelegate.op_lowering.activation.options import GeluOptions, LeakyReluOptions
from jaxdelegate.op_lowering.spec import Shape, Specs
from jaxdelegate.reference.kernel import Array, Kernel, Run, same_shape
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


def _kernel(plain: Run, integer: Run, takes: str) -> Kernel:
    return Kernel(by_scale(plain, by_table(integer), takes), same_shape)


def prelu_shape(_options: object, inputs: Specs) -> tuple[Shape]:
    x, alpha = inputs[:2]
    if np.broadcast_shapes(x.shape, alpha.shape) != x.shape:
        raise ValueError(f"PRELU: alpha {alpha.shape} is larger than the input {x.shape}")
    return (x.shape,)


KERNELS = {
    "RELU": _kernel(
        elementwise(lambda x: np.where(x < 0, x.dtype.type(0), x)), quantized.relu, _16_BITS
    ),
    "RELU6": _kernel(elementwise(lambda x: _clip(0, 6, x)), quantized.relu6, _16_BITS),
    "RELU_N1_TO_1": _kernel(
        elementwise(lambda x: _clip(-1, 1, x)), quantized.relu_n1_to_1, _8_BITS
    ),
    "RELU_0_TO_1": _kernel(elementwise(lambda x: _clip(0, 1, x)), quantized.relu_0_to_1, _8_BITS),
    "LOGISTIC": _kernel(elementwise(_logistic), quantized.logistic, _16_BITS),
    "TANH": _kernel(elementwise(np.tanh), quantized.tanh, _16_BITS),
    "PRELU": Kernel(
        by_scale(
            elementwise(lambda x, alpha: np.where(x >= 0, x, x * alpha)), quantized.prelu, _16_BITS
        ),
        prelu_shape,
    ),
    "LEAKY_RELU": _kernel(with_options(_leaky_relu), quantized.leaky_relu, _16_BITS),
    "ELU": _kernel(elementwise(lambda x: np.where(x < 0, np.expm1(x), x)), quantized.elu, "int8"),
    "GELU": _kernel(with_options(_gelu), quantized.gelu, _16_BITS),
    "HARD_SWISH": _kernel(
        elementwise(lambda x: x * _clip(0, 6, x + 3) / 6), quantized.hard_swish, _8_BITS
    ),
}
