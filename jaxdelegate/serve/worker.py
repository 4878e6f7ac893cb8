"""The thread in which a model is prepared and run, and which works on its queue."""

from __future__ import annotations

import abc
import contextlib
import logging
import os
import threading
import weakref
from collections.abc import Callable
from typing import Protocol

from jaxdelegate.errors import JaxDelegateError, StoppedError
from jaxdelegate.serve.clients import RequestError

LOGGER = logging.getLogger("jaxdelegate")


class Worker(abc.ABC):
    """A thread that prepares a model and then works on a queue, until it is closed."""

    # What takes memory on the device, in words; empty: it is not known.
    memory = ""

    def __init__(self, name: str, prepare: Callable[[], None]) -> None:
        """Nothing is started yet, so that the process may fork.

        The thread calls `prepare` before all; if that raises, the queue is closed with its error.
        """
        self.name, self._prepare = name, prepare
        self.error: BaseException | None = None  # why the model cannot be used
        self.is_ready = self._is_closing = False
        # Waits some seconds for what is compiled after the model is ready; returns what that was,
        # in words, or None if it goes on. Empty: nothing is.
        self.when_warm: Callable[[float], str | None] = lambda _: ""
        self.resources = contextlib.ExitStack()  # closed after the thread has ended
        self._change = threading.Condition()  # guards the queue
        self._prepared = threading.Event()  # or failed
        self._thread = threading.Thread(target=self._work, name=f"serve {name}", daemon=True)

    def start(self) -> None:
        """Start the thread; later calls do nothing."""
        if self not in _STARTED:
            _STARTED.add(self)
            self._thread.start()

    def wait_until_ready(self, timeout_s: float | None = None) -> bool:
        """Wait until it is ready, after `start`; False: a timeout. Raises its error."""
        is_prepared = self._prepared.wait(timeout_s)
        if self.error is not None:
            raise self.error
        return is_prepared

    def stop(self) -> None:
        """Refuse new requests; the thread ends after those that were accepted."""
        with self._change:
            self._is_closing = True
            self._change.notify_all()

    def close(self) -> None:
        """Stop, and wait for the end of the thread, which may be inside XLA.

        The process would abort if it ended meanwhile.
        """
        self.stop()
        if self._thread.is_alive():
            self._thread.join()
        self.resources.close()

    def check_open(self) -> None:
        """A StoppedError if it is closed, for `prepare`: between two programs."""
        if self._is_closing:
            raise StoppedError(f"{self.name} was closed before it was compiled")

    def fail_after_fork(self) -> None:
        """Refuse all requests in this process, which was forked and does not have the thread."""
        self._fail(
            StoppedError(
                f"{self.name} was started before this process ({os.getpid()}) was forked, and runs "
                "only in the parent; start the application after the fork"
            )
        )
        LOGGER.error("%s", self.error)
        # The parent's thread may have held the locks of the old ones.
        self._change, self._prepared = threading.Condition(), threading.Event()
        self._prepared.set()

    @abc.abstractmethod
    def _run_queue(self) -> None:
        """Run requests until it is closed and the queue is empty."""

    @abc.abstractmethod
    def _refuse_queue(self, error: RequestError) -> None:
        """Fail all requests, since the thread has failed."""

    def _refusal(self) -> str | None:
        """Why no requests are accepted; None: they are."""
        if not self._is_closing:
            return None
        why = "is shutting down" if self.error is None else f"failed: {self.error}"
        return f"{self.name} {why}; no requests are accepted"

    def _work(self) -> None:
        try:
            self._prepare()
            self.is_ready = True
            self._prepared.set()
            self._run_queue()
        except BaseException as error:  # no caller would see it
            if not isinstance(error, StoppedError):
                text = "%s: cannot be served: %s"
                LOGGER.log(logging.ERROR, text, self.name, error, exc_info=unexpected(error))
            with self._change:
                self._fail(error)
            self._prepared.set()
            self._refuse_queue(RequestError(f"{self.name} failed: {error}", 503))

    def _fail(self, error: BaseException) -> None:
        self.error, self.is_ready, self._is_closing = error, False, True


class Served(Protocol):
    """A model under the name that clients use. The signatures of a file share a worker."""

    name: str
    version: str

    @property
    def worker(self) -> Worker:
        """Its thread, and whether it is ready."""


def unexpected(error: BaseException) -> BaseException | None:
    """The error to log with its traceback, because the message alone does not explain it."""
    return None if isinstance(error, JaxDelegateError) else error


_STARTED: weakref.WeakSet[Worker] = weakref.WeakSet()


def _fail_in_child() -> None:
    for worker in list(_STARTED):
        worker.fail_after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_fail_in_child)
