"""What a kernel sees of a stock interpreter: a DelegateContext on TfLiteContext's memory."""

import ctypes
from collections.abc import Hashable, Iterable, MutableMapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxdelegate.litert import structures
from jaxdelegate.litert.graph import Graph, Specs, TensorTable
from jaxdelegate.litert.graph_key import graph_key
from jaxdelegate.litert.structures import Context, Tensor
from jaxdelegate.litert.tensors import is_viewable, shape_of, value, view
from jaxdelegate.op_lowering.spec import Shape, TensorSpec
from jaxdelegate.passes.limits import Limits
from jaxdelegate.reference.kernel import Services
from jaxdelegate.simple_delegate import GraphKey, Node

_DATA_OFFSET = Tensor.data.offset
_TENSORS_OFFSET = Context.tensors.offset


class _Slot(NamedTuple):
    """An array for a tensor, good as long as `cell`, the tensor's data pointer, says `address`."""

    cell: ctypes.c_size_t
    address: int
    array: np.ndarray | Any


_NOWHERE = ctypes.c_size_t(0)  # the cell of values that lie in no tensor


class _NoServices:
    """Services for reference kernels that need none."""

    def __init__(self) -> None:
        self.resources: MutableMapping[Any, Any] = {}

    def __call__(self, subgraph: int, *arrays: np.ndarray) -> tuple[np.ndarray, ...]:
        """Subgraphs cannot be run."""
        raise LookupError(f"subgraph {subgraph} of {len(arrays)} inputs is out of reach")


_NO_SERVICES = _NoServices()


