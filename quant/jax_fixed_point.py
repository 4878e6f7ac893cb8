"""The jax twin of fixed_point.py: the same functions on traced arrays, equal bit for bit.

Needs 64-bit types. Multipliers, shifts and exponents may be integers, numpy arrays or traced ones.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Integers = jax.Array | np.ndarray | int


def wide(x: Integers) -> jax.Array:
    """int64.

    Raises:
        RuntimeError: 64-bit types are off, so the products would be wrong.
    """
    y = jnp.asarray(x).astype(np.int64) if jax.config.read("jax_enable_x64") else None
    if y is None:
        raise RuntimeError("integer arithmetic needs 64-bit types: trace under jax.enable_x64(True)")
    return y


def dtype_of(x: Integers) -> np.dtype:
    """An array's dtype; int32 for a Python integer."""
    return np.dtype(np.int32) if isinstance(x, int) else np.dtype(x.dtype)


def wrap(x: jax.Array, dtype: np.dtype) -> jax.Array:
    """int64 values modulo 2**bits."""
    return x.astype(dtype)


def saturate(x: jax.Array, dtype: np.dtype) -> jax.Array:
    """int64 values clamped to the range of an integer dtype of numpy."""
    info = np.iinfo(dtype)
    return jnp.clip(x, int(info.min), int(info.max)).astype(dtype)


# ---- Accumulators by a real factor


def multiply_by_quantized_multiplier(
    x: Integers, multiplier: Integers, shift: Integers, *, single_rounding: bool = False
) -> jax.Array:
    """int32; see fixed_point.multiply_by_quantized_multiplier."""
    if single_rounding:
        right = 31 - wide(shift)
        product = wide(x) * wide(multiplier) + (np.int64(1) << (right - 1))
        return wrap(product >> right, np.dtype(np.int32))
    left, right = jnp.maximum(wide(shift), 0), jnp.maximum(-wide(shift), 0)
    shifted = wrap(wide(x) << left, np.dtype(np.int32))
    return rounding_divide_by_pot(
        saturating_rounding_doubling_high_mul(shifted, multiplier), right
    )
