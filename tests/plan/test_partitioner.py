"""What a delegate takes of a graph, by its options and its transfer cost, and the report of it."""

from collections.abc import Collection
from typing import Any

import pytest

from jaxdelegate.plan.planner import Delegation, plan
from jaxdelegate.plan.steps import PlannedPartition
from jaxdelegate.simple_delegate import SimpleDelegateOptions, TransferCost
from tests.plan.test_planner import Takes, entry, names

ALL = ("ADD", "EXP", "NEG")


def partitions(delegate: Takes) -> list[list[str]]:
    graph = entry()
    planned = plan(graph, graph.declared_shapes, Delegation((delegate,)))
    steps = zip(planned.steps, names(planned), strict=True)
    return [inside for step, inside in steps if isinstance(step, PlannedPartition)]


@pytest.mark.parametrize(
    ("taken", "options", "expected"),
    [
        (ALL, {}, [["ADD", "EXP", "NEG"]]),
        (("ADD", "NEG"), {}, [["ADD"], ["NEG"]]),
        (("ADD", "NEG"), {"max_delegated_partitions": 1}, [["ADD"]]),
        (("ADD", "EXP"), {"min_nodes_per_partition": 3}, []),
        (ALL, {"first_delegate_node_index": 1}, [["EXP", "NEG"]]),
        (ALL, {"last_delegate_node_index": 0}, [["ADD"]]),
    ],
    ids=str,
)
def test_options(taken: Collection[str], options: dict[str, Any], expected: list[Any]) -> None:
    delegate = Takes(taken, options=SimpleDelegateOptions(**options))
    assert partitions(delegate) == expected
    report = delegate.report()
    assert [row.index for row in report.nodes] == [0, 1, 2]
    assert sum(row.delegated for row in report.nodes) == sum(map(len, expected))
    assert all(row.reason for row in report.left)


def test_a_small_partition_is_not_worth_its_transfer() -> None:
    cost = TransferCost(call=1.0)  # a second
    delegate = Takes(("ADD", "EXP"), transfer_cost=cost)
    assert partitions(delegate) == []
    reasons = [row.reason or "" for row in delegate.report().nodes]
    assert all("gains too little" in reason for reason in reasons[:2])
    assert reasons[2] == "not supported by SimpleDelegate"


@pytest.mark.parametrize(
    ("taken", "options"),
    [
        (ALL, {}),  # the whole graph
        (("ADD", "EXP"), {"min_gain": 0.0}),
        (("ADD", "EXP"), {"last_delegate_node_index": 1}),  # the user selected them
    ],
    ids=str,
)
def test_partitions_that_need_not_gain(taken: Collection[str], options: dict[str, Any]) -> None:
    options_of = SimpleDelegateOptions(**options)
    delegate = Takes(taken, options=options_of, transfer_cost=TransferCost(call=1.0))
    assert partitions(delegate) == [[*taken]]
