"""Loads and runs compiled programs through jaxlib, with jax or without it.

To import jax takes longer than everything else that a stored program needs until its first result.
jaxlib alone can load it and run it. Its calls are private: nothing else of this package makes them,
and whoever asks for a program without jax has to be ready for LOAD_ERRORS, and to go through jax.
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

# As jax does before it loads the library: else it logs every client that is made.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")

from jaxlib import _jax, xla_client

from jaxdelegate.errors import InterpreterError
from jaxdelegate.pjrt.out_of_memory import is_out_of_memory

# What loading may raise on bytes that are no executable of this jaxlib, or where its calls are
# other ones: a miss, whatever it was.
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

# Of what numpy can view without a copy where jax has not taught it how.
_VIEWABLE = "biufc"

_GUARDS: Any = getattr(
    _jax, "guard_lib", None
)  # without it, what a guard refuses is refused here, too
_NOTHING = contextlib.nullcontext()


def is_device_array(value: Any) -> bool:
    """Whether a value is an array of jax, on whatever device."""
    return isinstance(value, _jax.ArrayImpl)


class NeedsJaxError(RuntimeError):
    """What was begun without jax has to be done with it."""


_broken: list[BaseException] = []  # what running without jax has ended in


class Runtime:
    """One device, and how arrays get there."""

    def __init__(self, device: Any, sharding: Any, aval: Callable[[Shape, np.dtype], Any]) -> None:
        """Use `of_jax` or `without_jax` instead.

        Args:
            device: jaxlib's.
            sharding: that puts an array on it.
            aval: makes what jaxlib wants to know of an array.
        """
        self.device = device
        self._sharding = sharding
        self._devices = [device]
        self.aval = functools.lru_cache(maxsize=1024)(aval)
        self.has_jax = not isinstance(sharding, _Sharding)

    def put(self, array: Any) -> Any:
        """A device array of these elements, of numpy or of another device.

        On a CPU it may be a view of numpy's memory.
        """
        aval = self.aval(array.shape, array.dtype)
        with on_purpose():
            return _jax.batched_device_put(
                aval, self._sharding, [array], self._devices, True, enable_x64=True
            )

    def to_device(self, value: Any) -> Any:
        """An argument as an executable takes it: what lies on the device stays there."""
        if self.has_jax and is_device_array(value):
            return self.here(value)
        return self.put(np.asarray(value))

    def here(self, value: Any) -> Any:
        """A device array moved here from another device, without the host; all else as it is."""
        if isinstance(value, _jax.ArrayImpl) and value.sharding != self._sharding:
            return self.put(value)
        return value

    def load(
        self, code: bytes | memoryview, arguments: int, results: Sequence[Result]
    ) -> "Executable":
        """The executable after `serialized`; nothing is traced or compiled.

        Args:
            code: what `serialized` answered. It becomes machine code: check where it comes from.
            arguments: how many it takes.
            results: shape and dtype of each array that it returns.

        Raises:
            LOAD_ERRORS: it is no executable of this jaxlib, takes another number of arguments, or
                cannot be run without jax.
        """
        check_process()  # XLA links the code on threads
        if not self.has_jax:
            odd = next((dtype for _, dtype in results if dtype.kind not in _VIEWABLE), None)
            if odd is not None:
                raise TypeError(f"results of {odd} need jax")
        devices = _jax.DeviceList((self.device,))
        loaded = self.device.client.deserialize_executable(bytes(code), devices)
        if (count := len(loaded.get_parameter_layouts())) != arguments:
            raise ValueError(f"the executable takes {count} arguments, {arguments} are known")
        return Executable(self, loaded, [self._handler(*result) for result in results])

    def _handler(self, shape: Shape, dtype: np.dtype) -> Any:
        """What makes an array of a result."""
        make, committed, unchecked = _jax.array_result_handler, True, True
        try:
            return make(self.aval(shape, dtype), self._sharding, committed, unchecked)
        except TypeError:  # from jaxlib 0.12 on nothing is checked
            return make(self.aval(shape, dtype), self._sharding, committed)


class Executable:
    """A loaded program. It answers arrays of jax; without jax numpy's, read-only."""

    def __init__(self, runtime: Runtime, loaded: Any, handlers: Sequence[Any]) -> None:
        """Made by `Runtime.load`."""
        self._runtime, self._loaded, self._handlers = runtime, loaded, handlers
        # Looked up now: who cannot run here has to know before he needs a result.
        self._execute = loaded.execute_sharded
        self._consume = _jax.ExecuteResults.consume_with_handlers
        self._has_run = False

    def run(self, constants: Sequence[Any], values: Sequence[Any]) -> list[Any]:
        """Run; returns before the device is done.

        Args:
            constants: the first arguments, which `Runtime.put` has put on the device.
            values: the others, of the host or the device.

        Raises:
            NeedsJaxError: this jaxlib has other calls than these; no program asks it again.
            RuntimeError: the device failed.
        """
        if self._runtime.has_jax or self._has_run:
            return self._run(constants, values)
        try:
            results = self._run(constants, values)
        except LOAD_ERRORS as error:
            if is_out_of_memory(error):  # with jax there is not more of it
                raise
            _broken.append(error)
            raise NeedsJaxError(f"the program cannot be run without jax: {error}") from error
        self._has_run = True
        return results

    def _run(self, constants: Sequence[Any], values: Sequence[Any]) -> list[Any]:
        arguments = [*constants, *map(self._runtime.to_device, values)]
        results = self._consume(self._execute(arguments), self._handlers)
        return results if self._runtime.has_jax else [_viewed(array) for array in results]

    def as_text(self) -> str:
        """The program as HLO."""
        return "\n\n".join(module.to_string() for module in self._loaded.hlo_modules())

    def memory_analysis(self) -> Any:
        """XLA's plan of its memory."""
        return self._loaded.get_compiled_memory_stats()

    def serialized(self) -> bytes:
        """What `Runtime.load` takes."""
        return serialized(self._loaded)


