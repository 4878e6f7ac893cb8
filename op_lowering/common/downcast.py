"""float32 to float16 or bfloat16, without turning finite values into infinities."""

from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax import lax

from jaxdelegate.op_lowering.dtypes import HALVES

# Largest value, bits of the exponent, bits of the mantissa. bfloat16 ends just below float32's
# largest value, which attention masks contain.
_FORMATS = {
    np.dtype(np.float16): (65504.0, 5, 10),
    np.dtype(ml_dtypes.bfloat16): (3.3895313892515355e38, 8, 7),
}


def downcast(x: Any, dtype: np.dtype, *, exactly: bool = False, infinities: bool = True) -> Any:
    """A float array of numpy or jax; finite values beyond the dtype's range become its largest.

    `exactly`: round even if the value is upcast right afterwards, which XLA optimizes away.
    Without `infinities` they become the largest value too. That takes one clamp, which XLA:GPU
    fuses into the matrix product before it. It would not fuse what reads the sums twice, and write
    them to memory in float32 first.
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
    """Always rounded, unlike `astype` before an upcast; values beyond the range become infinite."""
    dtype = np.dtype(dtype)
    if x.dtype == dtype:
        return x
    _, exponent, mantissa = _FORMATS[dtype]
    y = lax.reduce_precision(x, exponent_bits=exponent, mantissa_bits=mantissa)
    return y.astype(dtype)


def upcast(y: jax.Array, dtype: np.dtype) -> jax.Array:
    """Infinities become the reduced dtype's largest value."""
    if y.dtype == dtype or y.dtype not in HALVES:
        return y.astype(dtype)
    most = jnp.asarray(_FORMATS[y.dtype][0], y.dtype)
    return lax.clamp(-most, y, most).astype(dtype)
