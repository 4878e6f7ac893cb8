"""A planned subgraph with the questions that advice asks of it."""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping

from jaxdelegate.analysis.survey import Survey
from jaxdelegate.measuring.costs import Cost, specs_bytes
from jaxdelegate.model.records import Model, Tensor
from jaxdelegate.op_lowering.spec import TensorSpec
from jaxdelegate.plan import node_subsets
from jaxdelegate.plan.steps import PlannedOperator
from jaxdelegate.simple_delegate import Node


@dataclasses.dataclass(frozen=True, eq=False)
class Graph:
    """One subgraph, as planned, and what its nodes cost."""

    model: Model
    survey: Survey
    cost: Callable[[Node], Cost]

    @property
    def index(self) -> int:
        """Of the subgraph."""
        return self.survey.subgraph.index

    @property
    def nodes(self) -> tuple[Node, ...]:
        """Its operators with their specs."""
        return self.survey.nodes

    @functools.cached_property
    def costs(self) -> tuple[Cost, ...]:
        """Of every node."""
        return tuple(self.cost(node) for node in self.nodes)

    @functools.cached_property
    def partition_of(self) -> Mapping[int, int]:
        """Operator -> its partition; those on the CPU are absent."""
        report = self.survey.report
        rows = report.nodes if report is not None else ()
        return {row.index: row.partition for row in rows if row.partition is not None}

    @functools.cached_property
    def reasons(self) -> Mapping[int, str | None]:
        """Operator -> why it is not delegated."""
        report = self.survey.report
        return {row.index: row.reason for row in report.nodes} if report is not None else {}

    @functools.cached_property
    def producer(self) -> Mapping[int, int]:
        """Tensor -> the operator that writes it."""
        return {t: node.index for node in self.nodes for t in node.operator.outputs if t >= 0}

    @functools.cached_property
    def consumers(self) -> Mapping[int, tuple[int, ...]]:
        """Tensor -> the operators that read it, in order."""
        found: dict[int, dict[int, None]] = {}
        for node in self.nodes:
            for tensor in node.operator.inputs:
                if tensor >= 0:
                    found.setdefault(tensor, {})[node.index] = None
        return {tensor: tuple(nodes) for tensor, nodes in found.items()}

    @functools.cached_property
    def outputs(self) -> frozenset[int]:
        """Tensors that leave the subgraph."""
        return frozenset(self.survey.subgraph.outputs)

    def spec(self, tensor: int) -> TensorSpec:
        """A tensor's spec with its current shape."""
        return self.survey.specs[tensor]

    def bytes_of(self, tensors: Iterable[int]) -> int | None:
        """What tensors take at run time; None: data decides."""
        n = len(self.survey.subgraph.tensors)
        return specs_bytes(self.survey.specs[t] for t in set(tensors) if 0 <= t < n)

    def only_consumer(self, node: Node) -> Node | None:
        """The operator that alone reads this one's only output."""
        outputs = [t for t in node.operator.outputs if t >= 0]
        if len(outputs) != 1 or outputs[0] in self.outputs:
            return None
        readers = self.consumers.get(outputs[0], ())
        return self.nodes[readers[0]] if len(readers) == 1 else None

    def n_partitions(self, delegated: Iterable[int]) -> int:
        """How many partitions there would be if just these operators were delegated."""
        steps = [PlannedOperator(node) for node in self.nodes]
        subsets = node_subsets.independent_subsets(steps, set(delegated))
        return sum(subset.is_delegated for subset in subsets)

    def kind(self, tensor: Tensor) -> str:
        """What a tensor is in this subgraph."""
        index = tensor.index
        if index in self.survey.subgraph.inputs:
            return "input"
        if tensor.is_variable:
            return "variable"
        if index in self.outputs:
            return "output"
        if not self.is_used(tensor):
            return "unused"
        return "constant" if tensor.stored is not None else "activation"

    def is_used(self, tensor: Tensor) -> bool:
        """Whether an operator, another tensor's quantization or the subgraph refers to it."""
        return tensor.index in self._used

    @functools.cached_property
    def _used(self) -> frozenset[int]:
        subgraph = self.survey.subgraph
        used = {*subgraph.inputs, *subgraph.outputs}
        for op in subgraph.operators:
            used |= {*op.inputs, *op.outputs, *op.intermediates}
        for tensor in subgraph.tensors:
            if tensor.quantization is not None and tensor.quantization.blockwise is not None:
                blockwise = tensor.quantization.blockwise
                used |= {blockwise.scales, blockwise.zero_points}
        return frozenset(used)
