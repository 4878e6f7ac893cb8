"""Imports that no signal interrupts: jax cannot be imported again after an incomplete import.

When the import of a package fails, its complete submodules stay in `sys.modules`, but the next
import creates a new package without them; and jaxlib's extensions cannot be registered twice.
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
    """Defer Python's signal handlers until the end of the block; then each runs once.

    Python runs them in the main thread only, so in other threads this does nothing.
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
        else:  # the signal arrived before the handler was restored
            handlers[number](number, frame)

    with contextlib.ExitStack() as stack:
        for number, handler in handlers.items():
            stack.callback(_restore, number, wait, handler)
            signal.signal(number, wait)
        try:
            yield
        finally:
            is_importing = False
            for number, frame in waiting.items():
                stack.callback(handlers[number], number, frame)


def _restore(number: int, replacement: Handler, handler: Handler) -> None:
    if signal.getsignal(number) is replacement:  # otherwise an imported module set another one
        signal.signal(number, handler)
