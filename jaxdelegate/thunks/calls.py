"""A program on a CPU, run by jaxdelegate/kernels/direct.cc.

A call by PJRT, XLA's runtime, takes longer than many small networks, and so does waking its
threads. This takes what XLA has compiled, machine code and steps, and runs it on the thread of the
caller and on those of a team. Before, a run must return the results of XLA, bit for bit. XLA goes
on to run all other programs.
"""

import collections
import contextlib
import ctypes
import functools
import logging
import struct
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from sys import getrefcount
from typing import Any, Protocol

import numpy as np
from jaxlib import version as jaxlib_version

from jaxdelegate.host_memory import aligned_copy, aligned_zeros
from jaxdelegate.kernels import library, processor
from jaxdelegate.pjrt.client import LOAD_ERRORS, check_process
from jaxdelegate.thunks import instructions, linker
from jaxdelegate.thunks.compiled import Allocation, Compiled, UnknownError

_LOGGER = logging.getLogger("jaxdelegate")

_RUNS_BEFORE = 3  # by XLA: programs that run less often need no second way
_MOST_TIMED, _TIMED_SECONDS = 5, 10e-3  # time up to 5 runs or 10 ms, and at least one run
_LONGEST_SECONDS = 0.5  # of a run; in longer ones the calls of steps take little
_MOST_BYTES = 1 << 26  # for results and intermediate values, which are kept between runs
# XLA keeps running a program whose direct calls take that much longer in each round: timings are
# noisy.
_CLEARLY, _ROUNDS = 1.25, 3
TESTED = ((0, 10), (0, 11), (0, 12))  # releases of jaxlib
_SHORT = 20e-6  # seconds for which other threads may wait
_ALIGNMENT = 64  # what `aligned_zeros` has
_BYTE = np.dtype(np.uint8)

# Words of the C structure before the allocations.
_THREADS, _MESSAGE, _ALLOCATIONS = 2, 3, 35


_Run = Callable[[Sequence[Any]], Sequence[Any]]
# Results for some values, which no caller may keep; None: XLA has to run it on them.
FastCall = Callable[[Iterable[Any]], Sequence[Any] | None]


def _unheld() -> int:
    """The count of references that a loop sees to an array which only the loop's tuple holds."""
    arrays, count = (np.zeros(1),), 0
    for array in arrays:
        count = getrefcount(array)
    return count


_UNHELD = _unheld()


class Executable(Protocol):
    """What XLA has compiled."""

    def memory_analysis(self) -> Any: ...

    def serialized(self) -> bytes: ...


class _Results:
    def __init__(self, program: "_Program") -> None:
        indices = {index for index, *_ in program.results}
        blocks = {index: aligned_zeros((program.sizes[index],), _BYTE) for index in indices}
        self.addresses = [(index, block.ctypes.data) for index, block in blocks.items()]
        arrays = []
        for (index, start, size), (shape, dtype) in zip(
            program.results, program.result_types, strict=True
        ):
            # Not a view of the block: views of the result would refer to that, and not count.
            part = (ctypes.c_char * size).from_buffer(blocks[index].data, start)
            array = np.ndarray(shape, dtype, part)  # type: ignore[arg-type]
            array.flags.writeable = False
            arrays.append(array)
        self.arrays = tuple(arrays)


