"""lookup.py for jax: lookups on traced arrays, equal bit for bit. Tables are numpy's."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdelegate.quant.jax_fixed_point import wide
from jaxdelegate.quant.lookup import SIGMOID_TABLE


def lut_lookup(x: jax.Array, table: np.ndarray) -> jax.Array:
    """The table's values at 8 bit integers, or at int16 ones, interpolated."""
    values = jnp.asarray(table)
    if x.dtype != np.int16:
        return values[lax.bitcast_convert_type(x, np.uint8).astype(np.int32)]
    index, offset = 256 + (x.astype(np.int32) >> 7), x.astype(np.int32) & 0x7F
    base, following = values[index], values[index + 1]
    slope = (following - base).astype(np.int32)  # of two int16: it wraps around
    return (base.astype(np.int32) + ((slope * offset + 64) >> 7)).astype(np.int16)


def _table_steps(x: jax.Array, multiplier: int, shift: int) -> jax.Array:
    if multiplier == 0:
        multiplier, shift = 3 << shift, 0
    half = 1 << (shift - 1) if shift > 0 else 0
    return wide((wide(x) * multiplier + half).astype(np.int32) >> shift)


def _interpolate(magnitude: jax.Array, bits: int) -> tuple[jax.Array, jax.Array]:
    index, offset = magnitude >> bits, magnitude & ((1 << bits) - 1)
    inside, table = jnp.minimum(index, 254), jnp.asarray(SIGMOID_TABLE)
    base = table[inside]
    return (base << bits) + offset * (table[inside + 1] - base), index >= 255


def logistic_int16(x: jax.Array, multiplier: int, shift: int) -> jax.Array:
    """LOGISTIC of int16, as Q0; see lookup.logistic_int16."""
    steps = _table_steps(x, multiplier, shift)
    y, beyond = _interpolate(jnp.abs(steps), 9)
    y = jnp.where(beyond, 0x7FFF << 10, y)
    y = jnp.where(steps >= 0, y + (1 << 9), (1 << 25) - y + (1 << 9) - 1)
    return (y >> 10).astype(np.int16)


def tanh_int16(x: jax.Array, multiplier: int, shift: int) -> jax.Array:
    """TANH of int16, as Q0; see lookup.tanh_int16."""
    steps = _table_steps(x, multiplier, shift)
    y, beyond = _interpolate(jnp.abs(steps), 8)
    y = jnp.where(beyond, 0xFFFF << 8, y) - (1 << 23)
    y = jnp.where(steps >= 0, y, -y - 1) + (1 << 7)
    return (y >> 8).astype(np.int16)
