"""Loads and runs compiled programs through jaxlib, with jax or without it.

Importing jax takes longer than everything else between a start and the first result of a stored
program. jaxlib alone can load and run it, but its API is private: only this module uses it, and
callers without jax must handle LOAD_ERRORS by falling back to jax.
"""

import contextlib
import ctypes
import functools
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

# jax sets this before it loads the library, too: otherwise it logs the creation of every client.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")

from jaxlib import _jax, xla_client

from jaxdelegate import forks
from jaxdelegate.device_errors import is_out_of_memory
from jaxdelegate.errors import InterpreterError

# Errors of loading if the bytes are not an executable of this jaxlib, or if its private API
# differs: all of them are cache misses.
LOAD_ERRORS = (
    RuntimeError,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    ImportError,
    ArithmeticError,
    AssertionError,
    MemoryError,
    OSError,
)

Shape = tuple[int, ...]
Result = tuple[Shape, np.dtype]

# Kinds of dtypes that numpy can view without a copy and without jax.
_VIEWABLE = "biufc"

_GUARDS: Any = getattr(_jax, "guard_lib", None)  # without it, guards refuse our transfers, too
_NO_CONTEXT = contextlib.nullcontext()
_MANY_SHARDINGS = 1024


def is_device_array(value: Any) -> bool:
    """Whether a value is an array of jax, on any device."""
    return isinstance(value, _jax.ArrayImpl)


def nbytes(array: Any) -> int:
    """Bytes of an array's elements, also of a device array without jax."""
    if isinstance(array, np.ndarray):
        return array.nbytes
    return int(array.aval.size) * int(np.dtype(array.aval.dtype).itemsize)


class NeedsJaxError(RuntimeError):
    """The program cannot be run without jax."""


_failures: list[BaseException] = []  # of running without jax


class Runtime:
    def __init__(self, device: Any, sharding: Any, aval: Callable[[Shape, np.dtype], Any]) -> None:
        """Use `of_jax` or `without_jax` instead; `aval` describes an array for jaxlib."""
        self.device = device
        self._sharding = sharding
        self.devices: Sequence[Any] = [device]  # of this process, which run its programs
        self._equal: dict[int, Any] = {}  # shardings by identity: each result of a program has one
        self.aval = functools.lru_cache(maxsize=1024)(aval)
        self.has_jax = not isinstance(sharding, _Sharding)

    def put(self, array: Any) -> Any:
        """Copy an array from numpy or from another device to this one.

        On a CPU the result may be a view of numpy's memory.
        """
        aval = self.aval(array.shape, array.dtype)
        with on_purpose():
            return _jax.batched_device_put(
                aval, self._sharding, [array], self.devices, True, enable_x64=True
            )

    def to_device(self, value: Any) -> Any:
        """A value as an argument of an executable; arrays on the device are not copied."""
        if is_device_array(value):
            return self.from_device(value) if self.has_jax else value
        return self.put(np.asarray(value))

    def from_device(self, value: Any) -> Any:
        """Move an array from another device to this one directly; returns other values as is."""
        is_here = not isinstance(value, _jax.ArrayImpl) or self.holds(value)
        return value if is_here else self.put(value)

    def holds(self, array: Any) -> bool:
        """Whether an array of jax is on this device."""
        sharding = array.sharding
        if self._equal.get(id(sharding)) is sharding:
            return True
        is_equal: bool = sharding == self._sharding
        if is_equal:
            if len(self._equal) >= _MANY_SHARDINGS:
                self._equal = {}
            self._equal[id(sharding)] = sharding
        return is_equal

    def load(
        self, code: bytes | memoryview, arguments: int, results: Sequence[Result]
    ) -> "Executable":
        """Load an executable from `serialized`, without tracing or compiling.

        It is run as machine code: use only trusted bytes. Raises LOAD_ERRORS if it is not an
        executable of this jaxlib, has another number of arguments, or cannot be run without jax.
        """
        check_process()  # XLA links the code on threads
        if not self.has_jax:
            odd = next((dtype for _, dtype in results if dtype.kind not in _VIEWABLE), None)
            if odd is not None:
                raise TypeError(f"results of {odd} need jax")
        devices = _jax.DeviceList((self.device,))
        loaded = self.device.client.deserialize_executable(bytes(code), devices)
        if (count := len(loaded.get_parameter_layouts())) != arguments:
            raise ValueError(f"the executable has {count} arguments, expected {arguments}")
        return Executable(self, loaded, [self._handler(*result) for result in results])

    def _handler(self, shape: Shape, dtype: np.dtype) -> Any:
        new_handler, committed, unchecked = _jax.array_result_handler, True, True
        try:
            return new_handler(self.aval(shape, dtype), self._sharding, committed, unchecked)
        except TypeError:  # jaxlib >= 0.12 has no checks and no such argument
            return new_handler(self.aval(shape, dtype), self._sharding, committed)