class _Frame:
    """The memory of one run: addresses of all allocations, and the results."""

    def __init__(self, program: "_Program", temporary: Sequence[np.ndarray], threads: int) -> None:
        self.words = np.zeros(_ALLOCATIONS + len(program.sizes), np.int64)
        self.words[: _THREADS + 1] = [*program.header, threads]
        self.call = ctypes.c_void_p(self.words.ctypes.data)
        self.view = memoryview(self.words)  # type: ignore[arg-type]
        self.temporary = temporary
        for (index, _), memory in zip(program.temporary, temporary, strict=True):
            self.view[_ALLOCATIONS + index] = memory.ctypes.data
        for index, address in program.fixed:
            self.view[_ALLOCATIONS + index] = address
        self.known: list[Callable[[], Any]] = [_nothing] * len(program.inputs)
        self._read: dict[int, np.ndarray | None] = {}  # arrays that live as long as they are read
        self.program, self.threads = program, threads
        self.leave_results()

    def leave_results(self) -> None:
        """Leave them to those who use them, and take new memory."""
        results = _Results(self.program)
        self.results = results.arrays
        for index, address in results.addresses:
            self.view[_ALLOCATIONS + index] = address

    def give(self, position: int, allocation: int, value: Any, array: np.ndarray) -> None:
        """Let the program read `array` for a value."""
        self.view[_ALLOCATIONS + allocation] = array.ctypes.data
        # Memory of an array that owns it may move: `resize`.
        is_fixed = array is value and array.base is not None
        self.known[position] = weakref.ref(array) if is_fixed else _nothing
        self._read[position] = None if is_fixed else array

    def error(self) -> RuntimeError:
        """Why the last run failed."""
        message = self.words[_MESSAGE:_ALLOCATIONS].tobytes()
        return RuntimeError(message[: message.index(0)].decode(errors="replace"))


def _unused(frame: _Frame, last: _Frame) -> _Frame:
    """The frame of the next run if callers use the results in `frame`."""
    if frame is last:
        return _Frame(frame.program, frame.temporary, frame.threads)
    frame.leave_results()
    return frame


class _Program:
    """The parts of a program that all of its runs share."""

    def __init__(
        self,
        serialized: bytes,
        constants: Sequence[np.ndarray],
        values: Sequence[np.ndarray],
        results: Sequence[np.ndarray],
        states: int,
    ) -> None:
        """Read and link it.

        `constants`, then `values` were the arguments of a run by XLA, and `results` what they led
        to; the last `states` values are states.
        """
        compiled = Compiled(serialized)
        self.sizes = [one.size for one in compiled.allocations]
        self._code = linker.load(compiled.object_files)
        assembler = instructions.Assembler(compiled, self._code.symbols, library.addresses())
        self._steps = steps = np.array(assembler.words, np.int64)
        self.is_bounded = compiled.is_bounded
        self.header = [steps.ctypes.data, len(steps)]
        self._constants = list(constants)
        self.fixed: list[tuple[int, int]] = []  # allocations and their addresses
        self.inputs = [-1] * len(values)  # allocations
        for index, one in enumerate(compiled.allocations):
            self._place(index, one, [*constants, *values], len(constants))
        if -1 in self.inputs:
            raise UnknownError("an argument without memory")
        self.input_types = [(value.shape, value.dtype) for value in values]
        self._first_state = len(values) - states
        self.results, self.result_types = compiled.results, [(r.shape, r.dtype) for r in results]
        if [size for *_, size in self.results] != [r.nbytes for r in results]:
            raise UnknownError("results of another size")
        known = {*self.inputs, *(i for i, *_ in self.results), *(i for i, _ in self.fixed)}
        self.temporary = [
            (i, size) for i, size in enumerate(self.sizes) if i not in known and size > 0
        ]
        # Calls that no thread uses, by the number of threads that they use.
        self._idle = collections.defaultdict[int, collections.deque[FastCall]](collections.deque)
        self._function = _function(ctypes.CDLL)

    def keep_lock(self) -> None:
        """Run it and hold the GIL: releasing it costs more than the call."""
        self._function = _function(ctypes.PyDLL)

    def _place(
        self, index: int, allocation: Allocation, arguments: Sequence[np.ndarray], constants: int
    ) -> None:
        """Note where an allocation's memory is, if that is known before a run."""
        number = allocation.parameter
        if allocation.constant is not None:
            self._constants.append(own := aligned_copy(allocation.constant))
            self.fixed.append((index, own.ctypes.data))
        elif number is not None and arguments[number].nbytes != allocation.size:
            raise UnknownError("an argument of another size")
        elif number is not None and number >= constants:
            self.inputs[number - constants] = index
        elif number is not None:
            address = arguments[number].ctypes.data
            if address % _ALIGNMENT:
                raise UnknownError("a weight that is not aligned")
            self.fixed.append((index, address))

    def run(self, values: Sequence[Any], threads: int | None = None) -> list[np.ndarray] | None:
        """The results; None: values that XLA has to prepare. Any thread may call it.

        `threads`: that share the work; None: as many as XLA has.
        """
        threads = threads or processor.thread_count()
        idle = self._idle[threads]
        try:
            call = idle.popleft()
        except IndexError:
            call = self.fast_call(threads, checks_layout=True)
        results = call(values)
        # Not the tuple: a held tuple hides its references. Before other threads can take the call.
        copied = None if results is None else [*results]
        idle.append(call)
        return copied

    def free_idle(self) -> None:
        """Free the memory of runs that no thread uses."""
        self._idle.clear()

    def fast_call(self, threads: int, *, checks_layout: bool) -> FastCall:
        """A function that runs the program for one caller at a time, in two frames in turn.

        The caller may hold the results of the last run, or give them to the next one as states.

        Args:
            threads: that share the work.
            checks_layout: whether callers may change the strides of an array between runs.
        """
        temporary = [aligned_zeros((n,), _BYTE) for _, n in self.temporary]
        frame = last = _Frame(self, temporary, threads)
        function, give = self._function, self._give

        def run(values: Iterable[Any]) -> Sequence[np.ndarray] | None:
            nonlocal frame, last
            check_process()
            if _pauses:
                return None
            for array in frame.results:
                if getrefcount(array) > _UNHELD:
                    frame = _unused(frame, last)
                    break
            known, position = frame.known, 0
            for value in values:
                if (
                    known[position]() is not value
                    or (checks_layout and not value.flags.c_contiguous)
                ) and not give(frame, position, value):
                    return None
                position += 1  # noqa: SIM113 (quicker than enumerate: most values are known)
            if function(frame.call):
                raise frame.error()
            results = frame.results
            frame, last = last, frame
            return results

        return run

    def _give(self, frame: _Frame, position: int, value: Any) -> bool:
        """Let a run read a value; False: XLA has to prepare it."""
        array = self._readable(position, value)
        if array is not None:
            frame.give(position, self.inputs[position], value, array)
        return array is not None

    def _readable(self, position: int, value: Any) -> np.ndarray | None:
        """The value as the program reads it; None: XLA has to prepare it."""
        if not isinstance(value, np.ndarray):
            if position < self._first_state:  # callers who stay on the device
                return None
            value = np.asarray(value)  # XLA returned it
        if (value.shape, value.dtype) != self.input_types[position]:
            return None
        is_ready = value.flags.c_contiguous and value.ctypes.data % _ALIGNMENT == 0
        return value if is_ready else aligned_copy(value)


