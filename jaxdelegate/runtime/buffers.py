"""Host memory that XLA reads without a copy."""

import math

import numpy as np


def aligned_zeros(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """A zeroed host buffer that begins at a multiple of 64 bytes: XLA reads it without a copy."""
    if dtype.hasobject:
        return np.full(shape, b"", dtype)
    n = math.prod(shape) * dtype.itemsize
    raw = np.zeros(n + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + n].view(dtype).reshape(shape)
