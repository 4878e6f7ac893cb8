"""Host memory: what XLA reads without a copy, who looks at it, and what is given back."""

import contextlib
import ctypes
import math
import weakref

import numpy as np


def aligned_zeros(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """A zeroed host buffer that begins at a multiple of 64 bytes: XLA reads it without a copy."""
    if dtype.hasobject:
        return np.full(shape, b"", dtype)
    n = math.prod(shape) * dtype.itemsize
    raw = np.zeros(n + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + n].view(dtype).reshape(shape)


def aligned_copy(array: np.ndarray) -> np.ndarray:
    """The same in such a buffer."""
    buffer = aligned_zeros(array.shape, array.dtype)
    np.copyto(buffer, array)
    return buffer


def give_back() -> None:
    """Hand freed memory back to the system, where the C library is glibc.

    What XLA frees of a program lies between what it keeps, and glibc would hold it: hundreds of
    megabytes after hundreds of programs (bench/limits.py).
    """
    with contextlib.suppress(AttributeError, OSError, TypeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


class HeldViews:
    """Numpy views of buffers, as long as a user holds them or slices of them."""

    def __init__(self) -> None:
        """Begin without any."""
        self._views: list[weakref.ref[np.ndarray]] = []

    def of(self, buffer: np.ndarray) -> np.ndarray:
        """A live view, which counts until it is gone; empty arrays and strings do not."""
        if buffer.dtype.hasobject or not buffer.size:
            return buffer[...]
        # A base of our own: jax refers to the buffer itself now and then, which must not count.
        base = np.frombuffer(buffer.reshape(-1).view(np.uint8).data, buffer.dtype)
        self._views.append(weakref.ref(base))
        return base.reshape(buffer.shape)

    def __bool__(self) -> bool:
        """Whether there are any."""
        self._views = [view for view in self._views if view() is not None]
        return bool(self._views)