class DirectCalls:
    """A program's runs: the first three by XLA, the others without it if that is possible."""

    def __init__(self, executable: Executable, constants: Sequence[Any], states: int) -> None:
        """Nothing is read before the third run.

        `constants` are the executable's first arguments. The last `states` values are results of
        the run before.
        """
        self._executable, self._constants, self._states = executable, constants, states
        self._left = _RUNS_BEFORE if why_not() is None else 0
        self._lock = threading.Lock()
        self._program: _Program | None = None

    @property
    def is_ready(self) -> bool:
        """Whether runs do without XLA's runtime now."""
        return self._program is not None

    def fast_call(self) -> FastCall | None:
        """Runs of one caller at a time; None: XLA runs the program, for now at least."""
        if self._program is None:
            return None
        self._program.free_idle()  # callers of `run` are likely to call this from now on
        return self._program.fast_call(processor.thread_count(), checks_layout=False)

    def run(self, values: Sequence[Any], by_xla: _Run, threads: int | None = None) -> Sequence[Any]:
        """`threads`: that share the work without XLA's runtime; None: as many as that has."""
        program = self._program
        if program is not None:
            direct = program.run(values, threads)
            return by_xla(values) if direct is None else direct
        begin = time.perf_counter()
        results = by_xla(values)
        if self._left > 0 and self._is_from_host(values) and self._is_last_before():
            results = list(map(np.asarray, results))
            seconds = time.perf_counter() - begin
            self._program = self._tried(values, results, seconds, by_xla)
        return results

    def _is_last_before(self) -> bool:
        """Count a run by XLA; whether it was the last one: of threads that run at once, one's."""
        with self._lock:
            self._left -= 1
            return self._left == 0

    def _is_from_host(self, values: Sequence[Any]) -> bool:
        inputs = values[: len(values) - self._states]
        return all(isinstance(value, np.ndarray) for value in inputs)

    def _tried(
        self, values: Sequence[Any], results: Sequence[np.ndarray], seconds: float, by_xla: _Run
    ) -> _Program | None:
        """The program, if it can be run, returns the `results` of XLA, and takes less time.

        `seconds`: that XLA took.
        """
        try:
            if seconds > _LONGEST_SECONDS:
                raise UnknownError(f"a run takes {seconds:.1f} seconds")
            program = self._read(values, results)
            direct, own_seconds = program.run(values), _seconds(lambda: program.run(values))
            is_slower = processor.thread_count() > 1 and _is_slower(
                own_seconds,
                lambda: program.run(values),
                lambda: list(map(np.asarray, by_xla(values))),
            )
        except (*LOAD_ERRORS, struct.error) as error:
            _LOGGER.debug("XLA's runtime keeps running a program: %s", error)
            return None
        if direct is None or is_slower:
            _LOGGER.debug("XLA's runtime keeps running a program: it takes less time")
            return None
        if not all(a.tobytes() == b.tobytes() for a, b in zip(results, direct, strict=True)):
            _LOGGER.warning(
                "XLA's runtime keeps running a program, whose direct calls return other results: "
                "please report this with the model"
            )
            return None
        if own_seconds < _SHORT and program.is_bounded:
            program.keep_lock()
        return program

    def _read(self, values: Sequence[Any], results: Sequence[np.ndarray]) -> _Program:
        stats = self._executable.memory_analysis()
        size = stats.temp_size_in_bytes + stats.output_size_in_bytes
        if size > _MOST_BYTES:
            raise UnknownError(f"it takes {size} bytes of memory")
        inputs, constants = (list(map(np.asarray, some)) for some in (values, self._constants))
        return _Program(self._executable.serialized(), constants, inputs, results, self._states)


