"""Imports that no signal interrupts: jax cannot be imported again after an incomplete import.

When the import of a package fails, its complete submodules stay in `sys.modules`, but the next
import creates a new package without them; and jaxlib's extensions cannot be registered twice.
"""

import contextlib
import importlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

Handler = Callable[[int, FrameType | None], Any]

# Functions of upper rooms that lower ones call; the package registers them when it is imported.
REGISTERED: dict[str, Callable[..., Any]] = {}


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


def register_late(module: str, name: str) -> None:
    """Register a function under its name; the first call imports its module, as a whole."""

    def call(*arguments: Any) -> Any:
        with whole_imports():
            imported = importlib.import_module(module)
        return getattr(imported, name)(*arguments)

    REGISTERED[name] = call


def _restore(number: int, replacement: Handler, handler: Handler) -> None:
    if signal.getsignal(number) is replacement:  # otherwise an imported module set another one
        signal.signal(number, handler)
