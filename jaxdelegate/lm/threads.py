"""Threads that do not hold up the end of the process, with a stack for deep recursion."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")
_STACK_BYTES = 1 << 26  # virtual: only what is used takes memory
_STARTING = threading.Lock()


def in_thread(work: Callable[[], T]) -> "Future[T]":
    """Call a function in a daemon thread of its own; it cannot be cancelled."""
    found: Future[T] = Future()

    def run() -> None:
        try:
            result = work()
        except BaseException as error:  # panics of Rust packages, too
            found.set_exception(error)
        else:
            found.set_result(result)

    thread = threading.Thread(target=run, daemon=True)
    with _STARTING:  # the size is a setting of the process
        before = threading.stack_size(_STACK_BYTES)
        try:
            thread.start()
        finally:
            threading.stack_size(before)
    return found
