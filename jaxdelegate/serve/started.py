"""What every served model has: a thread that prepares it, and nothing after a fork."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import weakref
from collections.abc import Iterator
from typing import Protocol

from jaxdelegate.errors import StoppedError

_LOGGER = logging.getLogger("jaxdelegate")


class _Batcher(Protocol):
    def start(self) -> None: ...

    def fail_after_fork(self, error: BaseException) -> None: ...


class Started:
    """A model that is prepared and run in the thread of its batcher.

    Attributes:
        name: that clients use.
        error: why it cannot be used.
        is_ready: it was prepared.
        memory: what takes memory on the device, in words.
    """

    batcher: _Batcher
    memory = ""

    def __init__(self, name: str) -> None:
        """Nothing is started yet, so that the process may fork."""
        self.name = name
        self.error: BaseException | None = None
        self.is_ready = False
        self._loaded = threading.Event()  # or failed to load
        self._is_ending = threading.Event()

    def start(self) -> None:
        """Start the thread that compiles and runs it; later calls do nothing."""
        if self not in _STARTED:
            _STARTED.add(self)
            self.batcher.start()

    def fail_after_fork(self) -> None:
        """A forked process does not have the thread."""
        self.is_ready = False
        self.error = StoppedError(
            f"{self.name} was started before this process ({os.getpid()}) was forked, and runs "
            "only in the parent; start the application after the fork"
        )
        _LOGGER.error("%s", self.error)
        self.batcher.fail_after_fork(self.error)
        self._loaded = threading.Event()  # the parent's thread may have held the lock of the old
        self._loaded.set()

    @contextlib.contextmanager
    def _preparing(self) -> Iterator[None]:
        """It is ready at the end, or has an error."""
        try:
            yield
            self.is_ready = self.error is None
        except BaseException as error:
            self.error = error
            raise
        finally:
            self._loaded.set()

    def wait_until_ready(self, timeout_s: float | None = None) -> bool:
        """Wait until it can be used; False: a timeout. Raises an error of preparing it."""
        is_loaded = self._loaded.wait(timeout_s)
        if self.error is not None:
            raise self.error
        return is_loaded


_STARTED: weakref.WeakSet[Started] = weakref.WeakSet()


def _fail_in_child() -> None:
    for model in list(_STARTED):
        model.fail_after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_fail_in_child)
