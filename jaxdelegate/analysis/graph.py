"""A planned subgraph: its operators with their specs, where they run, and what they cost."""

import dataclasses
import functools
from collections.abc import Iterable, Mapping

from jaxdelegate.analysis.records import Finding
from jaxdelegate.costs import Cost, specs_bytes
from jaxdelegate.model.records import Model, Subgraph, Tensor
from jaxdelegate.op_lowering.spec import TensorSpec
from jaxdelegate.plan import node_subsets
from jaxdelegate.plan.steps import PlannedOperator
from jaxdelegate.report.delegation import DelegationReport
from jaxdelegate.simple_delegate import DelegateParams, Node


@dataclasses.dataclass(frozen=True, eq=False)
class Graph:
    model: Model
    subgraph: Subgraph
    # Its operators with propagated specs, or declared ones if planning failed.
    nodes: tuple[Node, ...]
    specs: Mapping[int, TensorSpec]  # by tensor, likewise
    report: DelegationReport | None  # where every operator runs; None: planning failed
    partitions: tuple[DelegateParams, ...]
    problem: str | None = None  # why the subgraph cannot be planned with its declared shapes
    # Operators that a rewritten list update left without work -> the one that does it instead.
    replaced: Mapping[int, int] = dataclasses.field(default_factory=dict)
    costs: tuple[Cost, ...] = ()  # by operator
    in_floats: frozenset[int] = frozenset()  # quantized, but run in floats: quant_mode="auto"

    @property
    def index(self) -> int:
        return self.subgraph.index

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return self.subgraph.tensors

    def names(self, operators: Iterable[int]) -> str:
        """The different names of some of its operators."""
        return ", ".join(sorted({self.nodes[i].name for i in operators}))

    def finding(
        self,
        kind: str,
        operators: Iterable[int],
        message: str,
        remedy: str,
        /,
        **numbers: float,
    ) -> Finding:
        """Advice on some of its operators."""
        return Finding(kind, self.index, tuple(operators), message, remedy, numbers)

    @functools.cached_property
    def partition_of(self) -> Mapping[int, int]:
        """Operator -> its partition; operators on the CPU are absent."""
        rows = self.report.delegated if self.report is not None else ()
        numbers = {row.index: row.partition or 0 for row in rows}
        return numbers | {i: numbers[by] for i, by in self.replaced.items() if by in numbers}

    @functools.cached_property
    def reasons(self) -> Mapping[int, str | None]:
        """Operator -> why it is not delegated."""
        rows = self.report.nodes if self.report is not None else ()
        reasons = {row.index: row.reason for row in rows}
        unused = "nothing reads its result"
        return reasons | {i: reasons.get(by, unused) for i, by in self.replaced.items()}

    @functools.cached_property
    def producer(self) -> Mapping[int, int]:
        """Tensor -> the operator that writes it."""
        return {t: node.index for node in self.nodes for t in node.operator.outputs if t >= 0}

    @functools.cached_property
    def consumers(self) -> Mapping[int, tuple[int, ...]]:
        """Tensor -> the operators that read it, in order."""
        readers: dict[int, dict[int, None]] = {}
        for node in self.nodes:
            for tensor in node.operator.inputs:
                if tensor >= 0:
                    readers.setdefault(tensor, {})[node.index] = None
        return {tensor: tuple(nodes) for tensor, nodes in readers.items()}

    def bytes_of(self, tensors: Iterable[int]) -> int | None:
        """The size of tensors at run time; None: it depends on data."""
        n = len(self.tensors)
        return specs_bytes(self.specs[t] for t in set(tensors) if 0 <= t < n)

    def only_consumer(self, node: Node) -> Node | None:
        """The only reader of this operator's only output, if there is one."""
        outputs = [t for t in node.operator.outputs if t >= 0]
        if len(outputs) != 1 or outputs[0] in self.subgraph.outputs:
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
        if tensor.index in self.subgraph.inputs:
            return "input"
        if tensor.is_variable:
            return "variable"
        if tensor.index in self.subgraph.outputs:
            return "output"
        if tensor.index not in self.used:
            return "unused"
        return "constant" if tensor.stored is not None else "activation"

    @functools.cached_property
    def used(self) -> frozenset[int]:
        """Tensors to which an operator, another one's quantization or the subgraph refers."""
        used = {*self.subgraph.inputs, *self.subgraph.outputs}
        for op in self.subgraph.operators:
            used |= {*op.inputs, *op.outputs, *op.intermediates}
        for tensor in self.tensors:
            if tensor.quantization is not None and tensor.quantization.blockwise is not None:
                blockwise = tensor.quantization.blockwise
                used |= {blockwise.scales, blockwise.zero_points}
        return frozenset(used)
