"""Plans the subgraphs of a model for a delegate, without compiling or running anything.

A `Graph` is a planned subgraph: its operators with their specs, where they run, and what they cost.
"""

import dataclasses
import functools
import importlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from jaxdelegate.analysis.records import Finding
from jaxdelegate.costs import Cost, specs_bytes
from jaxdelegate.errors import InterpreterError
from jaxdelegate.model.operator_tables import called_subgraphs
from jaxdelegate.model.records import Model, Operator, Subgraph, Tensor
from jaxdelegate.op_lowering.spec import Specs, TensorSpec
from jaxdelegate.passes.limits import Limits
from jaxdelegate.passes.propagation import Subgraphs, declared_specs, gather
from jaxdelegate.plan import node_subsets
from jaxdelegate.plan.planner import Delegation, EntryPoint, plan
from jaxdelegate.plan.steps import PlannedOperator, PlannedPartition, partition_params
from jaxdelegate.report.delegation import DelegationReport
from jaxdelegate.simple_delegate import (
    DelegateContext,
    DelegateParams,
    Node,
    SimpleDelegate,
    SimpleDelegateKernel,
    TransferCost,
)

# Operators that pass their inputs to subgraphs; reductions, which pass scalars, are left out.
_PASSING = frozenset(
    ("CALL", "CALL_ONCE", "IF", "STABLEHLO_CASE", "STABLEHLO_COMPOSITE", "STABLEHLO_WHILE", "WHILE")
)


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
        outputs = [t for t in node.operator.outputs if t >= 0]
        if len(outputs) != 1 or outputs[0] in self.subgraph.outputs:
            return None
        readers = self.consumers.get(outputs[0], ())
        return self.nodes[readers[0]] if len(readers) == 1 else None

    def n_partitions(self, delegated: Iterable[int]) -> int:
        steps = [PlannedOperator(node) for node in self.nodes]
        subsets = node_subsets.independent_subsets(steps, set(delegated))
        return sum(subset.is_delegated for subset in subsets)

    def kind(self, tensor: Tensor) -> str:
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


def planned_graphs(model: Model, delegate: SimpleDelegate | None) -> tuple[Graph, ...]:
    """Plan every subgraph of a model, called ones with the shapes that their callers pass.

    The delegate never sees the plan; None: nothing is delegated. Transfers cost nothing: whether a
    partition gains depends on the interpreter that opens the model.
    """
    planner = _Planner(delegate, TransferCost())
    graphs: dict[int, Graph] = {}
    arguments: dict[int, Specs] = {}
    for index in _callers_first(model):
        graphs[index] = _planned(model, index, planner, arguments.get(index) or ())
        for node in graphs[index].nodes:
            for callee, specs in _passed(model, node):
                arguments.setdefault(callee, specs)
    return tuple(graphs[i] for i in range(len(model.subgraphs)))


def in_stock_interpreter(
    graphs: Sequence[Graph], delegate: SimpleDelegate | None
) -> tuple[Graph, ...]:
    """The graphs with ai_edge_litert's partitions; an InterpreterError if it refuses the model."""
    stock = importlib.import_module("ai_edge_litert.interpreter")
    planner = _Planner(delegate, TransferCost() if delegate is None else delegate.transfer_cost)
    content = bytes(graphs[0].model.content)
    try:
        stock.Interpreter(model_content=content, experimental_delegates=[planner])
    except (RuntimeError, ValueError) as error:
        raise InterpreterError(f"the stock interpreter does not open the model: {error}") from error
    return tuple(planner.applied_to(graph) for graph in graphs)


class _Planner(SimpleDelegate):
    """Gives a delegate's reasons to an interpreter and keeps the report from the delegate."""

    def __init__(self, delegate: SimpleDelegate | None, transfer_cost: TransferCost) -> None:
        super().__init__()
        self._delegate = delegate
        self.name = "no" if delegate is None else delegate.name
        self.device_name = "" if delegate is None else delegate.device_name
        self.transfer_cost = transfer_cost
        if delegate is not None:
            self.options = delegate.options

    def initialize(self, context: DelegateContext) -> None:
        if self._delegate is not None:
            self._delegate.initialize(context)

    def is_node_supported(self, node: Node) -> bool:
        return self.why_not(node) is None

    def why_not(self, node: Node) -> str | None:
        return "there is no delegate" if self._delegate is None else self._delegate.why_not(node)

    def create_kernel(self) -> SimpleDelegateKernel:
        return _NeverRun()

    def applied_to(self, graph: Graph) -> Graph:
        """The graph with the partitions that the stock interpreter has formed."""
        report = self._reports.get(graph.index)
        if report is None or graph.problem is not None:
            return graph
        nodes = tuple(_node(graph.model, op, graph.specs) for op in graph.subgraph.operators)
        members: dict[int, list[Node]] = {}
        for row in report.delegated:
            members.setdefault(row.partition or 0, []).append(nodes[row.index])
        partitions = [_params(graph, nodes, members[number]) for number in sorted(members)]
        return dataclasses.replace(
            graph, nodes=nodes, report=report, partitions=tuple(partitions), replaced={}
        )


