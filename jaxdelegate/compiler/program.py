"""A compiled partition, and the weights that its device keeps for it. Knows no jax."""

from __future__ import annotations

import dataclasses
import functools
import weakref
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from jaxdelegate.pjrt.client import Runtime, check_process

if TYPE_CHECKING:
    from jaxdelegate.op_lowering.spec import TensorSpec


class Executable(Protocol):
    """Machine code: what jax has compiled just now, or what was loaded."""

    def run(self, constants: Sequence[Any], values: Sequence[Any]) -> Sequence[Any]:
        """Run on device arrays, then on values of the host or the device."""
        ...

    def as_text(self) -> str:
        """The program as HLO."""
        ...

    def memory_analysis(self) -> Any:
        """XLA's plan of its memory; None where a backend does not tell."""
        ...

    def serialized(self) -> bytes:
        """What `Runtime.load` takes."""
        ...


@dataclasses.dataclass(frozen=True)
class Program:
    """A compiled partition: call it with the inputs and states, get outputs and new states."""

    executable: Executable
    weights: tuple[Any, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    states: Mapping[int, TensorSpec]  # as hosts store them
    donated: tuple[int, ...] = ()  # positions in `inputs` whose buffers the program may overwrite
    was_read: bool = False  # from JAX's own compilation cache
    call_lists: tuple[Any, ...] = ()  # of the call batches in it (call_batching.py)
    file: str | None = None  # that holds it in the cache directory

    @functools.cached_property
    def constants(self) -> tuple[Any, ...]:
        """What the executable takes ahead of inputs and states."""
        return (*self.call_lists, *self.weights)

    def __call__(self, values: Sequence[Any]) -> Sequence[Any]:
        """Run on the values of `inputs`, then `states`; returns before the device is done.

        Raises:
            InterpreterError: in a process that was forked from one that had used XLA.
        """
        check_process()
        return self.executable.run(self.constants, self._given_up(values))

    def _given_up(self, values: Sequence[Any]) -> Sequence[Any]:
        """Host arrays are copied to the device anyway; what lies there others may still read."""
        if not self.donated:
            return values
        own = list(values)
        for position in self.donated:
            if not isinstance(own[position], np.ndarray):
                own[position] = own[position].copy()
        return own


class ResidentWeights:
    """Prepared constants on one device, shared by all shapes and partitions of a model.

    Attributes:
        runtime: of the device.
    """

    def __init__(self, runtime: Runtime) -> None:
        """Begin empty."""
        self.runtime = runtime
        self._arrays: dict[Any, tuple[np.ndarray | None, Any]] = {}
        self._by_digest: MutableMapping[str, Any] = weakref.WeakValueDictionary()

    def find(self, digest: str) -> Any | None:
        """The device array with these elements, dtype and shape, if `share` was told of it."""
        return self._by_digest.get(digest)

    def share(self, digest: str, array: Any) -> Any:
        """The one device array to keep for a digest; what has the same gives up its own copy."""
        kept = self._by_digest.setdefault(digest, array)
        for weight, (const, resident) in self._arrays.items():
            if resident is array:
                self._arrays[weight] = const, kept
        return kept

    def get(self, weight: Any, const: np.ndarray | None, value: Callable[[], Any]) -> Any:
        """The device array of a prepared constant, moved there at its first use.

        A constant that was folded from shapes may change with a resize; it is replaced then.

        Args:
            weight: names it.
            const: what it is prepared from.
            value: prepares it.
        """
        if weight in self._arrays:
            source, kept = self._arrays[weight]
            if source is const or np.array_equal(source, const):  # type: ignore[arg-type]
                return kept
        resident = self.runtime.put(np.asarray(value()))
        self._arrays[weight] = (const, resident)
        return resident


def stored_states(
    indices: Sequence[int], spec: Callable[[int], TensorSpec]
) -> dict[int, TensorSpec]:
    """The specs of a program's states as hosts store them."""
    return {i: dataclasses.replace(spec(i), const=None) for i in indices}