class Executable:
    """A loaded program. Results are arrays of jax, or read-only ones of numpy without jax."""

    def __init__(self, runtime: Runtime, loaded: Any, handlers: Sequence[Any]) -> None:
        """Use `Runtime.load` instead."""
        self._runtime, self._loaded, self._handlers = runtime, loaded, handlers
        # Looked up now, so that a missing function is an error of loading, not of the first run.
        self._execute = loaded.execute_sharded
        self._consume = _jax.ExecuteResults.consume_with_handlers
        self._has_run = False

    def run(self, constants: Sequence[Any], values: Sequence[Any]) -> list[Any]:
        """Run, without jax to the end; with jax it returns before the device is done.

        Constants, the first arguments, are already on the device (`Runtime.put`); values are on the
        host or the device. A NeedsJaxError if the private API of this jaxlib differs: `without_jax`
        fails from then on. A RuntimeError if the device failed.
        """
        if self._runtime.has_jax:
            return self._start(constants, values)
        return self._tried(lambda: list(map(viewed, self._start(constants, values))))

    def start(self, constants: Sequence[Any], values: Sequence[Any]) -> list[Any]:
        """Start a run, as `run`; the results are arrays on the device, also without jax."""
        if self._runtime.has_jax or self._has_run:
            return self._start(constants, values)

        def first() -> list[Any]:
            results = self._start(constants, values)
            for array in results:
                viewed(array)
            return results

        return self._tried(first)

    def _tried(self, run: Callable[[], list[Any]]) -> list[Any]:
        if self._has_run:
            return run()
        try:
            results = run()
        except LOAD_ERRORS as error:
            if is_out_of_memory(error):  # jax would not help
                raise
            _failures.append(error)
            raise NeedsJaxError(f"the program cannot be run without jax: {error}") from error
        self._has_run = True
        return results

    def _start(self, constants: Sequence[Any], values: Sequence[Any]) -> list[Any]:
        arguments = [*constants, *map(self._runtime.to_device, values)]
        results: list[Any] = self._consume(self._execute(arguments), self._handlers)
        return results

    def as_text(self) -> str:
        return "\n\n".join(module.to_string() for module in self._loaded.hlo_modules())

    def memory_analysis(self) -> Any:
        return self._loaded.get_compiled_memory_stats()

    def serialized(self) -> bytes:
        """The bytes for `Runtime.load`."""
        return serialized(self._loaded)


def serialized(executable: Any) -> bytes:
    """The bytes of a jaxlib LoadedExecutable; LOAD_ERRORS if its platform cannot serialize it."""
    return bytes(executable.client.serialize_executable(executable))


def viewed(array: Any) -> np.ndarray:
    """An array of a device as one of numpy, when it is ready."""
    array.block_until_ready()
    return np.asarray(array)


def is_guarded() -> bool:
    """Whether a `jax.transfer_guard` is set for this thread or globally."""
    if _GUARDS is None:
        return False
    here, everywhere = _GUARDS.thread_local_state(), _GUARDS.global_state()
    return (
        here.host_to_device is not None
        or here.device_to_host is not None
        or here.device_to_device is not None
        or everywhere.host_to_device is not None
        or everywhere.device_to_host is not None
        or everywhere.device_to_device is not None
    )


def on_purpose() -> contextlib.AbstractContextManager[None]:
    """Mark transfers between host and devices as explicit, like those of `jax.device_put`.

    `jax.transfer_guard("disallow")` refuses implicit ones only.
    """
    return _marked_as_explicit() if is_guarded() else _NO_CONTEXT  # fast: each call enters it


