"""What forks have to know of other threads, whose locks stay locked in the child."""

# These two lock at forks what they unlock afterwards: their first import must not fall between.
import concurrent.futures.thread  # noqa: F401
import logging  # noqa: F401
import os
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType

_START_XLA = "jaxdelegate", "jax", "jaxlib"
_IMPORTED = *_START_XLA, "ai_edge_litert", "flatbuffers", "ml_dtypes", "numpy", "scipy"
_IMPORTS = "<frozen importlib._bootstrap>", "_find_and_load"
_LONGEST_WAIT_S = 60.0  # an import that waits for the forking thread does not end

_is_busy = False
_was_busy = False


def was_busy() -> bool:
    """Whether another thread ran this package or jax when this process, or one before, was forked.

    That thread may have held locks, and nothing in this process releases them.
    """
    return _was_busy


def _before() -> None:
    """Wait for imports of other threads: the child could neither finish nor repeat them."""
    global _is_busy  # noqa: PLW0603 (a property of the process)
    end = time.monotonic() + _LONGEST_WAIT_S
    while _is_imported_elsewhere() and time.monotonic() < end:
        time.sleep(0.001)
    _is_busy = any(
        _package(frame.f_globals.get("__name__")) in _START_XLA for frame in _elsewhere()
    )


def _in_child() -> None:
    global _was_busy  # noqa: PLW0603
    _was_busy = _was_busy or _is_busy


def _is_imported_elsewhere() -> bool:
    return any(
        (frame.f_code.co_filename, frame.f_code.co_name) == _IMPORTS
        and _package(frame.f_locals.get("name")) in _IMPORTED
        for frame in _elsewhere()
    )


def _package(module: object) -> str:
    return str(module).partition(".")[0]


def _elsewhere() -> Iterator[FrameType]:
    """The frames of all threads but this one."""
    for thread, innermost in sys._current_frames().items():
        frame = None if thread == threading.get_ident() else innermost
        while frame is not None:
            yield frame
            frame = frame.f_back


os.register_at_fork(before=_before, after_in_child=_in_child)
