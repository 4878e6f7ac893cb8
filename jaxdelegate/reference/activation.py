"""Activation functions. Sources: kernels/activations.cc and kernels/internal/reference."""

import math
from typing import Any

import numpy as np

from jaxdelegate.op_lowering.options import GeluOptions, LeakyReluOptions
from jaxdelegate.op_lowering.spec import Shape, Specs
from jaxdelegate.reference.kernel import Array
from jaxdelegate.reference.pointwise import elementwise, with_options

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


relu = elementwise(lambda x: np.where(x < 0, x.dtype.type(0), x))
relu6 = elementwise(lambda x: _clip(0, 6, x))
relu_n1_to_1 = elementwise(lambda x: _clip(-1, 1, x))
relu_0_to_1 = elementwise(lambda x: _clip(0, 1, x))
logistic = elementwise(_logistic)
tanh = elementwise(np.tanh)
elu = elementwise(lambda x: np.where(x < 0, np.expm1(x), x))
hard_swish = elementwise(lambda x: x * _clip(0, 6, x + 3) / 6)
prelu = elementwise(lambda x, alpha: np.where(x >= 0, x, x * alpha))
leaky_relu = with_options(_leaky_relu)
gelu = with_options(_gelu)


def prelu_shape(_options: object, inputs: Specs) -> tuple[Shape]:
    """The shape of x, to which alpha broadcasts.

    Raises:
        ValueError: alpha is larger than x.
    """
    x, alpha = inputs[:2]
    if np.broadcast_shapes(x.shape, alpha.shape) != x.shape:
        raise ValueError(f"PRELU: alpha {alpha.shape} is larger than the input {x.shape}")
    return (x.shape,)