class _NeverRun(SimpleDelegateKernel):
    def init(self, context: DelegateContext, params: DelegateParams) -> None:
        """Do nothing: the interpreter only forms partitions."""

    def prepare(self, context: DelegateContext, node: DelegateParams) -> None:
        raise NotImplementedError("a plan is not run")

    def eval(self, context: DelegateContext, node: DelegateParams) -> None:
        raise NotImplementedError("a plan is not run")


def _params(graph: Graph, nodes: Sequence[Node], inside: Sequence[Node]) -> DelegateParams:
    within = {node.index for node in inside}
    read = {i for node in nodes if node.index not in within for i in node.operator.inputs}
    specs = [graph.specs[i] for i in range(len(graph.tensors))]
    return partition_params(tuple(inside), read | {*graph.subgraph.outputs}, specs, None)


def _callers_first(model: Model) -> Iterator[int]:
    """All subgraphs, callers first as far as possible; the main one is the first."""
    seen: set[int] = set()
    waiting = list(range(len(model.subgraphs)))
    while waiting:
        index = waiting.pop(0)
        if index in seen:
            continue
        seen.add(index)
        yield index
        operators = model.subgraphs[index].operators
        waiting[:0] = [i for op in operators for _, i in called_subgraphs(op.options)]


def _passed(model: Model, node: Node) -> Iterator[tuple[int, Specs]]:
    """The specs that an operator passes to the subgraphs that it calls: its last inputs."""
    if node.name not in _PASSING:
        return
    for _, callee in called_subgraphs(node.operator.options):
        wanted = len(model.subgraphs[callee].inputs)
        if wanted <= len(node.inputs):
            yield callee, node.inputs[len(node.inputs) - wanted :]


def _planned(model: Model, index: int, planner: _Planner, arguments: Specs) -> Graph:
    subgraph = model.subgraphs[index]
    entry = EntryPoint(subgraph, Subgraphs(model.subgraphs), Limits())
    known = zip(subgraph.inputs, arguments, strict=False)
    shapes = {tensor: spec.shape for tensor, spec in known if spec and not spec.is_dynamic}
    try:
        planned = plan(entry, {**entry.declared_shapes, **shapes}, Delegation((planner,)))
    except InterpreterError as error:
        specs = dict(enumerate(declared_specs(subgraph)))
        declared = tuple(_node(model, op, specs) for op in subgraph.operators)
        return Graph(model, subgraph, declared, specs, None, partitions=(), problem=str(error))
    partitions = [s.params for s in planned.steps if isinstance(s, PlannedPartition)]
    staying = [s.node for s in planned.steps if isinstance(s, PlannedOperator)]
    nodes = {n.index: n for n in (*staying, *(n for p in partitions for n in p.nodes))}
    in_file = entry.nodes(planned.specs, as_in_file=True)
    return Graph(
        model=model,
        subgraph=subgraph,
        nodes=tuple(nodes.get(node.index, node) for node in in_file),
        specs=dict(enumerate(planned.specs[: len(subgraph.tensors)])),
        report=planner.report(index),
        partitions=tuple(partitions),
        replaced=_replaced(subgraph, nodes.keys()),
    )


def _replaced(subgraph: Subgraph, planned: Collection[int]) -> dict[int, int]:
    """Each operator that is not planned -> the planned one that reads its result, or itself."""
    readers: dict[int, int] = {}  # tensor -> the planned operator that it is for
    replaced = {}
    for operator in reversed(subgraph.operators):
        by = operator.index
        if by not in planned:
            by = next((readers[t] for t in operator.outputs if t in readers), by)
            replaced[operator.index] = by
        readers.update((t, by) for t in operator.inputs if t >= 0)
    return replaced


def _node(model: Model, operator: Operator, specs: Mapping[int, TensorSpec]) -> Node:
    inputs, outputs = gather(specs, operator.inputs), gather(specs, operator.outputs)
    return Node(operator, inputs, outputs, subgraphs=model.subgraphs)
