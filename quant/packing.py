"""Integers of 4 and 2 bits in bytes, the first one lowest.

Sources: UnpackPackedIntToInt8 and PackInt8IntoDenseInt of kernels/internal/
portable_tensor_utils.cc.
"""

import ml_dtypes
import numpy as np

BITS = {np.dtype(ml_dtypes.int4): 4, np.dtype(ml_dtypes.uint4): 4, np.dtype(ml_dtypes.int2): 2}


def bits_of(dtype: np.dtype) -> int:
    """Bits of a packed dtype.

    Raises:
        ValueError: elements of the dtype are whole bytes.
    """
    if dtype not in BITS:
        raise ValueError(f"{dtype} is not packed, only int4, uint4 and int2 are")
    return BITS[dtype]


def pack(values: np.ndarray) -> np.ndarray:
    """Elements in C order as bytes; the last byte is padded with zeros.

    Args:
        values: int4, uint4 or int2, any shape.

    Returns:
        uint8 [ceil(values.size * bits / 8)].

    Raises:
        ValueError: another dtype.
    """
    bits = bits_of(values.dtype)
    per_byte = 8 // bits
    raw = values.reshape(-1).astype(np.int8).view(np.uint8) & np.uint8((1 << bits) - 1)
    raw = np.pad(raw, (0, -raw.size % per_byte)).reshape(-1, per_byte)
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    return np.asarray(np.bitwise_or.reduce(raw << shifts, 1))


def unpack(data: np.ndarray, count: int, dtype: np.dtype) -> np.ndarray:
    """The first `count` elements of packed bytes, signs extended.

    Args:
        data: uint8 [at least ceil(count * bits / 8)].
        count: the number of elements.
        dtype: int4, uint4 or int2.

    Returns:
        [count] of the dtype; each element takes one byte in memory.

    Raises:
        ValueError: another dtype, or too few bytes.
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
