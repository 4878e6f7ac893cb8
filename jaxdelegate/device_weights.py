"""Weights on devices, one array for equal elements. Does not import jax."""

from __future__ import annotations

import contextlib
import functools
import threading
import weakref
from collections.abc import Callable, Hashable, Iterator, MutableMapping
from typing import Any

import numpy as np

from jaxdelegate.digests import array_digests
from jaxdelegate.host_memory import aligned_copy
from jaxdelegate.pjrt.client import Runtime
from jaxdelegate.quant.packing import in_memory


class DeviceWeights:
    """The weights on one device, by content: each lives as long as a program uses it.

    All models, delegates and functions of the process share them. Only programs hold these arrays,
    so that users cannot donate them.
    """

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self._arrays: MutableMapping[str, Any] = weakref.WeakValueDictionary()
        self._lock = threading.Lock()
        self._turn = threading.Condition()
        self._loading = 0  # how many threads load executables, or will
        self._most = threading.Semaphore(2)  # loading takes twice the memory that is kept

    @contextlib.contextmanager
    def loading(self) -> Iterator[None]:
        """While a thread loads an executable. Two may at once, but no thread is `adding` then."""
        with self._turn:
            self._loading += 1
        try:
            with self._most:
                yield
        finally:
            with self._turn:
                self._loading -= 1
                self._turn.notify_all()

    @contextlib.contextmanager
    def adding(self) -> Iterator[None]:
        """While a thread adds the weights of an executable; those that two share are read once.

        It waits for all that are `loading`: with weights, they would need the most memory.
        """
        with self._turn:
            self._turn.wait_for(lambda: self._loading == 0)
            yield

    def find(self, name: str) -> Any | None:
        """The device array of this name (see `weight_name`), if a program uses it."""
        array = self._arrays.get(name)
        return None if array is None or array.is_deleted() else array

    def share(self, name: str, array: Any) -> Any:
        """The array to use for a name: the one in use, or else this one."""
        with self._lock:
            known = self.find(name)
            if known is None:
                known = self._arrays[name] = array
            return known


_ON_DEVICES: MutableMapping[Runtime, DeviceWeights] = weakref.WeakKeyDictionary()
_MAKING = threading.Lock()


def on_device(runtime: Runtime) -> DeviceWeights:
    with _MAKING:
        return _ON_DEVICES.setdefault(runtime, DeviceWeights(runtime))


def weight_name(digest: str, dtype: np.dtype, shape: tuple[int, ...]) -> str:
    """What a weight is called on its device: elements, dtype and shape."""
    return f"{digest} {dtype} {shape}"


def put_constant(runtime: Runtime, array: np.ndarray) -> Any:
    """Copy a constant of a model to a device.

    `Runtime.put` may return a view, on a CPU. The constant's memory may change, as that of a mapped
    file does, or be freed with a stock interpreter, while other models use the array.
    """
    return runtime.put(aligned_copy(array) if runtime.device.platform == "cpu" else array)


class ModelWeights:
    """The weights of one model's graph for one device and one set of options.

    It remembers what each prepared constant is called, so that it is prepared once for all input
    shapes and partitions.

    Attributes:
        runtime: the device's.
        loading, adding: see `DeviceWeights`.
    """

    def __init__(self, runtime: Runtime, shared: DeviceWeights | None = None) -> None:
        """`shared`: arrays that others may use, None: those of all programs on the device."""
        self.runtime = runtime
        self._shared = on_device(runtime) if shared is None else shared
        self.loading, self.adding = self._shared.loading, self._shared.adding
        self._names: dict[Hashable, tuple[weakref.ref[np.ndarray] | None, str]] = {}

    def find(self, name: str) -> Any | None:
        return self._shared.find(name)

    def share(self, name: str, array: Any) -> Any:
        return self._shared.share(name, array)

    def get(self, weight: Hashable, const: np.ndarray | None, value: Callable[[], Any]) -> Any:
        """The device array of a prepared constant.

        Args:
            weight: names it.
            const: what it is prepared from. A constant that was folded from shapes may change with
                a resize.
            value: prepares it.
        """
        source, name = self._names.get(weight, (None, ""))
        if name and _is(source, const):
            array = self._shared.find(name)
            if array is not None:
                return array
        prepared = np.asarray(value())
        (digest,) = array_digests([prepared])
        name = weight_name(digest, prepared.dtype, prepared.shape)
        array = self._shared.find(name)
        if array is None:
            is_view = const is not None and np.may_share_memory(prepared, in_memory(const))
            put = functools.partial(put_constant, self.runtime) if is_view else self.runtime.put
            array = self._shared.share(name, put(prepared))
        self._names[weight] = None if const is None else weakref.ref(const), name
        return array


def _is(source: weakref.ref[np.ndarray] | None, const: np.ndarray | None) -> bool:
    if source is None or const is None:
        return source is None and const is None
    known = source()
    if known is None or known is const:
        return known is not None
    is_alike = (known.dtype, known.shape) == (const.dtype, const.shape)
    return is_alike and np.array_equal(in_memory(known), in_memory(const))
