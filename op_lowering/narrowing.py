"""float32 to a shorter dtype, without making infinities of what was finite."""

from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax import lax

from jaxdelegate.op_lowering.dtypes import HALVES

# Largest value, bits of the exponent, bits of the mantissa.
_FORMATS = {
    np.dtype(np.float16): (65504.0, 5, 10),
    np.dtype(ml_dtypes.bfloat16): (3.3895313892515355e38, 8, 7),
}


def narrow(x: Any, dtype: np.dtype, *, exactly: bool = False) -> Any:
    """A float array as `dtype`; finite values beyond its range become its largest.

    Args:
        x: numpy or jax; what is as short already passes.
        dtype: where to.
        exactly: round even if the value is widened again right behind, which XLA leaves out.
    """
    dtype = np.dtype(dtype)
    if x.dtype == dtype or dtype not in HALVES:
        return x.astype(dtype)
    if not isinstance(x, jax.Array):
        return _saturated(np, x, dtype).astype(dtype)
    y = _saturated(jnp, x, dtype)
    if exactly:
        _, exponent, mantissa = _FORMATS[dtype]
        y = lax.reduce_precision(y, exponent_bits=exponent, mantissa_bits=mantissa)
    return y.astype(dtype)


def widened(y: jax.Array, dtype: np.dtype) -> jax.Array:
    """A short result as `dtype`, an infinity that rounding made as the largest value it had."""
    if y.dtype == dtype or y.dtype not in HALVES:
        return y.astype(dtype)
    most = jnp.asarray(_FORMATS[y.dtype][0], y.dtype)
    return lax.clamp(-most, y, most).astype(dtype)


def _saturated(xp: Any, x: Any, dtype: np.dtype) -> Any:
    """float16 ends at 65504; bfloat16 just short of float32's end, which masks are made of."""
    most = _FORMATS[dtype][0]
    return xp.where(xp.isfinite(x), xp.clip(x, -most, most), x)
