"""Plans the subgraphs of a model for a delegate, without compiling or running anything."""

import dataclasses
import importlib
from collections.abc import Collection, Iterator, Mapping, Sequence

from jaxdelegate.analysis.graph import Graph
from jaxdelegate.errors import InterpreterError
from jaxdelegate.model.operator_tables import called_subgraphs
from jaxdelegate.model.records import Model, Operator, Subgraph
from jaxdelegate.op_lowering.spec import Specs, TensorSpec
from jaxdelegate.passes.limits import Limits
from jaxdelegate.passes.propagation import Subgraphs, declared_specs, gather
from jaxdelegate.plan.planner import Delegation, EntryPoint, plan
from jaxdelegate.plan.steps import PlannedOperator, PlannedPartition, partition_params
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
    """The graphs with the partitions of ai_edge_litert's interpreter, which forms its own.

    Raises:
        InterpreterError: the interpreter does not open the model.
    """
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