_pauses: list[None] = []  # as many as `by_xla` contexts are entered


@contextlib.contextmanager
def by_xla() -> Iterator[None]:
    """Let XLA's runtime run all programs meanwhile, in every thread, for its profiler."""
    _pauses.append(None)
    try:
        yield
    finally:
        _pauses.pop()


def why_not() -> str | None:
    """Why XLA's runtime runs every program of this process; None: some do without it."""
    if not getattr(sys, "_is_gil_enabled", lambda: True)():  # counts of references rely on it
        return "direct calls need Python's global interpreter lock"
    if jaxlib_version.__version_info__[:2] not in TESTED:
        first, last = (".".join(map(str, TESTED[i])) for i in (0, -1))
        tested = f"direct calls were tested with jaxlib {first} to {last}"
        return f"{tested}, and this is {jaxlib_version.__version__}"
    try:
        _function(ctypes.CDLL)
    except (OSError, AttributeError) as error:
        return f"{library.LIBRARY.name} cannot be used: {error}"
    return None


def _seconds(run: Callable[[], object]) -> float:
    """The seconds that a function takes at its quickest."""
    times: list[float] = []
    while len(times) < _MOST_TIMED and sum(times) < _TIMED_SECONDS:
        begin = time.perf_counter()
        run()
        times.append(time.perf_counter() - begin)
    return min(times)


def _is_slower(own_seconds: float, own: Callable[[], object], by_xla: Callable[[], object]) -> bool:
    """Whether XLA is clearly quicker in each of several rounds."""
    for _ in range(_ROUNDS):
        if own_seconds <= _CLEARLY * _seconds(by_xla):
            return False
        own_seconds = _seconds(own)
    return True


def _nothing() -> None:
    return None


@functools.cache
def _function(load: Callable[[str], ctypes.CDLL]) -> Any:
    function = load(str(library.LIBRARY)).jaxdelegate_call_directly
    function.argtypes, function.restype = [ctypes.c_void_p], ctypes.c_int
    return function
