"""What the stock interpreter lets a delegate take of a model: it forms the partitions itself."""

import dataclasses
import importlib
from collections.abc import Mapping, Sequence

from jaxdelegate.analysis.survey import ReasonsOnly, Survey, node_of
from jaxdelegate.errors import InterpreterError
from jaxdelegate.model.records import Model
from jaxdelegate.plan.steps import partition_params
from jaxdelegate.report.delegation import DelegationReport
from jaxdelegate.simple_delegate import (
    DelegateContext,
    DelegateParams,
    Node,
    SimpleDelegate,
    SimpleDelegateKernel,
)


def in_stock_interpreter(
    model: Model, surveys: Sequence[Survey], delegate: SimpleDelegate | None
) -> tuple[Survey, ...]:
    """The surveys with the partitions of ai_edge_litert's interpreter; nothing is compiled.

    Raises:
        InterpreterError: the interpreter does not open the model.
    """
    stock = importlib.import_module("ai_edge_litert.interpreter")
    planner = _Planner(delegate)
    try:
        stock.Interpreter(model_content=bytes(model.content), experimental_delegates=[planner])
    except (RuntimeError, ValueError) as error:
        raise InterpreterError(f"the stock interpreter does not open the model: {error}") from error
    return tuple(_replaced(model, one, planner.reports) for one in surveys)


class _Planner(ReasonsOnly):
    """Applied to an interpreter whose tensors are never allocated."""

    def __init__(self, delegate: SimpleDelegate | None) -> None:
        super().__init__(delegate)
        if delegate is not None:
            self.transfer_cost = delegate.transfer_cost

    @property
    def reports(self) -> Mapping[int, DelegationReport]:
        return self._reports

    def create_kernel(self) -> SimpleDelegateKernel:
        return _NeverRun()


class _NeverRun(SimpleDelegateKernel):
    def init(self, context: DelegateContext, params: DelegateParams) -> None:
        """Do nothing: the interpreter only forms partitions."""

    def prepare(self, context: DelegateContext, node: DelegateParams) -> None:
        raise NotImplementedError("a plan is not run")

    def eval(self, context: DelegateContext, node: DelegateParams) -> None:
        raise NotImplementedError("a plan is not run")


def _replaced(model: Model, own: Survey, reports: Mapping[int, DelegationReport]) -> Survey:
    report = reports.get(own.subgraph.index)
    if report is None or own.problem is not None:
        return own
    nodes = tuple(node_of(model, op, own.specs) for op in own.subgraph.operators)
    members: dict[int, list[Node]] = {}
    for row in report.delegated:
        members.setdefault(row.partition or 0, []).append(nodes[row.index])
    partitions = [_params(members[number], nodes, own) for number in sorted(members)]
    return dataclasses.replace(
        own, nodes=nodes, report=report, partitions=tuple(partitions), replaced={}
    )


def _params(inside: Sequence[Node], nodes: Sequence[Node], own: Survey) -> DelegateParams:
    within = {node.index for node in inside}
    read = {i for node in nodes if node.index not in within for i in node.operator.inputs}
    specs = [own.specs[i] for i in range(len(own.subgraph.tensors))]
    return partition_params(tuple(inside), read | {*own.subgraph.outputs}, specs, None)
