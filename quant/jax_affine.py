"""The jax twin of affine.py: the same functions on traced arrays, equal bit for bit."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdelegate.quant.affine import along, integer_range, nudged_range
from jaxdelegate.quant.params import Quantization


def dequantize(q: jax.Array, quantization: Quantization) -> jax.Array:
    """float32 reals; see affine.dequantize."""
    scale, zero_point = along(quantization, q.ndim)
    return jnp.asarray(scale) * (q.astype(np.int32) - jnp.asarray(zero_point)).astype(np.float32)


def quantize(x: jax.Array, quantization: Quantization, dtype: np.dtype) -> jax.Array:
    """Integers of `dtype`; see affine.quantize. Needs 64-bit types.

    XLA replaces x / (a constant) by x * (1 / constant). In float64 that still rounds to the float32
    quotient: a quotient of two float32 stays 2**-49 away from the middle between two float32, and
    the error is below 2**-51.
    """
    scale, zero_point = along(quantization, x.ndim)
    low, high = (
        jnp.asarray((bound - zero_point).astype(np.float32)) for bound in integer_range(dtype)
    )
    quotient = x.astype(np.float64) / jnp.asarray(scale.astype(np.float64))
    steps = lax.round(quotient.astype(np.float32), lax.RoundingMethod.AWAY_FROM_ZERO)
    steps = jnp.minimum(jnp.where(steps > low, steps, low), high)
    return (steps.astype(np.int32) + jnp.asarray(zero_point)).astype(dtype)


def fake_quantize(
    x: jax.Array, low: float, high: float, num_bits: int, *, narrow_range: bool
) -> jax.Array:
    """float32 `x` on 2**num_bits levels; see affine.fake_quantize. Needs 64-bit types."""
    first, last, step = nudged_range(low, high, num_bits, narrow_range=narrow_range)
    with np.errstate(divide="ignore"):
        inverse = np.float32(1) / step
    inside = jnp.where(x > first, x, first)
    inside = jnp.where(inside < last, inside, last)
    level = lax.round((inside - first) * inverse, lax.RoundingMethod.AWAY_FROM_ZERO)
    # In float32, product and sum become one fused operation, without the rounding between them.
    offset = level.astype(np.float64) * np.float64(step)
    offset = lax.reduce_precision(offset, exponent_bits=11, mantissa_bits=23)
    return (offset + np.float64(first)).astype(np.float32)
