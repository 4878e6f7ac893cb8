"""Host memory: buffers that XLA reads without a copy, and views of them."""

import bisect
import contextlib
import functools
import logging
import math
import mmap
import os
import weakref
from collections.abc import Iterable
from types import ModuleType
from typing import Any

import numpy as np
from numpy.lib.array_utils import byte_bounds

_LOGGER = logging.getLogger("jaxdelegate")
_PINNED_BYTES = 1 << 16  # fewer are copied in less than a transfer takes to start


def aligned_zeros(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """A zeroed host buffer that begins at a multiple of 64 bytes: XLA reads it without a copy."""
    if dtype.hasobject:
        return np.full(shape, b"", dtype)
    n = math.prod(shape) * dtype.itemsize
    raw = np.zeros(n + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + n].view(dtype).reshape(shape)


class _Pages:
    """Pages of zeros that a device reads directly, until no array shows them any more."""

    _client: Any = None  # until it knows them

    def __init__(self, size: int, client: Any) -> None:
        self._memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._address = np.frombuffer(self._memory, np.uint8).ctypes.data
        self._process = os.getpid()
        self.__array_interface__ = {
            "shape": (size,),
            "typestr": "|u1",
            "data": (self._address, False),
            "version": 3,
        }
        client.dma_map(self._address, size)
        self._client = client

    def __del__(self) -> None:
        if self._client is not None and self._process == os.getpid():
            with contextlib.suppress(RuntimeError):
                self._client.dma_unmap(self._address)


def pinned_zeros(shape: tuple[int, ...], dtype: np.dtype, client: Any) -> np.ndarray | None:
    """A zeroed host buffer in pages of its own, which the device of a PJRT client reads directly.

    None: the client cannot do that, or the buffer is so small that it would not matter.
    """
    n = math.prod(shape) * dtype.itemsize
    if dtype.hasobject or n < _PINNED_BYTES or not hasattr(client, "dma_map"):
        return None
    try:
        pages = _Pages(-(-n // mmap.PAGESIZE) * mmap.PAGESIZE, client)
    except (RuntimeError, OSError) as error:
        _LOGGER.info("an input's buffer cannot be pinned: %s", error)
        return None
    return np.asarray(pages)[:n].view(dtype).reshape(shape)


def aligned_copy(array: np.ndarray) -> np.ndarray:
    """A copy of an array in a buffer like those of `aligned_zeros`."""
    buffer = aligned_zeros(array.shape, array.dtype)
    np.copyto(buffer, array)
    return buffer


def is_view(value: object) -> bool:
    """Whether a value is an array in host memory that another array may own."""
    return isinstance(value, np.ndarray) and value.base is not None


def _bounds(array: np.ndarray) -> tuple[int, int]:
    if not array.flags.c_contiguous:
        return byte_bounds(array)
    start: int = array.__array_interface__["data"][0]
    return start, start + array.nbytes


class Regions:
    """The regions of host memory that some arrays occupy."""

    def __init__(self, arrays: Iterable[object]) -> None:
        spans = sorted(_bounds(a) for a in arrays if isinstance(a, np.ndarray) and a.size)
        self._starts: list[int] = []
        self._ends: list[int] = []
        for start, end in spans:
            if self._ends and start <= self._ends[-1]:
                self._ends[-1] = max(end, self._ends[-1])
            else:
                self._starts.append(start)
                self._ends.append(end)

    def overlap(self, array: np.ndarray) -> bool:
        """Whether an array overlaps one of them, gaps between elements included."""
        if not array.size:
            return False
        start, end = _bounds(array)
        before = (
            bisect.bisect_left(self._starts, end) - 1
        )  # the last one that starts before its end
        return before >= 0 and self._ends[before] > start


def request(values: Iterable[Any]) -> None:
    """Let the copies of device arrays to the host follow what computes them, without waiting."""
    arrays = [value for value in values if hasattr(value, "copy_to_host_async")]
    if arrays:
        with _client().on_purpose():
            for array in arrays:
                array.copy_to_host_async()


def fetch(values: Iterable[Any]) -> None:
    """Wait until jax has device arrays in host memory, too: the first wait is for all copies."""
    arrays = [value for value in values if hasattr(value, "copy_to_host_async")]
    request(arrays)
    for array in arrays:
        on_host(array)


def on_host(value: Any) -> np.ndarray:
    """A value as a numpy array; waits for a device array."""
    if not hasattr(value, "copy_to_host_async"):
        return np.asarray(value)
    with _client().on_purpose():
        return np.asarray(value)


@functools.cache
def _client() -> ModuleType:
    from jaxdelegate.pjrt import client  # noqa: PLC0415 (device arrays need jaxlib anyway)

    return client


class HeldViews:
    """Numpy views of buffers, as long as a user holds them or slices of them."""

    def __init__(self) -> None:
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
        self._views = [view for view in self._views if view() is not None]
        return bool(self._views)
