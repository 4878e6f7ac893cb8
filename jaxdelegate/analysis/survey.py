"""Plans of a model's subgraphs for a delegate, without compiling."""

import dataclasses
from collections.abc import Collection, Iterator, Mapping

import numpy as np

from jaxdelegate.errors import InterpreterError
from jaxdelegate.model.operator_tables import called_subgraphs
from jaxdelegate.model.records import Model, Operator, Subgraph
from jaxdelegate.op_lowering.spec import Specs, TensorSpec
from jaxdelegate.passes.limits import Limits
from jaxdelegate.passes.propagation import Subgraphs, declared_specs, gather
from jaxdelegate.plan.planner import Delegation, EntryPoint, plan
from jaxdelegate.plan.steps import PlannedOperator, PlannedPartition
from jaxdelegate.report.delegation import DelegationReport
from jaxdelegate.simple_delegate import (
    DelegateContext,
    DelegateParams,
    Node,
    SimpleDelegate,
    SimpleDelegateKernel,
)

# Operators that pass their inputs to subgraphs; reductions, which pass scalars, are left out.
_PASSING = frozenset(
    ("CALL", "CALL_ONCE", "IF", "STABLEHLO_CASE", "STABLEHLO_COMPOSITE", "STABLEHLO_WHILE", "WHILE")
)


@dataclasses.dataclass(frozen=True)
class Survey:
    subgraph: Subgraph
    # Its operators with propagated specs, or declared ones if planning failed.
    nodes: tuple[Node, ...]
    specs: Mapping[int, TensorSpec]  # of its tensors, likewise
    report: DelegationReport | None  # where every operator runs; None: planning failed
    partitions: tuple[DelegateParams, ...]
    problem: str | None = None  # why the subgraph cannot be planned with its declared shapes
    # Operators that a rewritten list update left without work -> the one that does it instead.
    replaced: Mapping[int, int] = dataclasses.field(default_factory=dict)


def survey(model: Model, delegate: SimpleDelegate | None) -> tuple[Survey, ...]:
    """Plan every subgraph of a model, called ones with the shapes that their callers pass.

    The delegate never sees the plan; None: nothing is delegated.
    """
    planned_for = ReasonsOnly(delegate)
    found: dict[int, Survey] = {}
    arguments: dict[int, Specs] = {}
    for index in _callers_first(model):
        found[index] = _surveyed(model, index, planned_for, arguments.get(index))
        for node in found[index].nodes:
            for callee, given in _passed(model, node):
                arguments.setdefault(callee, given)
    return tuple(found[i] for i in range(len(model.subgraphs)))


class ReasonsOnly(SimpleDelegate):
    """Wraps a delegate, which only gives reasons and gets no report.

    Its transfers cost nothing: whether a partition gains depends on the interpreter that opens the
    model.
    """

    def __init__(self, delegate: SimpleDelegate | None) -> None:
        super().__init__()
        self._delegate = delegate
        self.name = "no" if delegate is None else delegate.name
        self.device_name = "" if delegate is None else delegate.device_name
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
        raise NotImplementedError("a plan is not run")


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


def _surveyed(model: Model, index: int, delegate: ReasonsOnly, given: Specs | None) -> Survey:
    subgraph = model.subgraphs[index]
    entry = EntryPoint(subgraph, Subgraphs(model.subgraphs), Limits())
    known = zip(subgraph.inputs, given or (), strict=False)
    shapes = {tensor: spec.shape for tensor, spec in known if spec and not spec.is_dynamic}
    try:
        planned = plan(entry, {**entry.declared_shapes, **shapes}, Delegation((delegate,)))
    except InterpreterError as error:
        return _as_declared(model, subgraph, str(error))
    partitions = [s.params for s in planned.steps if isinstance(s, PlannedPartition)]
    staying = [s.node for s in planned.steps if isinstance(s, PlannedOperator)]
    nodes = {n.index: n for n in (*staying, *(n for p in partitions for n in p.nodes))}
    in_file = entry.nodes(planned.specs, as_in_file=True)
    return Survey(
        subgraph=subgraph,
        nodes=tuple(nodes.get(node.index, node) for node in in_file),
        specs=dict(enumerate(planned.specs[: len(subgraph.tensors)])),
        report=delegate.report(index),
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


def _as_declared(model: Model, subgraph: Subgraph, problem: str) -> Survey:
    specs = dict(enumerate(declared_specs(subgraph)))
    nodes = tuple(node_of(model, op, specs) for op in subgraph.operators)
    return Survey(subgraph, nodes, specs, None, (), problem)


def node_of(model: Model, operator: Operator, specs: Mapping[int, TensorSpec]) -> Node:
    """An operator of a model with the specs of its tensors."""
    return Node(
        operator,
        gather(specs, operator.inputs),
        gather(specs, operator.outputs),
        subgraphs=model.subgraphs,
    )


def is_quantized(model: Model) -> bool:
    """Whether any tensor has integers with a scale."""
    return any(
        tensor.quantization is not None
        and tensor.quantization.scale.size > 0
        and np.dtype(tensor.dtype).kind in "iuV"
        for subgraph in model.subgraphs
        for tensor in subgraph.tensors
    )
