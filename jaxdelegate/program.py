"""A partition, its compiled program, and the tensors of a stored one. Does not import jax."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import ml_dtypes  # noqa: F401  (np.dtype("bfloat16") and others)
import numpy as np

from jaxdelegate.pjrt.client import check_process
from jaxdelegate.simple_delegate import Shortcut
from jaxdelegate.thunks.calls import DirectCalls

if TYPE_CHECKING:
    from jaxdelegate.model.records import Operator
    from jaxdelegate.op_lowering.spec import TensorSpec
    from jaxdelegate.simple_delegate import DelegateParams


class Executable(Protocol):
    """Machine code, compiled by jax or loaded."""

    def run(self, constants: Sequence[Any], values: Sequence[Any]) -> Sequence[Any]:
        """Run on device arrays, then on values of the host or the device."""
        ...

    def start(self, constants: Sequence[Any], values: Sequence[Any]) -> Sequence[Any]:
        """The same; the results are arrays on the device, whose memory a later run may take."""
        ...

    def as_text(self) -> str:
        """The program as HLO."""
        ...

    def memory_analysis(self) -> Any:
        """XLA's memory statistics; None if the backend has none."""
        ...

    def serialized(self) -> bytes:
        """What `Runtime.load` takes."""
        ...


@dataclasses.dataclass(frozen=True)
class Partition:
    """What one program computes."""

    params: DelegateParams  # its nodes, inputs and outputs
    specs: Mapping[int, TensorSpec]  # those of all tensors of its operators
    outputs: Sequence[int]  # those outputs that are not constants

    @property
    def operators(self) -> list[Operator]:
        return [node.operator for node in self.params.nodes]


@dataclasses.dataclass(frozen=True)
class Program:
    """A compiled partition: call it with the inputs and states, get outputs and new states."""

    executable: Executable
    weights: tuple[Any, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    states: Mapping[int, TensorSpec]  # as the host stores them
    donated: tuple[int, ...] = ()  # positions in `inputs` whose buffers the program may overwrite
    was_read: bool = False  # from JAX's own compilation cache
    call_lists: tuple[Any, ...] = ()  # those of its call batches (call_batching.py)
    file: str | None = None  # its name in the cache directory
    is_on_cpu: bool = False  # on one device, which is the host

    @functools.cached_property
    def constants(self) -> tuple[Any, ...]:
        """The executable's arguments before inputs and states."""
        return (*self.call_lists, *self.weights)

    @property
    def is_deleted(self) -> bool:
        """Whether a caller has deleted its arrays, as all of `jax.live_arrays()`."""
        return any(array.is_deleted() for array in self.constants)

    @functools.cached_property
    def code_bytes(self) -> int:
        """Bytes of machine code; 0 where XLA does not report them, as on a CPU."""
        stats = self.executable.memory_analysis()
        return 0 if stats is None else int(stats.generated_code_size_in_bytes)

    def __call__(self, values: Sequence[Any], threads: int | None = None) -> Sequence[Any]:
        """Run on the values of `inputs`, then `states`; returns before the device is done.

        `threads`: that share the work where XLA's runtime does not run it; None: as many as it has.
        """
        check_process()
        if self._direct is None:
            return self._by_xla(values)
        return self._direct.run(values, self._by_xla, threads)

    def shortcut(self) -> Shortcut | None:
        """Runs it without XLA's runtime, for one caller at a time; None: that is not possible.

        From the values of `inputs` and `states` it computes those of `outputs` and `states`.
        """
        call = None if self._direct is None else self._direct.fast_call()
        if call is None:
            return None
        return Shortcut((*self.inputs, *self.states), (*self.outputs, *self.states), call)

    def _by_xla(self, values: Sequence[Any]) -> Sequence[Any]:
        return self.executable.run(self.constants, self._copy_donated(values))

    @functools.cached_property
    def _direct(self) -> DirectCalls | None:
        if not self.is_on_cpu or self.donated:
            return None
        return DirectCalls(self.executable, self.constants, len(self.states))

    def _copy_donated(self, values: Sequence[Any]) -> Sequence[Any]:
        """The values, with copies of device arrays that the program may overwrite."""
        if not self.donated:
            return values
        own = list(values)
        for position in self.donated:
            if not isinstance(own[position], np.ndarray):
                own[position] = own[position].copy()
        return own


@dataclasses.dataclass(frozen=True)
class StoredTensor:
    """An input or output of a stored program, as interpreters describe it."""

    index: int
    name: str
    shape: tuple[int, ...]
    shape_signature: tuple[int, ...]
    dtype: str
    scales: tuple[float, ...]
    zero_points: tuple[int, ...]
    quantized_dimension: int

    def details(self) -> dict[str, Any]:
        """The result of `runtime.tensor_details.tensor_details` for the model's tensor."""
        one = len(self.scales) == 1
        return {
            "name": self.name,
            "index": self.index,
            "shape": np.array(self.shape, np.int32),
            "shape_signature": np.array(self.shape_signature, np.int32),
            "dtype": np.dtype(self.dtype).type,
            "quantization": (self.scales[0], self.zero_points[0]) if one else (0.0, 0),
            "quantization_parameters": {
                "scales": np.array(self.scales, np.float32),
                "zero_points": np.array(self.zero_points, np.int32),
                "quantized_dimension": self.quantized_dimension,
                "block_size": 0,
            },
            "sparsity_parameters": {},
        }


def stored_states(
    indices: Sequence[int], spec: Callable[[int], TensorSpec]
) -> dict[int, TensorSpec]:
    """The specs of a program's states as hosts store them."""
    return {i: dataclasses.replace(spec(i), const=None) for i in indices}