def serialized(executable: Any) -> bytes:
    """The bytes of a jaxlib LoadedExecutable.

    Raises:
        LOAD_ERRORS: its platform cannot serialize it.
    """
    return bytes(executable.client.serialize_executable(executable))


def _viewed(array: Any) -> np.ndarray:
    array.block_until_ready()
    return np.asarray(array)


def is_guarded() -> bool:
    """Whether `jax.transfer_guard` has anything to say about this thread."""
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
    """What moves between host and devices here is meant to, as by `jax.device_put`.

    `jax.transfer_guard("disallow")` refuses what moves by accident.
    """
    return _marked_as_explicit() if is_guarded() else _NOTHING  # each call of a model comes by


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
    """How this package traces, compiles and runs its own programs, whatever its caller has set.

    With 64-bit types, jitted (under `jax.disable_jit`, too), and moving arrays on purpose.

    Args:
        device: a jax.Device, for what is put on none; None: as the caller has it.
    """
    import jax  # noqa: PLC0415 (whoever has a program to trace has it)

    default = contextlib.nullcontext() if device is None else jax.default_device(device)
    with jax.enable_x64(True), jax.disable_jit(False), default, on_purpose():
        yield


@functools.cache
def of_jax(device: Any) -> Runtime:
    """For a jax.Device: results are arrays of jax."""
    import jax  # noqa: PLC0415 (whoever has such a device has it)

    sharding = jax.sharding.SingleDeviceSharding(device)
    return Runtime(device, sharding, jax.core.ShapedArray)


# ---- without jax


class _Sharding(_jax.SingleDeviceSharding):  # type: ignore[misc]
    """What jaxlib asks of a sharding, which jax gives elsewhere."""

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
    """Shape and dtype of an array, as jaxlib asks for them."""

    weak_type = False

    def __init__(self, shape: Shape, dtype: np.dtype) -> None:
        self.shape, self.dtype = shape, dtype
        self.ndim, self.size = len(shape), int(np.prod(shape, dtype=np.int64))


def without_jax() -> Runtime:
    """For the CPU, in a process that has not imported jax; results are arrays of numpy.

    Raises:
        LOAD_ERRORS: this jaxlib has other calls.
    """
    if _broken:
        raise NeedsJaxError(str(_broken[0]))
    return _host_cpu()


_making = threading.Lock()  # two threads would make two clients, each with its own threads


def _host_cpu() -> Runtime:
    with _making:
        return _made_host_cpu()


@functools.cache
def _made_host_cpu() -> Runtime:
    client: Any = xla_client.make_cpu_client()
    device = client.local_devices()[0]
    return Runtime(device, _Sharding(device), _Aval)


# ---- processes

_is_forked = False  # from a process in which XLA had threads already: here they are missing


def check_process() -> None:
    """Make sure that XLA can run in this process: where its threads are missing, it would wait.

    Raises:
        InterpreterError: the process was forked from one that had used XLA.
    """
    if _is_forked:
        raise InterpreterError(
            "XLA cannot run in this process: it was forked from one that had used XLA, whose "
            'threads are not copied. Start workers by multiprocessing.get_context("spawn"), or '
            "fork before the first delegate, model or JAX function is used"
        )


def _note_fork() -> None:
    global _is_forked  # noqa: PLW0603 (a function of the process, called by the interpreter)
    _is_forked = _is_forked or _has_client()


def _has_client() -> bool:
    """Whether this process, or the one that it is a copy of, has made a client: here or by jax."""
    bridge = sys.modules.get("jax._src.xla_bridge")
    is_jax_ready = getattr(bridge, "backends_are_initialized", lambda: bridge is not None)
    return _made_host_cpu.cache_info().currsize > 0 or is_jax_ready()


os.register_at_fork(after_in_child=_note_fork)


# ---- calls of native code


def register(name: str, function: Any) -> None:
    """Let programs for the CPU call a handler of XLA's foreign function interface by a name.

    Args:
        name: that programs have.
        function: of a ctypes library.

    Raises:
        LOAD_ERRORS: another function has that name.
    """
    address = ctypes.cast(function, ctypes.c_void_p)
    capsule = _new_capsule(address, None, None)
    xla_client.register_custom_call_target(name, capsule, platform="cpu", api_version=1)


_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
