"""Says what a process waits for, if that takes long."""

import contextlib
import logging
import sys
import threading
from collections.abc import Callable, Iterator

_LOGGER = logging.getLogger("jaxdelegate")
SILENT_S = 5.0


class _Blocks(threading.local):
    """How many blocks of `waiting` this thread is in."""

    count = 0


_BLOCKS = _Blocks()


@contextlib.contextmanager
def waiting(text: str) -> Iterator[None]:
    """Log a warning, which is on stderr by default, if the block takes longer than `SILENT_S`.

    Args:
        text: what is being done, then why it takes long or what makes it faster.
    """
    timer = _started(lambda: _LOGGER.warning("%s", text))
    _BLOCKS.count += 1
    try:
        yield
    finally:
        _BLOCKS.count -= 1
        timer.cancel()


def _started(call: Callable[[], None]) -> threading.Timer:
    timer = threading.Timer(SILENT_S, call)
    timer.daemon = True  # a process that ends does not wait for it
    timer.start()
    return timer


class Expectation(threading.local):
    """Something that another package does later in this thread, and that may take long."""

    _timer: threading.Timer | None = None

    def begin(self, text: str, package: str) -> None:
        """Log a warning after `SILENT_S` if it has not ended and this thread runs the package.

        In a block of `waiting` that says what it waits for, nothing more is logged.
        """
        self.end()
        if _BLOCKS.count:
            return
        thread = threading.get_ident()

        def call() -> None:
            if _runs(thread, package):
                _LOGGER.warning("%s", text)

        self._timer = _started(call)

    def end(self) -> None:
        """It has happened, and nothing is logged."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _runs(thread: int, package: str) -> bool:
    frame = sys._current_frames().get(thread)
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith(package):
            return True
        frame = frame.f_back
    return False
