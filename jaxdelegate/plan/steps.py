"""The steps of a plan: an operator on the host, or a partition of a delegate."""

import dataclasses
import functools
from collections.abc import Container, Iterable, Sequence

from jaxdelegate.op_lowering.dtypes import HANDLES
from jaxdelegate.op_lowering.spec import TensorSpec
from jaxdelegate.passes.batch_slices import BatchSlices
from jaxdelegate.reference.registry import KERNELS
from jaxdelegate.simple_delegate import DelegateParams, Node, SimpleDelegate


@dataclasses.dataclass(frozen=True)
class DelegatedNodes:
    """Nodes that another delegate already runs."""

    delegate: str
    nodes: tuple[Node, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class PlannedOperator:
    """An operator that stays on the host; a partition has the same properties."""

    node: Node

    @property
    def row(self) -> Node:
        """What the next delegate sees of it."""
        return self.node

    @functools.cached_property
    def reads(self) -> frozenset[int]:
        """The tensors that it reads."""
        return frozenset(i for i in self.node.operator.inputs if i >= 0)

    @functools.cached_property
    def writes(self) -> frozenset[int]:
        """The tensors that it writes, without variables."""
        return frozenset(i for i in self.node.operator.outputs if i >= 0)

    @property
    def results(self) -> frozenset[int]:
        """The tensors whose values it leaves to others: those inside a partition have none."""
        return self.writes

    @functools.cached_property
    def variables(self) -> frozenset[int]:
        """The variable tensors that it reads or updates."""
        pairs = zip(self.node.operator.inputs, self.node.inputs, strict=True)
        return frozenset(i for i, spec in pairs if spec is not None and spec.is_variable)

    @property
    def has_side_effect(self) -> bool:
        """Whether it must keep its place among steps with side effects."""
        specs = [spec for spec in (*self.node.inputs, *self.node.outputs) if spec is not None]
        kernel = KERNELS.get(self.node.name)
        calls = kernel is not None and kernel.calls
        return calls or not self.node.outputs or any(spec.dtype in HANDLES for spec in specs)


@dataclasses.dataclass(frozen=True, eq=False)
class PlannedPartition:
    """A partition, and the delegate that takes it."""

    params: DelegateParams
    delegate: SimpleDelegate

    @property
    def row(self) -> DelegatedNodes:
        return DelegatedNodes(self.delegate.name, self.params.nodes)

    @property
    def is_in_host_memory(self) -> bool:
        """Whether the tensors inside take memory of the host."""
        return self.delegate.is_in_host_memory and self.params.slices is None

    @functools.cached_property
    def _inside(self) -> tuple[PlannedOperator, ...]:
        return tuple(PlannedOperator(node) for node in self.params.nodes)

    @functools.cached_property
    def reads(self) -> frozenset[int]:
        return frozenset(self.params.inputs)

    @functools.cached_property
    def writes(self) -> frozenset[int]:
        return frozenset().union(*(step.writes for step in self._inside))

    @property
    def results(self) -> tuple[int, ...]:
        return self.params.outputs

    @functools.cached_property
    def variables(self) -> frozenset[int]:
        return frozenset().union(*(step.variables for step in self._inside))

    @property
    def has_side_effect(self) -> bool:
        return any(step.has_side_effect for step in self._inside)


PlannedStep = PlannedOperator | PlannedPartition


def partition_params(
    nodes: tuple[Node, ...],
    wanted: Container[int] | None,
    specs: Sequence[TensorSpec],
    slices: BatchSlices | None,
) -> DelegateParams:
    """What a kernel for these nodes replaces.

    `wanted` are the tensors that other steps read; None: all.
    """
    written = {i: None for node in nodes for i in node.operator.outputs if i >= 0}
    read = {i: None for node in nodes for i in node.operator.inputs if i >= 0}
    inputs = [i for i in read if i not in written and specs[i].const is None]
    outputs = [i for i in written if wanted is None or i in wanted]
    outputs = [i for i in outputs if specs[i].const is None]
    return DelegateParams(nodes, tuple(inputs), tuple(outputs), slices)


def last_reads(steps: Iterable[PlannedStep], kept: Container[int]) -> dict[int, list[int]]:
    """The tensors that no later step reads, by the position of the last step that does.

    Those in `kept` are never released.
    """
    last: dict[int, int] = {}
    for position, step in enumerate(steps):
        for index in (*step.reads, *step.results):
            if index not in kept:
                last[index] = position
    released: dict[int, list[int]] = {}
    for index, position in last.items():
        released.setdefault(position, []).append(index)
    return released
