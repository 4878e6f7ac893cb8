"""A stock interpreter's subgraph: its nodes, and its tensors' specs for the current shapes."""

import ctypes
import dataclasses
from collections.abc import Hashable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

import numpy as np

from jaxdelegate.errors import InterpreterError
from jaxdelegate.litert import structures
from jaxdelegate.litert.nodes import CALL_ONCE, PlanRow
from jaxdelegate.litert.structures import Context, Tensor
from jaxdelegate.litert.tensors import is_viewable, shape_of, signature_of, spec_of
from jaxdelegate.model.operator_tables import called_subgraphs
from jaxdelegate.model.records import Operator
from jaxdelegate.model.tensor_tables import with_block_values
from jaxdelegate.op_lowering.dtypes import HANDLES
from jaxdelegate.op_lowering.spec import Shape, TensorSpec
from jaxdelegate.passes.propagation import gather, propagate, unfolded
from jaxdelegate.plan import batches
from jaxdelegate.plan.node_subsets import Subset, independent_subsets
from jaxdelegate.plan.steps import DelegatedNodes
from jaxdelegate.reference.registry import KERNELS
from jaxdelegate.simple_delegate import Node

Specs = Sequence[TensorSpec]

_READ = "READ_VARIABLE"
_VARIABLES = frozenset(("VAR_HANDLE", _READ, "ASSIGN_VARIABLE"))
_OURS = "jaxdelegate.Interpreter can delegate it"
_LIKELY_SIZE = 256  # of a free dimension of images and sequences; networks halve it a few times


class TensorTable:
    """The TfLiteTensors of a subgraph. The interpreter may move them between our calls."""

    def __init__(self, address: int) -> None:
        """`address` is the TfLiteContext's."""
        self.address = address
        self._context = Context.from_address(address)

    def __len__(self) -> int:
        return int(self._context.tensors_size)

    @property
    def base(self) -> int:
        return int(self._context.tensors)

    def __getitem__(self, index: int) -> Tensor:
        """The tensor in the interpreter's memory, not a copy; do not keep it."""
        if not 0 <= index < len(self):
            raise IndexError(f"tensor {index} of {len(self)}")
        return Tensor.from_address(self.base + index * ctypes.sizeof(Tensor))

    def resize(self, index: int, shape: Shape) -> None:
        """Change a tensor's shape; the interpreter reallocates its memory later."""
        size = structures.allocated_int_array(shape)
        tensor = ctypes.addressof(self[index])
        if self._context.ResizeTensor(self.address, tensor, size) != structures.OK:
            raise InterpreterError(f"tensor {index} cannot be resized to {list(shape)}")


def _with_block_values(specs: Specs) -> list[TensorSpec]:
    """Fill in the scales and zero points of blockwise quantization, which are tensors too."""
    return [
        spec
        if spec.quantization is None
        else dataclasses.replace(
            spec, quantization=with_block_values(spec.quantization, lambda i: specs[i].const)
        )
        for spec in specs
    ]


