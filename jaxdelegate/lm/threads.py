"""Threads that do not hold up the end of the process, with a stack for deep recursion."""

import collections
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")
_STACK_BYTES = 1 << 26  # virtual: only what is used takes memory
_STARTING = threading.Lock()


def in_thread(work: Callable[[], T]) -> "Future[T]":
    """Call a function in a daemon thread of its own; it cannot be cancelled."""
    return Lane().submit(work)


class Lane:
    """Calls functions in daemon threads, in their order; a thread goes on while there are any.

    A future can be cancelled until its function is called.
    """

    def __init__(self, threads: int = 1) -> None:
        """`threads`: the most at once."""
        self._left = threads  # that may start
        self._waiting = collections.deque[tuple[Future[Any], Callable[[], Any]]]()
        self._lock = threading.Lock()

    def submit(self, work: Callable[[], T]) -> "Future[T]":
        """Call a function after those before it. A RuntimeError: the system has no more threads."""
        found: Future[T] = Future()
        with self._lock:
            if self._left:
                _start(self._work)
                self._left -= 1
            self._waiting.append((found, work))
        return found

    def _work(self) -> None:
        while (following := self._next()) is not None:
            found, work = following
            if not found.set_running_or_notify_cancel():
                continue
            try:
                result = work()
            except BaseException as error:  # panics of Rust packages, too
                found.set_exception(error)
            else:
                found.set_result(result)

    def _next(self) -> tuple[Future[Any], Callable[[], Any]] | None:
        with self._lock:
            if self._waiting:
                return self._waiting.popleft()
            self._left += 1
            return None


def _start(work: Callable[[], None]) -> None:
    thread = threading.Thread(target=work, daemon=True)
    with _STARTING:  # the size is a setting of the process
        before = threading.stack_size(_STACK_BYTES)
        try:
            thread.start()
        finally:
            threading.stack_size(before)
