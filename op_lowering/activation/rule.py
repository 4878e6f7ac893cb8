"""Activation functions as operators. Source: kernels/activations.cc."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdelegate.op_lowering.activation import quantized
from jaxdelegate.op_lowering.activation.options import LeakyReluOptions
from jaxdelegate.op_lowering.common.basics import clamp, hard_swish, relu, scalar
from jaxdelegate.op_lowering.common.derivatives import derived_as
from jaxdelegate.op_lowering.common.pointwise import Elementwise, Operands, binary, pointwise, unary
from jaxdelegate.op_lowering.dtypes import FLOATS
from jaxdelegate.op_lowering.records.record import NoOptions
from jaxdelegate.op_lowering.rule import Op, table

_SQRT_HALF = 0.7071067811865476
_SQRT_TWO_OVER_PI = 0.7978845608028654


def _elu(x: jax.Array) -> jax.Array:
    return jnp.where(x < 0, jnp.expm1(jnp.minimum(x, scalar(0, x))), x)


_derived_elu = derived_as(_elu, jax.nn.elu)  # its second derivative at 0


def _gelu(x: jax.Array) -> jax.Array:
    # 1 + erf(x) cancels far below zero; erfc(-x) does not
    return scalar(0.5, x) * x * lax.erfc(x * scalar(-_SQRT_HALF, x))


def _gelu_approximate(x: jax.Array) -> jax.Array:
    inner = scalar(_SQRT_TWO_OVER_PI, x) * (x + scalar(0.044715, x) * x * x * x)
    return scalar(0.5, x) * x * (scalar(1, x) + jnp.tanh(inner))


def _gelu_in_range(x: jax.Array) -> jax.Array:
    """`_gelu_approximate`, whose derivative is NaN where the cube of x is infinite."""
    is_inside = jnp.abs(x) < scalar(100, x)
    return jnp.where(is_inside, _gelu_approximate(jnp.where(is_inside, x, 0)), relu(x))


_derived_gelu = derived_as(_gelu_approximate, _gelu_in_range)


def _leaky_relu(op: Op[LeakyReluOptions]) -> Elementwise:
    return lambda x: jnp.where(x > 0, x, x * scalar(op.options.alpha, x))


def _why_not_prelu(op: Op[NoOptions]) -> str | None:
    x, alpha = op.inputs[:2]
    if np.broadcast_shapes(x.shape, alpha.shape) == x.shape:
        return None
    return f"alpha {list(alpha.shape)} is larger than the input {list(x.shape)}"


RULES = table(
    unary("RELU", 3, relu, integer=quantized.RELU),
    unary("RELU6", 3, lambda x: clamp(x, 0, 6), integer=quantized.RELU6),
    unary("RELU_N1_TO_1", 1, lambda x: clamp(x, -1, 1), integer=quantized.RELU_N1_TO_1),
    unary("RELU_0_TO_1", 1, lambda x: clamp(x, 0, 1), integer=quantized.RELU_0_TO_1),
    unary("LOGISTIC", 3, lax.logistic, integer=quantized.LOGISTIC),
    unary("TANH", 3, jnp.tanh, integer=quantized.TANH),
    binary(
        "PRELU",
        1,
        derived_as(
            lambda x, alpha: jnp.where(x >= 0, x, x * alpha),
            lambda x, alpha: jnp.where(x > 0, x, x * alpha),  # PyTorch's slope at 0
        ),
        dtypes=FLOATS,
        why_not=_why_not_prelu,
        integer=quantized.PRELU,
    ),
    pointwise("LEAKY_RELU", 2, _leaky_relu, Operands(FLOATS), integer=quantized.LEAKY_RELU),
    unary("ELU", 1, _derived_elu, integer=quantized.ELU),
    pointwise(
        "GELU",
        3,
        lambda op: _derived_gelu if op.options.approximate else _gelu,
        Operands(FLOATS),
        integer=quantized.GELU,
    ),
    unary("HARD_SWISH", 1, hard_swish, integer=quantized.HARD_SWISH),
)