class Graph:
    """One subgraph, for as long as our kernels run in it.

    The operators are read once, the shapes at every `update`. The reference kernels compute shapes
    from those of the graph's inputs, whatever the file declares. Where they cannot (operators that
    call subgraphs, unknown custom operators, refused inputs), the interpreter's shapes are used.

    Interpreters apply delegates before the user can resize the inputs, and before anything is
    assigned to variables. Until a partition is prepared, shapes are assumed: see `_assume_shapes`.
    """

    def __init__(
        self, tensors: TensorTable, rows: Sequence[PlanRow], unreadable: dict[int, str], index: int
    ) -> None:
        """Read the specs of all tensors; the rows are `PlanReader`'s."""
        self.tensors, self.rows, self.index = tensors, rows, index
        self._unreadable = unreadable
        self.operators = [op for row in rows for op in row.operators]
        self.declared = _with_block_values(
            [unfolded(spec_of(tensors[i])) for i in range(len(tensors))]
        )
        self._written = {i for op in self.operators for i in op.outputs}
        self._used = sorted(
            {i for op in self.operators for i in (*op.inputs, *op.outputs) if i >= 0}
        )
        self._refused: dict[int, str] = {}
        self._sources: tuple[int, ...] = ()
        self._shapes: tuple[Shape, ...] | None = None
        # Tensors that one of our partitions passes to another, and their values on the device.
        self.linked: AbstractSet[int] = frozenset()
        self.resident: dict[int, Any] = {}
        self.specs: Specs = ()
        self.update()
        self._assume_shapes()

    # ---- shapes

    def update(self) -> None:
        """Propagate the current shapes of the interpreter's tensors."""
        if self._shapes is not None and self._source_shapes() == self._shapes:
            return
        base = [self._current(i) for i in range(len(self.declared))]
        self.specs, self._refused = propagated(self.operators, base)
        # Only the interpreter knows the shapes that propagation did not compute.
        self._sources = tuple(
            i for i in self._used if self.specs[i] is base[i] and base[i].const is None
        )
        self._shapes = self._source_shapes()

    def _assume_shapes(self) -> None:
        """Assume shapes that are known at run time only, unless operators refuse those.

        Free dimensions get likely sizes; what is read from a variable gets the shape in the file.
        """
        base = [self._current(i) for i in range(len(self.declared))]
        read = {
            i
            for op in self.operators
            for i in op.outputs
            if op.name == _READ and -1 not in signature_of(self.tensors[i])
        }
        free = [i for i in self._sources if i not in self._written and not base[i].is_variable]
        sizes = {i: _likely(base[i].shape, signature_of(self.tensors[i])) for i in free}
        assumed = {} if self.index > 0 else sizes
        if not read and all(base[i].shape == shape for i, shape in assumed.items()):
            return
        for i, shape in {**assumed, **{i: base[i].shape for i in read}}.items():
            base[i] = dataclasses.replace(base[i], shape=shape, is_dynamic=False)
        others = [op for op in self.operators if read.isdisjoint(op.outputs)]
        specs, refused = propagated(others, base)
        if len(refused) <= len(self._refused):
            self.specs, self._refused = specs, refused
            self._shapes = None  # the next `update` reads them again

    def shapes(self) -> Hashable:
        """The shapes that determine all others."""
        return self._sources, self._shapes

    def _source_shapes(self) -> tuple[Shape, ...]:
        return tuple(shape_of(self.tensors[i]) for i in self._sources)

    def _current(self, index: int) -> TensorSpec:
        spec = self.declared[index]
        if spec.const is not None:
            return spec
        tensor = self.tensors[index]
        shape, is_written = shape_of(tensor), index in self._written
        # An input without elements can be treated as a constant.
        is_empty = 0 in shape and not is_written and not spec.is_variable
        return dataclasses.replace(
            spec,
            shape=shape,
            is_dynamic=is_written and tensor.allocation_type == structures.DYNAMIC,
            const=np.empty(shape, spec.dtype) if is_empty else None,
        )

    def specs_for(
        self, operators: Sequence[Operator], inputs: Iterable[int]
    ) -> tuple[Specs, Hashable]:
        """Specs for a partition whose inputs are computed, and the shapes that determine them.

        The interpreter then knows shapes that depend on data.
        """
        self.update()
        others: dict[int, Shape] = {}
        for i in inputs:
            spec, shape = self.specs[i], shape_of(self.tensors[i])
            if spec.const is None and (spec.is_dynamic or spec.shape != shape):
                others[i] = shape
        if not others:
            return self.specs, self.shapes()
        known = list(self.specs)
        for i, shape in others.items():
            known[i] = dataclasses.replace(known[i], shape=shape, is_dynamic=False)
        specs, _ = propagated(operators, known)
        return specs, (self.shapes(), tuple(sorted(others.items())))

    def link(self, subsets: Sequence[Subset]) -> None:
        """Let partitions pass values without host memory; `subsets` are positions of `rows`.

        Not if the interpreter forms more partitions than the graph needs: it does so to expose
        every tensor to the user (experimental_preserve_all_tensors).
        """
        chosen = {i for subset in subsets for i in subset.items}
        fewest = independent_subsets([_Row.of(row, self.specs) for row in self.rows], chosen)
        if len(subsets) > sum(subset.is_delegated for subset in fewest):
            return
        written, read = set[int](), set[int]()
        for subset in subsets:
            rows = [_Row.of(self.rows[i], self.specs) for i in subset.items]
            own = {i for row in rows for i in row.writes}
            written |= own
            read |= {i for row in rows for i in row.reads} - own
        self.linked = frozenset(written & read)

    # ---- nodes

    def plan(self) -> list[Node | DelegatedNodes]:
        """The execution plan, as the partitioner reads it."""
        rows: list[Node | DelegatedNodes] = []
        for row in self.rows:
            nodes = self.nodes(row.operators, self.specs)
            rows.append(nodes[0] if row.delegate is None else DelegatedNodes(row.delegate, nodes))
        return rows

    def nodes(self, operators: Iterable[Operator], specs: Specs) -> tuple[Node, ...]:
        return tuple(
            Node(
                operator,
                gather(specs, operator.inputs),
                gather(specs, operator.outputs),
                gather(specs, operator.intermediates),
            )
            for operator in operators
        )

    def refused(self) -> dict[int, str]:
        """The rows of the plan that no delegate can run, with reasons by position."""
        reasons = {}
        for position, row in enumerate(self.rows):
            if row.delegate is None and (reason := self._why_not(row.operators[0])) is not None:
                reasons[position] = reason
        return reasons

    def refusal(self, operators: Iterable[Operator]) -> str | None:
        """What the first operator that refuses the current shapes says, and what helps."""
        said = next((self._refused[o.index] for o in operators if o.index in self._refused), None)
        if said is None:
            return None
        inputs = [i for i in self._sources if i not in self._written]
        shapes = {i: shape_of(self.tensors[i]) for i in inputs}
        return said + batches.remedy({i: self.declared[i] for i in inputs}, shapes)

    def _why_not(self, operator: Operator) -> str | None:
        unknown = self._unreadable.get(operator.index) or self._refused.get(operator.index)
        if operator.name == CALL_ONCE:
            return "initialization runs once, on the host"
        if called_subgraphs(operator.options):  # first: such an operator refuses its shapes, too
            return f"stock interpreters do not expose the inputs of called subgraphs; {_OURS}"
        return unknown or self._why_inaccessible(operator)

    def _why_inaccessible(self, operator: Operator) -> str | None:
        """The reason if the operator needs data that only the interpreter can access."""
        kernel = KERNELS.get(operator.name)
        if kernel is not None and kernel.initial_state is not None:
            return f"the stock interpreter keeps the state of its random generator; {_OURS}"
        used = [i for i in (*operator.inputs, *operator.outputs) if i >= 0]
        if operator.name in _VARIABLES:
            return f"the stock interpreter keeps variables, and shares only their values; {_OURS}"
        if any(self.specs[i].dtype in HANDLES for i in used):
            return "the stock interpreter does not expose which resource its handle refers to"
        if not all(is_viewable(self.tensors[i]) for i in operator.outputs if i >= 0):
            return "the stock interpreter has no array for its outputs: strings or packed integers"
        return None


