"""A plan is a value: specs and steps from a subgraph and its input shapes, without a runner."""

from collections.abc import Collection
from typing import Any

import numpy as np
import pytest

import jaxdelegate as jd
from jaxdelegate.errors import InterpreterError
from jaxdelegate.model.records import read_model
from jaxdelegate.passes.limits import Limits
from jaxdelegate.passes.propagation import Subgraphs
from jaxdelegate.plan.planner import Delegation, EntryPoint, Plan, plan
from jaxdelegate.plan.steps import PlannedOperator, PlannedPartition
from jaxdelegate.plan.whole import WholePlans
from jaxdelegate.simple_delegate import Node, SimpleDelegate, SimpleDelegateKernel
from jaxdelegate.testing import ModelBuilder


class Takes(SimpleDelegate):
    """A delegate of some operators, whose kernels nothing creates."""

    def __init__(self, names: Collection[str], **attributes: Any) -> None:
        super().__init__()
        self._names = names
        self.__dict__.update(attributes)

    def is_node_supported(self, node: Node) -> bool:
        return node.name in self._names

    def create_kernel(self) -> SimpleDelegateKernel:
        raise AssertionError("a plan needs no kernel")


def entry(shape: tuple[int, ...] = (2, 3)) -> EntryPoint:
    """y = -exp(x + 1)."""
    builder = ModelBuilder()
    tensor = builder.input(shape, np.float32, "x")
    for name, more in (("ADD", [builder.constant(np.float32(1))]), ("EXP", []), ("NEG", [])):
        following = builder.tensor(shape)
        builder.operator(name, [tensor, *more], [following])
        tensor = following
    builder.outputs(tensor)
    model = read_model(builder.build())
    return EntryPoint(model.subgraphs[0], Subgraphs(model.subgraphs), Limits())


def names(planned: Plan) -> list[list[str]]:
    """The operators of each step; a partition's in one list."""
    return [
        [n.name for n in (step.params.nodes if isinstance(step, PlannedPartition) else [step.node])]
        for step in planned.steps
    ]


def test_operators_are_steps_of_their_own_without_a_delegate() -> None:
    graph = entry()
    planned = plan(graph, graph.declared_shapes, Delegation())
    assert all(isinstance(step, PlannedOperator) for step in planned.steps)
    assert names(planned) == [["ADD"], ["EXP"], ["NEG"]]


def test_a_delegate_takes_what_it_supports() -> None:
    graph, delegate = entry(), Takes(("ADD", "EXP"))
    planned = plan(graph, graph.declared_shapes, Delegation((delegate,)))
    assert names(planned) == [["ADD", "EXP"], ["NEG"]]
    partition = planned.steps[0]
    assert isinstance(partition, PlannedPartition)
    assert partition.params.inputs == graph.subgraph.inputs
    assert len(partition.params.outputs) == 1  # the sum is read inside alone
    assert [row.index for row in delegate.report().left] == [2]


def test_all_tensors_can_stay_readable() -> None:
    graph = entry()
    delegation = Delegation((Takes(("ADD", "EXP", "NEG")),), preserve_all_tensors=True)
    (partition,) = plan(graph, graph.declared_shapes, delegation).steps
    assert isinstance(partition, PlannedPartition)
    assert len(partition.params.outputs) == 3


def test_a_second_delegate_chooses_among_the_rest() -> None:
    graph = entry()
    first, second = Takes(("EXP",)), Takes(("ADD", "EXP", "NEG"))
    planned = plan(graph, graph.declared_shapes, Delegation((first, second)))
    assert names(planned) == [["ADD"], ["EXP"], ["NEG"]]
    owners = [s.delegate for s in planned.steps if isinstance(s, PlannedPartition)]
    assert owners == [second, first, second]
    assert second.report().nodes[1].reason == "taken by SimpleDelegate"


def test_a_node_that_must_stay_is_not_asked_about() -> None:
    graph, delegate = entry(), Takes(("ADD", "EXP", "NEG"))
    delegation = Delegation((delegate,), why_not=lambda n: "stays" if n.name == "EXP" else None)
    planned = plan(graph, graph.declared_shapes, delegation)
    assert names(planned) == [["ADD"], ["EXP"], ["NEG"]]
    assert delegate.report().nodes[1].reason == "stays"


def test_the_current_shapes_decide() -> None:
    graph = entry()
    (tensor,) = graph.subgraph.inputs
    planned = plan(graph, {tensor: (5, 3)}, Delegation())
    assert planned.specs[graph.subgraph.outputs[0]].shape == (5, 3)


@pytest.mark.parametrize("is_function", [False, True])
def test_a_refused_batch_names_the_remedy(is_function: bool) -> None:
    builder = ModelBuilder()
    x, y = builder.input((1, 3), np.float32, "x"), builder.tensor((1, 6))
    builder.operator("RESHAPE", [x, builder.constant(np.array([1, 3], np.int32))], [y])
    builder.outputs(y)
    model = read_model(builder.build())
    graph = EntryPoint(model.subgraphs[0], Subgraphs(model.subgraphs), Limits())
    delegation = Delegation(may_rebatch=True, is_function=is_function)
    with pytest.raises(InterpreterError, match="to run a batch on a model that fixes 1"):
        plan(graph, {x: (2, 3)}, delegation)


def test_a_function_has_the_plan_of_the_whole_graph() -> None:
    graph = entry()
    whole = WholePlans(graph, graph.subgraph.inputs, graph.subgraph.outputs, 1).plan(((4, 3),))
    assert [node.name for node in whole.nodes] == ["ADD", "EXP", "NEG"]
    assert whole.specs[whole.outputs[0]].shape == (4, 3)
    assert whole.refused(lambda n: n.name if n.name == "EXP" else None) == [(whole.nodes[1], "EXP")]


def test_an_operator_that_xla_cannot_run_is_named() -> None:
    graph = entry()
    plans = WholePlans(graph, graph.subgraph.inputs, graph.subgraph.outputs, 1)
    with pytest.raises(jd.DelegationError, match="#1 EXP: not here"):
        plans.all_taken(((2, 3),), lambda n: "not here" if n.name == "EXP" else None, on_cpu=True)
