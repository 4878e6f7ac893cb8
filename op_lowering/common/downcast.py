"""float32 to float16 or bfloat16, without making infinities of what was finite."""

from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax import lax

from jaxdelegate.op_lowering.dtypes import HALVES

# Largest value, bits of the exponent, bits of the mantissa. float16 ends at 65504; bfloat16 just
# short of float32's end, which masks are made of.
_FORMATS = {
    np.dtype(np.float16): (65504.0, 5, 10),
    np.dtype(ml_dtypes.bfloat16): (3.3895313892515355e38, 8, 7),
}


def downcast(x: Any, dtype: np.dtype, *, exactly: bool = False, infinities: bool = True) -> Any:
    """A float array as `dtype`; finite values beyond its range become its largest.

    Args:
        x: numpy or jax; what is that already passes.
        dtype: where to.
        exactly: round even if the value is upcast again right after, which XLA leaves out.
        infinities: whether they stay what they are; else they become the largest value too, by one
            clamp, which XLA:GPU computes at the end of the matrix product before it. What reads the
            sums twice it does not, and writes them to memory in float32 first.
    """
    dtype = np.dtype(dtype)
    if x.dtype == dtype or dtype not in HALVES:
        return x.astype(dtype)
    most = _FORMATS[dtype][0]
    if not isinstance(x, jax.Array):
        return np.where(np.isfinite(x), np.clip(x, -most, most), x).astype(dtype)
    y = lax.clamp(jnp.asarray(-most, x.dtype), x, jnp.asarray(most, x.dtype))
    if infinities:  # not by `isfinite`, which XLA:GPU fuses into few of its kernels
        y = jnp.where(jnp.abs(x) == jnp.inf, x, y)
    return rounded(y, dtype) if exactly else y.astype(dtype)


def rounded(x: jax.Array, dtype: np.dtype) -> jax.Array:
    """A float array as `dtype`, certainly rounded; values beyond its range become infinite."""
    dtype = np.dtype(dtype)
    if x.dtype == dtype:
        return x
    _, exponent, mantissa = _FORMATS[dtype]
    y = lax.reduce_precision(x, exponent_bits=exponent, mantissa_bits=mantissa)
    return y.astype(dtype)


def upcast(y: jax.Array, dtype: np.dtype) -> jax.Array:
    """A reduced result as `dtype`, an infinity that rounding made as the largest value it had."""
    if y.dtype == dtype or y.dtype not in HALVES:
        return y.astype(dtype)
    most = jnp.asarray(_FORMATS[y.dtype][0], y.dtype)
    return lax.clamp(-most, y, most).astype(dtype)