@dataclasses.dataclass(frozen=True)
class _Row:
    reads: frozenset[int]
    writes: frozenset[int]
    variables: frozenset[int]
    has_side_effect: bool = False

    @classmethod
    def of(cls, row: PlanRow, specs: Specs) -> "_Row":
        writes = frozenset(i for op in row.operators for i in op.outputs if i >= 0)
        read = frozenset(i for op in row.operators for i in op.inputs if i >= 0) - writes
        variables = frozenset(i for i in read if specs[i].is_variable)
        reads = frozenset(i for i in read - variables if specs[i].const is None)
        return cls(reads, writes, variables)


def _likely(shape: Shape, signature: Shape) -> Shape:
    """The shape with likely sizes for free dimensions, except the batch, that are not resized."""
    if len(signature) != len(shape):
        return shape
    return tuple(
        _LIKELY_SIZE if axis > 0 and size == 1 and declared < 0 else size
        for axis, (size, declared) in enumerate(zip(shape, signature, strict=True))
    )


def propagated(operators: Sequence[Operator], specs: Specs) -> tuple[Specs, dict[int, str]]:
    """Specs after propagation, and the errors of operators that refuse their inputs, by index.

    The outputs of operators that refuse keep their specs.
    """
    try:
        return propagate(operators, specs), {}
    except InterpreterError:
        pass
    refused: dict[int, str] = {}
    for operator in operators:
        try:
            specs = propagate([operator], specs)
        except InterpreterError as error:
            refused[operator.index] = str(error)
    return specs, refused
