"""Imports that no signal cuts short: Python cannot import jax again after half of an import.

A submodule that is complete stays in `sys.modules` when its package's import fails, but the next
import makes a new package without it; and jaxlib's extensions refuse to be registered twice.
"""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

Handler = Callable[[int, FrameType | None], Any]


@contextlib.contextmanager
def whole_imports() -> Iterator[None]:
    """Python's signal handlers wait until the block has ended; then they run, once each.

    Python runs them in the main thread only, so elsewhere this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    installed = {int(number): signal.getsignal(number) for number in signal.valid_signals()}
    handlers = {number: handler for number, handler in installed.items() if callable(handler)}
    waiting: dict[int, FrameType | None] = {}
    is_importing = True

    def wait(number: int, frame: FrameType | None) -> None:
        if is_importing:
            waiting[number] = frame
        else:  # it came before this handler was replaced again
            handlers[number](number, frame)

    with contextlib.ExitStack() as stack:
        for number, handler in handlers.items():
            stack.callback(_put_back, number, wait, handler)
            signal.signal(number, wait)
        try:
            yield
        finally:
            is_importing = False
            for number, frame in waiting.items():
                stack.callback(handlers[number], number, frame)


def _put_back(number: int, replacement: Handler, handler: Handler) -> None:
    if signal.getsignal(number) is replacement:  # else an imported module has set its own
        signal.signal(number, handler)
