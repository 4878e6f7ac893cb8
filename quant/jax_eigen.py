"""The jax counterpart of eigen.py: the same functions on traced arrays, equal bit for bit.

Needs 64-bit types: each step is taken in float64 and rounded to float32, which is what float32
alone would give, but which XLA cannot merge with the next step.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdelegate.quant.eigen import (
    EXP_EVEN,
    EXP_ODD,
    LN_2,
    LOG2_E,
    LOGISTIC_BOUNDS,
    TANH_BOUND,
    TANH_DENOMINATOR,
    TANH_NUMERATOR,
)
from jaxdelegate.quant.jax_affine import as_float32


def _constant(value: float) -> float:
    """What float32 makes of it."""
    return float(np.float32(value))


def _times(x: jax.Array, y: jax.Array | float) -> jax.Array:
    return as_float32(x * y)


def _plus(x: jax.Array, y: jax.Array | float) -> jax.Array:
    return as_float32(x + y)


def _polynomial(coefficients: tuple[float, ...], x: jax.Array) -> jax.Array:
    y = jnp.full_like(x, _constant(coefficients[0]))
    for c in coefficients[1:]:
        y = _plus(_times(y, x), _constant(c))
    return y


def tanh(x: jax.Array) -> jax.Array:
    """float32; see eigen.tanh."""
    bound = _constant(TANH_BOUND)
    wide = jnp.clip(x.astype(np.float64), -bound, bound)
    square = _times(wide, wide)
    cube = _times(square, wide)
    numerator = _plus(_times(cube, _polynomial(TANH_NUMERATOR, square)), wide)
    return (numerator / _polynomial(TANH_DENOMINATOR, square)).astype(np.float32)


def logistic(x: jax.Array) -> jax.Array:
    """float32; see eigen.logistic."""
    low, high = map(_constant, LOGISTIC_BOUNDS)
    half = jnp.clip(x.astype(np.float64), low, high) * 0.5
    exponent = jnp.floor(_plus(_times(half, _constant(LOG2_E)), 0.5))
    r = half
    for part in LN_2:
        r = _plus(r, -_times(exponent, _constant(part)))
    square = _times(r, r)
    rest = _plus(_times(r, _polynomial(EXP_ODD, square)), _polynomial(EXP_EVEN, square))
    power = _plus(_times(square, rest), _plus(r, 1.0)) * _power_of_two(exponent)
    e = _times(power, power)
    y = as_float32(e / _plus(e, 1.0))
    return jnp.where(x < low, jnp.zeros_like(y), y).astype(np.float32)


def _power_of_two(exponent: jax.Array) -> jax.Array:
    bits = (exponent.astype(np.int64) + 1023) << 52
    return jnp.asarray(lax.bitcast_convert_type(bits, np.float64))
