"""Integers of 4 and 2 bits in bytes, the first one lowest.

Sources: UnpackPackedIntToInt8 and PackInt8IntoDenseInt of kernels/internal/
portable_tensor_utils.cc.
"""

import ml_dtypes
import numpy as np

BITS = {np.dtype(ml_dtypes.int4): 4, np.dtype(ml_dtypes.uint4): 4, np.dtype(ml_dtypes.int2): 2}


def bits_of(dtype: np.dtype) -> int:
    if dtype not in BITS:
        raise ValueError(f"{dtype} is not packed, only int4, uint4 and int2 are")
    return BITS[dtype]


def pack(values: np.ndarray) -> np.ndarray:
    """Elements in C order as uint8 [ceil(size * bits / 8)]; the last byte is padded with zeros."""
    bits = bits_of(values.dtype)
    per_byte = 8 // bits
    raw = values.reshape(-1).astype(np.int8).view(np.uint8) & np.uint8((1 << bits) - 1)
    raw = np.pad(raw, (0, -raw.size % per_byte)).reshape(-1, per_byte)
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    return np.asarray(np.bitwise_or.reduce(raw << shifts, 1))


def unpack(data: np.ndarray, count: int, dtype: np.dtype) -> np.ndarray:
    """The first `count` elements of packed uint8 [at least ceil(count * bits / 8)], signs extended.

    In the result [count] each element takes one byte in memory.
    """
    bits = bits_of(dtype)
    if 8 * data.size < bits * count:
        raise ValueError(f"{count} elements of {dtype} do not fit {data.size} bytes")
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    raw = ((data.reshape(-1, 1) >> shifts) & np.uint8((1 << bits) - 1)).reshape(-1)[:count]
    if dtype == np.dtype(ml_dtypes.uint4):
        return raw.astype(dtype)
    sign = np.int8(1 << (bits - 1))
    return ((raw.view(np.int8) ^ sign) - sign).astype(dtype)