class PartitionContext:
    """One partition's view of its graph; while planning, the whole graph's.

    Values come from, and go to, the interpreter's memory. Arrays on it are kept from call to call:
    reading a tensor compares one pointer. Tensors that only exist inside of the partition have no
    memory; what a kernel assigns to them stays here.
    """

    preserve_all_tensors = False  # the interpreter asks for such tensors as outputs

    def __init__(self, graph: Graph, shared: MutableMapping[Any, Any]) -> None:
        """See `graph` as it is planned now; `shared` lives as long as the interpreter."""
        self.graph, self.shared = graph, shared
        self._tensors: TensorTable = graph.tensors
        self._base = 0
        self._base_cell = ctypes.c_size_t.from_address(graph.tensors.address + _TENSORS_OFFSET)
        self._inside: frozenset[int] = frozenset()
        self._values: dict[int, _Slot] = {}
        self._targets: dict[int, _Slot] = {}
        self._specs: Specs = graph.specs
        self._shapes: Hashable = graph.shapes()

    # ---- the static side

    @property
    def graph_key(self) -> GraphKey:
        """Equal for graphs of equal operators and constants."""
        return graph_key(self.graph, self.shared)

    def nodes(self) -> Sequence[Node]:
        """The operators that no delegate has taken yet."""
        return [row for row in self.graph.plan() if isinstance(row, Node)]

    def shapes(self) -> Hashable:
        """The shapes that every spec here follows from."""
        return self._shapes

    def spec(self, index: int) -> TensorSpec:
        """A tensor's current static side."""
        return self._specs[index]

    def update(self, specs: Specs, shapes: Hashable, inside: Iterable[int]) -> None:
        """Take over new specs; `inside` are the tensors that live in this partition only."""
        self._specs, self._shapes, self._inside = specs, shapes, frozenset(inside)
        self.forget()

    def forget(self) -> None:
        """Look all tensors up again."""
        self._values.clear()
        self._targets.clear()

    @property
    def services(self) -> Services:
        """Nothing: what calls subgraphs or uses resources stays with the interpreter."""
        return _NO_SERVICES

    # ---- values

    def check_room(self, specs: Iterable[tuple[int, TensorSpec]]) -> None:
        """Refuse tensors whose shapes only data told, if one takes too much."""
        Limits().check_sizes(specs)

    def begin(self) -> None:
        """Before a run: the interpreter may have moved its tensors."""
        base = self._base_cell.value
        if base != self._base:
            self._base = base
            self.forget()

    def value(self, index: int) -> Any:
        """A tensor's value: an array on the interpreter's memory, or what a kernel left here."""
        if index in self.graph.resident:
            return self.graph.resident[index]
        slot = self._values.get(index)
        if slot is not None and slot.cell.value == slot.address:
            return slot.array
        return self._read(index)

    def array(self, index: int) -> np.ndarray:
        """A tensor's value in host memory; do not write to it."""
        return np.asarray(self.value(index))

    def _read(self, index: int) -> np.ndarray:
        const = self._specs[index].const
        if const is not None:
            self._values[index] = _Slot(_NOWHERE, 0, const)
            return const
        if index in self._inside:
            raise LookupError(f"tensor {index} {self._specs[index].name!r} holds no data yet")
        tensor = self._tensors[index]
        if tensor.bytes and not tensor.data:
            raise LookupError(f"tensor {index} {self._specs[index].name!r} holds no data yet")
        if not is_viewable(tensor):
            return value(tensor)
        array = view(tensor)
        array.flags.writeable = False
        self._values[index] = _Slot(self._cell(index), tensor.data or 0, array)
        return array

    def assign(self, index: int, value: Any) -> None:
        """Set a tensor; waits for a value that a device still computes.

        Raises:
            ValueError: the value is not of the tensor's shape and dtype.
        """
        if index in self._inside:
            self._values[index] = _Slot(_NOWHERE, 0, value)
            return
        if index in self.graph.linked and self._stays(index, value):
            return
        array = np.asarray(value)
        slot = self._targets.get(index)
        if slot is None or slot.cell.value != slot.address or slot.array.shape != array.shape:
            slot = self._target(index, array.shape)
        if slot.array.dtype != array.dtype:
            spec = self._specs[index]
            raise ValueError(f"tensor {index} {spec.name!r} wants {spec.dtype}, got {array.dtype}")
        slot.array[...] = array

    def _stays(self, index: int, value: Any) -> bool:
        """Keep a device's array there if the next reader may be a partition of ours.

        The interpreter asks for it (CopyFromBufferHandle) when somebody else is.
        """
        tensor, spec = self._tensors[index], self._specs[index]
        fits = tuple(value.shape) == spec.shape == shape_of(tensor) and value.dtype == spec.dtype
        if isinstance(value, np.ndarray) or not fits:
            self.graph.resident.pop(index, None)
            tensor.data_is_stale = False
            return False
        self.graph.resident[index] = value
        if tensor.buffer_handle == structures.NULL_HANDLE:
            tensor.buffer_handle = index
        tensor.data_is_stale = True
        return True

    def _target(self, index: int, shape: Shape) -> _Slot:
        """A writable array of this shape; shapes that depend on data are settled here."""
        tensor, spec = self._tensors[index], self._specs[index]
        if shape_of(tensor) != shape:
            if not spec.is_dynamic:
                wants = f"wants shape {list(spec.shape)}, got {list(shape)}"
                raise ValueError(f"tensor {index} {spec.name!r} {wants}")
            self._tensors.resize(index, shape)
        slot = _Slot(self._cell(index), tensor.data or 0, view(tensor))
        self._targets[index] = slot
        return slot

    def _cell(self, index: int) -> ctypes.c_size_t:
        address = self._tensors.base + index * ctypes.sizeof(Tensor) + _DATA_OFFSET
        return ctypes.c_size_t.from_address(address)

    def size_outputs(self, outputs: Iterable[int]) -> None:
        """Give the partition's outputs their shapes, so that the interpreter can plan memory."""
        for index in outputs:
            tensor, spec = self._tensors[index], self._specs[index]
            tensor.data_is_stale = False
            self.graph.resident.pop(index, None)
            if spec.is_dynamic:
                _make_dynamic(tensor)
            elif shape_of(tensor) != spec.shape or tensor.allocation_type == structures.DYNAMIC:
                self._tensors.resize(index, spec.shape)


def copy_resident(graph: Graph, address: int) -> None:
    """Write a value that stayed on the device into its tensor's memory.

    Args:
        graph: the tensor's.
        address: of the TfLiteTensor.
    """
    index = (address - graph.tensors.base) // ctypes.sizeof(Tensor)
    view(graph.tensors[index])[...] = np.asarray(graph.resident[index])


def _make_dynamic(tensor: Tensor) -> None:
    """As SetTensorToDynamic (kernels/kernel_util.cc): memory comes when the shape is known."""
    if tensor.allocation_type not in structures.ON_HEAP:
        tensor.data = None
    tensor.allocation_type = structures.DYNAMIC