@contextlib.contextmanager
def _marked_as_explicit() -> Iterator[None]:
    state = _GUARDS.thread_local_state()
    before = state.explicit_device_put, state.explicit_device_get
    state.explicit_device_put = state.explicit_device_get = True
    try:
        yield
    finally:
        state.explicit_device_put, state.explicit_device_get = before


# ---- with jax


@contextlib.contextmanager
def as_programs(device: Any = None) -> Iterator[None]:
    """Trace, compile and run this package's programs independently of the caller's settings.

    With 64-bit types, jitted (even under `jax.disable_jit`), and with explicit transfers. `device`
    is the default jax.Device; None: the caller's.
    """
    import jax  # noqa: PLC0415 (imported already to trace a program)

    default = contextlib.nullcontext() if device is None else jax.default_device(device)
    with jax.enable_x64(True), jax.disable_jit(False), default, on_purpose():
        yield


@functools.cache
def of_jax(device: Any) -> Runtime:
    """Results are arrays of jax."""
    import jax  # noqa: PLC0415 (imported already, since the device is jax's)

    sharding = jax.sharding.SingleDeviceSharding(device)
    return Runtime(device, sharding, jax.core.ShapedArray)


# ---- without jax


class _Sharding(_jax.SingleDeviceSharding):  # type: ignore[misc]
    """A sharding with the methods that jaxlib calls, and that jax implements otherwise."""

    memory_kind = None

    def __init__(self, device: Any) -> None:
        super().__init__(device)
        self._one = _jax.DeviceList((device,))

    def _to_xla_hlo_sharding(self, _rank: int) -> Any:
        return xla_client.HloSharding.replicate()

    @property
    def _internal_device_list(self) -> Any:
        return self._one


class _Aval:
    """Shape and dtype of an array, with the attributes that jaxlib reads."""

    weak_type = False

    def __init__(self, shape: Shape, dtype: np.dtype) -> None:
        self.shape, self.dtype = shape, dtype
        self.ndim, self.size = len(shape), int(np.prod(shape, dtype=np.int64))


def without_jax() -> Runtime:
    """The CPU in a process that has not imported jax; results are arrays of numpy.

    Raises LOAD_ERRORS if the private API of this jaxlib differs.
    """
    if _failures:
        raise NeedsJaxError(str(_failures[0]))
    with _creating:
        return _host_cpu()


_creating = threading.Lock()  # two threads would create two clients, each with its own threads


@functools.cache
def _host_cpu() -> Runtime:
    client: Any = xla_client.make_cpu_client()
    device = client.local_devices()[0]
    return Runtime(device, _Sharding(device), _Aval)


# ---- processes

_is_forked = False  # from a process with threads of XLA, which are missing here


def check_process() -> None:
    """Check that the process was not forked from one that had used XLA, or was about to.

    It would wait forever for XLA's threads, or for a lock of the thread that was about to.
    """
    if _is_forked or forks.was_busy():
        raise InterpreterError(
            "XLA cannot run in this process: it was forked from one that had used XLA, or whose "
            "other threads were using it, and threads are not copied. Start workers by "
            'multiprocessing.get_context("spawn"), or fork before the first delegate, model or '
            "JAX function is used"
        )


def _note_fork() -> None:
    global _is_forked  # noqa: PLW0603 (a property of the process)
    _is_forked = _is_forked or _has_client()


def _has_client() -> bool:
    """Whether this process, or the one it was forked from, has created a client here or in jax."""
    bridge = sys.modules.get("jax._src.xla_bridge")
    # jax's own backends_are_initialized() waits for a lock that a thread of the parent may hold.
    jax_backends = getattr(bridge, "_backends", bridge)
    return _host_cpu.cache_info().currsize > 0 or bool(jax_backends)


os.register_at_fork(after_in_child=_note_fork)


# ---- calls of native code


def register(name: str, function: Any) -> None:
    """A handler of XLA's foreign function interface for programs on the CPU.

    Raises LOAD_ERRORS if another function is registered under the name.
    """
    address = ctypes.cast(function, ctypes.c_void_p)
    capsule = _new_capsule(address, None, None)
    xla_client.register_custom_call_target(name, capsule, platform="cpu", api_version=1)


_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
