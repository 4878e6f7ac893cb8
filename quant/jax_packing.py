"""The jax counterpart of packing.py: the same functions on traced arrays."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from jaxdelegate.quant.packing import bits_of


def pack(values: jax.Array) -> jax.Array:
    """uint8 bytes of int4, uint4 or int2 elements; see packing.pack."""
    bits = bits_of(np.dtype(values.dtype))
    per_byte = 8 // bits
    raw = values.reshape(-1).astype(np.int32) & ((1 << bits) - 1)
    raw = jnp.pad(raw, (0, -raw.size % per_byte)).reshape(-1, per_byte)
    weights = jnp.asarray((1 << np.arange(0, 8, bits)).astype(np.int32))
    return jnp.sum(raw * weights[None, :], 1, dtype=np.int32).astype(np.uint8)


def unpack(data: jax.Array, count: int, dtype: np.dtype) -> jax.Array:
    """The first `count` elements of packed bytes; see packing.unpack."""
    bits = bits_of(dtype)
    if 8 * data.size < bits * count:
        raise ValueError(f"{count} elements of {dtype} do not fit {data.size} bytes")
    shifts = jnp.asarray(np.arange(0, 8, bits, dtype=np.int32))
    raw = (data.reshape(-1, 1).astype(np.int32) >> shifts[None, :]) & ((1 << bits) - 1)
    raw = raw.reshape(-1)[:count]
    sign = 0 if dtype == np.dtype(ml_dtypes.uint4) else 1 << (bits - 1)
    return ((raw ^ sign) - sign).astype(dtype)
