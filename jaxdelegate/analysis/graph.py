"""A planned subgraph, with what the rules of advice need to know about it."""

import dataclasses
import functools
from collections.abc import Iterable, Mapping

from jaxdelegate.analysis.survey import Survey
from jaxdelegate.costs import Cost, specs_bytes
from jaxdelegate.model.records import Model, Tensor
from jaxdelegate.plan import node_subsets
from jaxdelegate.plan.steps import PlannedOperator
from jaxdelegate.simple_delegate import Node


@dataclasses.dataclass(frozen=True, eq=False)
class Graph:
    model: Model
    survey: Survey
    costs: tuple[Cost, ...]
    in_floats: frozenset[int]  # quantized operators that run in floats: quant_mode="auto" on a CPU

    @property
    def index(self) -> int:
        return self.survey.subgraph.index

    @property
    def nodes(self) -> tuple[Node, ...]:
        return self.survey.nodes

    @functools.cached_property
    def partition_of(self) -> Mapping[int, int]:
        """Operator -> its partition; operators on the CPU are absent."""
        report = self.survey.report
        rows = report.nodes if report is not None else ()
        found = {row.index: row.partition for row in rows if row.partition is not None}
        replaced = self.survey.replaced.items()
        return found | {i: found[by] for i, by in replaced if by in found}

    @functools.cached_property
    def reasons(self) -> Mapping[int, str | None]:
        """Operator -> why it is not delegated."""
        report = self.survey.report
        found = {row.index: row.reason for row in report.nodes} if report is not None else {}
        unused = "nothing reads its result"
        return found | {i: found.get(by, unused) for i, by in self.survey.replaced.items()}

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
        return frozenset(self.survey.subgraph.outputs)

    def bytes_of(self, tensors: Iterable[int]) -> int | None:
        """The size of tensors at run time; None: it depends on data."""
        n = len(self.survey.subgraph.tensors)
        return specs_bytes(self.survey.specs[t] for t in set(tensors) if 0 <= t < n)

    def only_consumer(self, node: Node) -> Node | None:
        """The only reader of this operator's only output, if there is one."""
        outputs = [t for t in node.operator.outputs if t >= 0]
        if len(outputs) != 1 or outputs[0] in self.outputs:
            return None
        readers = self.consumers.get(outputs[0], ())
        return self.nodes[readers[0]] if len(readers) == 1 else None

    def n_partitions(self, delegated: Iterable[int]) -> int:
        """The number of partitions if exactly these operators were delegated."""
        steps = [PlannedOperator(node) for node in self.nodes]
        subsets = node_subsets.independent_subsets(steps, set(delegated))
        return sum(subset.is_delegated for subset in subsets)

    def kind(self, tensor: Tensor) -> str:
        """A tensor's role in this subgraph, as in `TensorAnalysis.kind`."""
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
