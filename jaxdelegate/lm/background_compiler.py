"""Compiles programs in a thread: sequences that do not need them go on meanwhile."""

import collections
import logging
import threading
from collections.abc import Iterable
from typing import Protocol

from jaxdelegate.lm.tasks import Task

_LOGGER = logging.getLogger("jaxdelegate")


class _Model(Protocol):
    def has_program(self, task: Task) -> bool: ...

    def prepare(self, task: Task, *, is_optional: bool = False) -> None: ...


class BackgroundCompiler:
    """Loads or compiles the programs of a model, one after the other."""

    def __init__(self, model: _Model) -> None:
        """Nothing is compiled yet."""
        self._model = model
        self._lock = threading.Lock()
        self._tasks: collections.deque[Task] = collections.deque()  # the first one is compiled now
        self._errors: dict[Task, Exception] = {}
        self._optional: set[Task] = set()
        self._thread: threading.Thread | None = None

    def has(self, tasks: Iterable[Task]) -> bool:
        """Whether all programs are in memory."""
        return all(map(self._model.has_program, tasks))

    def is_ready(self, tasks: Iterable[Task]) -> bool:
        """The same; if not, the thread compiles what is missing.

        An error of compiling is raised once, in the next call; the call after that tries again.
        """
        missing = [task for task in tasks if not self._model.has_program(task)]
        with self._lock:
            for task in missing:
                if task in self._errors:
                    raise self._errors.pop(task)
            self._add(missing)
        return not missing

    def begin(self, tasks: Iterable[Task]) -> bool:
        """Whether all programs are in memory, or `is_ready` would raise an error.

        If not, the thread compiles what is missing if it has nothing else to do.
        """
        missing = [task for task in tasks if not self._model.has_program(task)]
        with self._lock:
            if any(task in self._errors for task in missing):
                return True
            if not self._tasks:
                self._add(missing)
        return not missing

    def has_optional(self, task: Task) -> bool:
        """Whether a program that only takes less time than others is in memory.

        If not, and it has nothing else to do, the thread loads it, or compiles it if programs are
        compiled in this process at all. After an error it does not try again.
        """
        if self._model.has_program(task):
            return True
        with self._lock:
            if task not in self._optional and not self._tasks:
                self._optional.add(task)
                self._add([task])
        return False

    def _add(self, tasks: Iterable[Task]) -> None:
        self._tasks += (task for task in tasks if task not in self._tasks)
        if self._tasks and self._thread is None:
            self._thread = threading.Thread(target=self._work, name="compile", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Compile nothing more, and wait for what is compiled now."""
        with self._lock:
            thread = self._thread
            while len(self._tasks) > 1:
                self._tasks.pop()
        if thread is not None:
            thread.join()  # a process that ends while a thread is inside XLA would abort

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._tasks:
                    self._thread = None
                    return
                task = self._tasks[0]
                is_optional = task in self._optional
            try:
                self._model.prepare(task, is_optional=is_optional)
            except Exception as error:
                if is_optional:
                    _LOGGER.warning("answers to one request at a time take longer: %s", error)
                else:  # that of who needs it
                    with self._lock:
                        self._errors[task] = error
            with self._lock:
                self._tasks.popleft()
