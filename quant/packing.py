"""Integers of 4 and 2 bits in bytes, the first one lowest, and constants of them.

Sources: UnpackPackedIntToInt8 and PackInt8IntoDenseInt of kernels/internal/
portable_tensor_utils.cc.
"""

import functools
import math
from typing import Any

import ml_dtypes
import numpy as np

from jaxdelegate.quant.lazy import LazyConstant

BITS = {np.dtype(ml_dtypes.int4): 4, np.dtype(ml_dtypes.uint4): 4, np.dtype(ml_dtypes.int2): 2}

# With at least this many elements, a constant is kept packed.
MANY = 1 << 16
_AT_ONCE = 1 << 16  # bytes that are unpacked together: numpy needs eight times that on the way


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
    table, packed = _elements(dtype), data.reshape(-1)[: -(-count * bits // 8)]
    elements = np.empty(packed.size, table.dtype)
    for at in range(0, packed.size, _AT_ONCE):
        elements[at : at + _AT_ONCE] = table[packed[at : at + _AT_ONCE]]
    return elements.view(dtype)[:count]


@functools.cache
def _elements(dtype: np.dtype) -> np.ndarray:
    """The elements of each of the 256 bytes, joined to one integer in memory's order."""
    bits = bits_of(dtype)
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    raw = (np.arange(256, dtype=np.uint8).reshape(-1, 1) >> shifts) & np.uint8((1 << bits) - 1)
    if dtype != np.dtype(ml_dtypes.uint4):
        sign = np.int8(1 << (bits - 1))
        raw = ((raw.view(np.int8) ^ sign) - sign).view(np.uint8)
    return raw.view(f"u{8 // bits}").reshape(-1)


class PackedConstant(LazyConstant):
    """A large constant as its packed bytes.

    `x[rows]` unpacks these rows only, if rows are whole bytes.

    Attributes:
        packed: the bytes, uint8 [n], a view of the file.
    """

    def __init__(self, packed: np.ndarray, shape: tuple[int, ...], dtype: np.dtype) -> None:
        super().__init__(shape, dtype)
        self.packed = packed

    @property
    def rows(self) -> np.ndarray | None:
        """The packed bytes, uint8 [len(self), n]; None if rows share bytes."""
        each = math.prod(self.shape[1:]) * bits_of(self.dtype)
        return None if each % 8 else self.packed.reshape(self.shape[0], each // 8)

    def __getitem__(self, key: Any) -> Any:
        rows = self.rows
        is_array = isinstance(key, np.ndarray) and key.dtype.kind in "iu"
        if rows is None or not (is_array or isinstance(key, int | np.integer | slice)):
            return super().__getitem__(key)
        packed = rows[key]
        shape = (*packed.shape[:-1], *self.shape[1:])
        return unpack(packed, math.prod(shape), self.dtype).reshape(shape)

    def values(self) -> np.ndarray:
        return unpack(self.packed, self.size, self.dtype).reshape(self.shape)


Constant = np.ndarray | PackedConstant


def is_packed(value: object) -> bool:
    return isinstance(value, PackedConstant)


def packed_rows(value: object) -> np.ndarray | None:
    """The `rows` of a packed constant; None for other arrays."""
    return value.rows if isinstance(value, PackedConstant) else None


def in_memory(constant: Constant) -> np.ndarray:
    """The array that holds a constant: its packed bytes, or itself."""
    return constant.packed if isinstance(constant, PackedConstant) else constant
