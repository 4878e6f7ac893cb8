"""Times of the kernels inside call batches, which XLA's profiler reports as one call."""

import contextlib
import ctypes
import importlib
import zlib
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

_CAPACITY = 1 << 20  # calls; later ones are not recorded


class CallTime(NamedTuple):
    """A call of a kernel by a call batch."""

    batch: int
    call: int  # its index in the batch
    nanoseconds: int
    bytes: int  # read and written
    result_bytes: int


def batch_number(name: str) -> int:
    """The number that identifies a call batch, from the scopes of its calls."""
    return zlib.crc32(name.encode())


@contextlib.contextmanager
def timed_calls(enabled: bool = True) -> Iterator[list[CallTime]]:
    """Time all calls of all programs of this process; the list is filled when the block ends."""
    found: list[CallTime] = []
    opened = _library() if enabled else None
    if opened is None:
        yield found
        return
    opened.jaxdelegate_time_calls(ctypes.c_long(_CAPACITY))
    try:
        yield found
    finally:
        opened.jaxdelegate_time_calls(ctypes.c_long(0))
        rows = np.zeros((opened.jaxdelegate_call_times(None, ctypes.c_long(0)), 5), np.int64)
        opened.jaxdelegate_call_times(
            rows.ctypes.data_as(ctypes.c_void_p), ctypes.c_long(len(rows))
        )
        found.extend(CallTime(*row) for row in rows.tolist())


def _library() -> ctypes.CDLL | None:
    library = importlib.import_module("jaxdelegate.kernels.library")  # imports jax
    if library.why_not() is not None:
        return None
    opened: ctypes.CDLL = library.opened(library.LIBRARY)
    return opened
