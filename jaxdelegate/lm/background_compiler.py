"""Compiles programs in a thread: sequences that do not need them go on meanwhile."""

import collections
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from jaxdelegate.lm.language_model import LengthError
from jaxdelegate.lm.program_spec import ProgramSpec

Work = ProgramSpec | Callable[[], object]
_OPTIONAL = "others"  # a kind of programs
_LOGGER = logging.getLogger("jaxdelegate")


class _Model(Protocol):
    def has_program(self, spec: ProgramSpec) -> bool: ...

    def prepare(self, spec: ProgramSpec, *, is_optional: bool = False) -> None: ...


class BackgroundCompiler:
    """Loads or compiles the programs of a model, one after the other: those of requests first."""

    def __init__(self, model: _Model) -> None:
        """Nothing is compiled yet."""
        self._model = model
        self._lock = threading.Lock()
        self._specs = collections.deque[ProgramSpec]()  # the first one is compiled now, or next
        self._warming = collections.deque[tuple[str, Work]]()  # while no request waits
        self._seconds = dict[str, float]()  # that these took
        self._is_warm = threading.Event()
        self._errors: dict[Work, Exception] = {}
        self._optional: set[Work] = set()
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

    def begin(self, specs: Iterable[ProgramSpec], *, is_urgent: bool = True) -> bool:
        """Whether all programs are in memory, or `is_ready` would raise an error.

        If not, the thread compiles what is missing if no other request waits for it; if that is not
        urgent, only if it has nothing else to do.
        """
        missing = [spec for spec in specs if not self._model.has_program(spec)]
        with self._lock:
            if any(spec in self._errors for spec in missing):
                return True
            if not (self._specs or (self._warming and not is_urgent)):
                self._add(missing)
        return not missing

    def warm(self, works: Iterable[tuple[str, Work]]) -> None:
        """Compile programs before requests need them, each with the kind of these requests.

        In between functions may do what else takes long.
        """
        with self._lock:
            missing = [(kind, work) for kind, work in works if not self._has(work)]
            self._warming += missing
            self._start() if missing else self._is_warm.set()

    def _has(self, work: Work) -> bool:
        return not callable(work) and self._model.has_program(work)

    def is_planned(self, spec: ProgramSpec) -> bool:
        """Whether `warm` will compile a program."""
        with self._lock:
            return any(spec == planned for _, planned in self._warming)

    def wait_until_warm(self, timeout_s: float) -> Mapping[str, float] | None:
        """The seconds that programs took, by the kinds of `warm`; None: a timeout."""
        return self._seconds if self._is_warm.wait(timeout_s) else None

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
                if self._warming:  # the first one may be compiled now
                    self._warming.insert(1, (_OPTIONAL, spec))
                else:
                    self._add([spec])
        return False

    def _add(self, specs: Iterable[ProgramSpec]) -> None:
        self._specs += (spec for spec in specs if spec not in self._specs)
        if self._specs:
            self._start()

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="compile", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Compile nothing more, and wait for what is compiled now."""
        with self._lock:
            thread = self._thread
            self._warming.clear()
            while len(self._specs) > 1:
                self._specs.pop()
        if thread is not None:
            thread.join()  # a process that ends while a thread is inside XLA would abort

    def _work(self) -> None:
        while (found := self._next()) is not None:
            kind, work = found
            begin = time.monotonic()
            try:
                if callable(work):
                    work()
                else:
                    self._model.prepare(work, is_optional=work in self._optional)
            except Exception as error:
                self._fail(kind, work, error)
            with self._lock:
                if kind is None:
                    self._specs.popleft()
                elif self._warming:  # it is not closed
                    self._count(kind, time.monotonic() - begin)

    def _next(self) -> tuple[str | None, Work] | None:
        """The next one, and its kind if no request waits for it; None: the thread ends."""
        with self._lock:
            if self._specs:
                return None, self._specs[0]
            if self._warming:
                return self._warming[0]
            self._thread = None
            return None

    def _count(self, kind: str, seconds: float) -> None:
        self._warming.popleft()
        self._seconds[kind] = self._seconds.get(kind, 0) + seconds
        if not self._warming:
            self._is_warm.set()

    def _fail(self, kind: str | None, work: Work, error: Exception) -> None:
        if work in self._optional:
            _LOGGER.warning("answers to one request at a time take longer: %s", error)
        elif kind is None:  # it is that of who needs it
            with self._lock:
                self._errors[work] = error
        elif not isinstance(error, LengthError):  # no request will need that
            _LOGGER.warning("what requests need is not compiled before they come: %s", error)
