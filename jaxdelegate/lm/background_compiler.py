"""Compiles programs in a thread: sequences that do not need them go on meanwhile."""

import collections
import logging
import threading
from collections.abc import Iterable
from typing import Protocol

from jaxdelegate.lm.program_spec import ProgramSpec

_LOGGER = logging.getLogger("jaxdelegate")


class _Model(Protocol):
    def has_program(self, spec: ProgramSpec) -> bool: ...

    def prepare(self, spec: ProgramSpec, *, is_optional: bool = False) -> None: ...


class BackgroundCompiler:
    """Loads or compiles the programs of a model, one after the other."""

    def __init__(self, model: _Model) -> None:
        """Nothing is compiled yet."""
        self._model = model
        self._lock = threading.Lock()
        self._specs = collections.deque[ProgramSpec]()  # the first one is compiled now
        self._errors: dict[ProgramSpec, Exception] = {}
        self._optional: set[ProgramSpec] = set()
        self._thread: threading.Thread | None = None

    def has(self, specs: Iterable[ProgramSpec]) -> bool:
        """Whether all programs are in memory."""
        return all(map(self._model.has_program, specs))

    def is_ready(self, specs: Iterable[ProgramSpec]) -> bool:
        """The same; if not, the thread compiles what is missing.

        An error of compiling is raised once, in the next call; the call after that tries again.
        """
        missing = [spec for spec in specs if not self._model.has_program(spec)]
        with self._lock:
            for spec in missing:
                if spec in self._errors:
                    raise self._errors.pop(spec)
            self._add(missing)
        return not missing

    def begin(self, specs: Iterable[ProgramSpec]) -> bool:
        """Whether all programs are in memory, or `is_ready` would raise an error.

        If not, the thread compiles what is missing if it has nothing else to do.
        """
        missing = [spec for spec in specs if not self._model.has_program(spec)]
        with self._lock:
            if any(spec in self._errors for spec in missing):
                return True
            if not self._specs:
                self._add(missing)
        return not missing

    def has_optional(self, spec: ProgramSpec) -> bool:
        """Whether a program that only takes less time than others is in memory.

        If not, and it has nothing else to do, the thread loads it, or compiles it if programs are
        compiled in this process at all. After an error it does not try again.
        """
        if self._model.has_program(spec):
            return True
        with self._lock:
            if spec not in self._optional and not self._specs:
                self._optional.add(spec)
                self._add([spec])
        return False

    def _add(self, specs: Iterable[ProgramSpec]) -> None:
        self._specs += (spec for spec in specs if spec not in self._specs)
        if self._specs and self._thread is None:
            self._thread = threading.Thread(target=self._work, name="compile", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Compile nothing more, and wait for what is compiled now."""
        with self._lock:
            thread = self._thread
            while len(self._specs) > 1:
                self._specs.pop()
        if thread is not None:
            thread.join()  # a process that ends while a thread is inside XLA would abort

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._specs:
                    self._thread = None
                    return
                spec = self._specs[0]
                is_optional = spec in self._optional
            try:
                self._model.prepare(spec, is_optional=is_optional)
            except Exception as error:
                if is_optional:
                    _LOGGER.warning("answers to one request at a time take longer: %s", error)
                else:  # that of who needs it
                    with self._lock:
                        self._errors[spec] = error
            with self._lock:
                self._specs.popleft()
