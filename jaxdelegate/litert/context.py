"""A kernel's view of a stock interpreter: a DelegateContext on TfLiteContext's memory."""

import ctypes
import threading
import weakref
from collections.abc import Hashable, Iterable, Mapping, MutableMapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxdelegate.cache.constants import ConstantDigests
from jaxdelegate.cache.key import Key
from jaxdelegate.cache.partition_key import model_part, operators_part
from jaxdelegate.litert import structures
from jaxdelegate.litert.graph import Graph, Specs, TensorTable
from jaxdelegate.litert.structures import Context, Tensor
from jaxdelegate.litert.tensors import is_viewable, shape_of, value, view
from jaxdelegate.op_lowering.spec import Shape, TensorSpec
from jaxdelegate.passes.limits import Limits
from jaxdelegate.reference.kernel import Services
from jaxdelegate.simple_delegate import GraphKey, Node

_DATA_OFFSET = Tensor.data.offset
_TENSORS_OFFSET = Context.tensors.offset


class _CachedArray(NamedTuple):
    """An array for a tensor, valid while `cell`, the tensor's data pointer, holds `address`."""

    cell: ctypes.c_size_t
    address: int
    array: np.ndarray | Any


_NO_TENSOR = ctypes.c_size_t(0)  # the cell of values that are not in a tensor's memory


class _NoServices:
    """The services of reference kernels; stock interpreters offer none."""

    def __init__(self) -> None:
        self.resources: MutableMapping[Any, Any] = {}
        self.paths: MutableMapping[Any, bytes] = {}

    def __call__(self, subgraph: int, *arrays: np.ndarray) -> tuple[np.ndarray, ...]:
        raise LookupError(f"subgraph {subgraph} with {len(arrays)} inputs cannot be run here")


_NO_SERVICES = _NoServices()


class _Content:
    """All open graphs of equal operators and constants, because a graph does not name its file."""


_LOCK = threading.Lock()
_CONTENTS: MutableMapping[str, _Content] = weakref.WeakValueDictionary()


def _graph_key(graph: Graph, shared: MutableMapping[Any, Any]) -> GraphKey:
    """The key of a graph; `shared` keeps it as long as the interpreter lives."""
    known = shared.get(GraphKey)
    if known is None:
        constants = shared.setdefault(ConstantDigests, ConstantDigests())
        known = shared[GraphKey] = GraphKey(_content(graph, constants), graph.index)
    key: GraphKey = known
    return key


def _content(graph: Graph, constants: ConstantDigests) -> _Content:
    try:
        digest = _digest(graph, constants)
    except TypeError:  # options of a custom operator, of a type that no digest covers
        return _Content()
    with _LOCK:
        return _CONTENTS.setdefault(digest, _Content())


def _digest(graph: Graph, constants: ConstantDigests) -> str:
    specs = dict(enumerate(graph.declared))
    held: Mapping[int, Any] = {i: s.const for i, s in specs.items() if s.const is not None}
    nodes = graph.nodes(graph.operators, graph.declared)
    parts = {"partition": operators_part(nodes, specs), **model_part(constants.of(held))}
    return Key(parts).digest


class PartitionContext:
    """The view of one partition's graph; while planning, of the whole graph.

    Values are read from, and written to, the interpreter's memory. Arrays on it are cached: reading
    a tensor compares one pointer. Tensors that exist only inside the partition have no memory;
    their values are stored here.
    """

    preserve_all_tensors = False  # the interpreter requests such tensors as outputs

    def __init__(self, graph: Graph, shared: MutableMapping[Any, Any]) -> None:
        """`shared` lives as long as the interpreter."""
        self.graph, self.shared = graph, shared
        self._tensors: TensorTable = graph.tensors
        self._base = 0
        self._base_cell = ctypes.c_size_t.from_address(graph.tensors.address + _TENSORS_OFFSET)
        self._intermediate: frozenset[int] = frozenset()
        self._values: dict[int, _CachedArray] = {}
        self._targets: dict[int, _CachedArray] = {}
        self._specs: Specs = graph.specs
        self._shapes: Hashable = graph.shapes()

    # ---- specs

    @property
    def graph_key(self) -> GraphKey:
        """Equal for graphs of equal operators and constants."""
        return _graph_key(self.graph, self.shared)

    def nodes(self) -> Sequence[Node]:
        return [row for row in self.graph.plan() if isinstance(row, Node)]

    def shapes(self) -> Hashable:
        return self._shapes

    def spec(self, index: int) -> TensorSpec:
        return self._specs[index]

    def update(self, specs: Specs, shapes: Hashable, intermediate: Iterable[int]) -> None:
        """Replace the specs; `intermediate` are the tensors that exist only in this partition."""
        self._specs, self._shapes = specs, shapes
        self._intermediate = frozenset(intermediate)
        self.forget()

    def forget(self) -> None:
        self._values.clear()
        self._targets.clear()

    @property
    def services(self) -> Services:
        """Operators that call subgraphs or use resources are not delegated."""
        return _NO_SERVICES

    # ---- values

    def check_room(self, specs: Iterable[tuple[int, TensorSpec]]) -> None:
        """Refuse tensors of shapes that depend on data if one is too large."""
        Limits().check_sizes(specs)

    def start_run(self) -> None:
        base = self._base_cell.value
        if base != self._base:
            self._base = base
            self.forget()

    def value(self, index: int) -> Any:
        """An array on the interpreter's memory, or what a kernel assigned."""
        if index in self.graph.resident:
            return self.graph.resident[index]
        cached = self._values.get(index)
        if cached is not None and cached.cell.value == cached.address:
            return cached.array
        return self._read(index)

    def array(self, index: int) -> np.ndarray:
        """A tensor's value in host memory; do not write to it."""
        return np.asarray(self.value(index))

    def _read(self, index: int) -> np.ndarray:
        const = self._specs[index].const
        if const is not None:
            self._values[index] = _CachedArray(_NO_TENSOR, 0, const)
            return const
        if index in self._intermediate:
            raise LookupError(f"tensor {index} {self._specs[index].name!r} holds no data yet")
        tensor = self._tensors[index]
        if tensor.bytes and not tensor.data:
            raise LookupError(f"tensor {index} {self._specs[index].name!r} holds no data yet")
        if not is_viewable(tensor):
            return value(tensor)
        array = view(tensor)
        array.flags.writeable = False
        self._values[index] = _CachedArray(self._cell(index), tensor.data or 0, array)
        return array

    def assign(self, index: int, value: Any) -> None:
        """Set a tensor, after waiting for a value that a device still computes."""
        if index in self._intermediate:
            self._values[index] = _CachedArray(_NO_TENSOR, 0, value)
            return
        if index in self.graph.linked and self._stays_on_device(index, value):
            return
        array = np.asarray(value)
        target = self._targets.get(index)
        if (
            target is None
            or target.cell.value != target.address
            or target.array.shape != array.shape
        ):
            target = self._target(index, array.shape)
        if target.array.dtype != array.dtype:
            spec = self._specs[index]
            raise ValueError(
                f"tensor {index} {spec.name!r}: expected {spec.dtype}, got {array.dtype}"
            )
        target.array[...] = array

    def _stays_on_device(self, index: int, value: Any) -> bool:
        """Keep an array on its device, because one of our partitions reads the tensor.

        The interpreter requests a copy (CopyFromBufferHandle) for any other reader.
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

    def _target(self, index: int, shape: Shape) -> _CachedArray:
        """A writable array; resizes a tensor whose shape depends on data."""
        tensor, spec = self._tensors[index], self._specs[index]
        if shape_of(tensor) != shape:
            if not spec.is_dynamic:
                shapes = f"expected the shape {list(spec.shape)}, got {list(shape)}"
                raise ValueError(f"tensor {index} {spec.name!r}: {shapes}")
            self._tensors.resize(index, shape)
        target = _CachedArray(self._cell(index), tensor.data or 0, view(tensor))
        self._targets[index] = target
        return target

    def _cell(self, index: int) -> ctypes.c_size_t:
        address = self._tensors.base + index * ctypes.sizeof(Tensor) + _DATA_OFFSET
        return ctypes.c_size_t.from_address(address)

    def size_outputs(self, outputs: Iterable[int]) -> None:
        """Resize the partition's outputs, so that the interpreter can plan memory."""
        for index in outputs:
            tensor, spec = self._tensors[index], self._specs[index]
            tensor.data_is_stale = False
            self.graph.resident.pop(index, None)
            if spec.is_dynamic:
                _make_dynamic(tensor)
            elif shape_of(tensor) != spec.shape or tensor.allocation_type == structures.DYNAMIC:
                self._tensors.resize(index, spec.shape)


def copy_resident(graph: Graph, address: int) -> None:
    """Copy a value from the device to the memory of the TfLiteTensor at `address`."""
    index = (address - graph.tensors.base) // ctypes.sizeof(Tensor)
    view(graph.tensors[index])[...] = np.asarray(graph.resident[index])


def _make_dynamic(tensor: Tensor) -> None:
    """Do what SetTensorToDynamic does (kernels/kernel_util.cc): memory is allocated later."""
    if tensor.allocation_type not in structures.ON_HEAP:
        tensor.data = None
    tensor.allocation_type = structures.DYNAMIC
