"""Where the page draws a subgraph's operators and edges."""

import itertools
from collections.abc import Callable

import pytest

from jaxdelegate.analysis.analyzer import analyze_model
from jaxdelegate.analysis.layout import INPUTS, NODE_HEIGHT, NODE_WIDTH, OUTPUTS, Layout, layout
from jaxdelegate.testing.builder import ModelBuilder

Chain = Callable[..., bytes]


def boxes(drawn: Layout) -> dict[int, tuple[float, float]]:
    return {box.node: (box.x, box.y) for box in drawn.boxes}


def test_a_chain_is_a_column(chain: Chain) -> None:
    drawn = layout(analyze_model(chain("RELU", "RELU")).subgraphs[0])
    at = boxes(drawn)
    assert [node for node, _ in sorted(at.items(), key=lambda item: item[1][1])] == [
        INPUTS,
        0,
        1,
        OUTPUTS,
    ]
    assert {x for x, _ in at.values()} == {NODE_WIDTH / 2}
    assert drawn.width == NODE_WIDTH
    assert [(e.source, e.target, e.tensor) for e in drawn.edges] == [
        (INPUTS, 0, 0),
        (0, 1, 1),
        (1, OUTPUTS, 2),
    ]


@pytest.mark.parametrize("length", [5, 60])
def test_nodes_do_not_overlap_and_are_on_the_page(
    tower: Callable[[int], bytes], length: int
) -> None:
    drawn = layout(analyze_model(tower(length)).subgraphs[0])
    at = boxes(drawn)
    assert len(at) == length + 2
    places = sorted(at.values(), key=lambda place: (place[1], place[0]))
    for (x1, y1), (x2, y2) in itertools.pairwise(places):
        assert y1 != y2 or x2 - x1 >= NODE_WIDTH
    assert all(NODE_WIDTH / 2 - 0.1 <= x <= drawn.width - NODE_WIDTH / 2 + 0.1 for x, _ in places)
    assert all(0 <= y - NODE_HEIGHT / 2 <= drawn.height - NODE_HEIGHT for _, y in places)
    for edge in drawn.edges:
        assert (edge.points[0], edge.points[-1]) == (at[edge.source], at[edge.target])
        assert [y for _, y in edge.points] == sorted(y for _, y in edge.points)


def test_skips_run_next_to_the_nodes(tower: Callable[[int], bytes]) -> None:
    drawn = layout(analyze_model(tower(5)).subgraphs[0])
    at = boxes(drawn)
    (skip,) = (edge for edge in drawn.edges if len(edge.points) > 2)
    for x, y in skip.points[1:-1]:
        assert all(abs(x - bx) > NODE_WIDTH / 2 for bx, by in at.values() if by == y)


def test_what_prepares_weights_is_next_to_the_chain(
    half_weights: Callable[[int], bytes],
) -> None:
    drawn = layout(analyze_model(half_weights(30)).subgraphs[0])
    at = boxes(drawn)
    chain = [at[node][0] for node in (INPUTS, *range(1, 60, 2), OUTPUTS)]
    assert max(chain) - min(chain) < NODE_WIDTH / 2
    assert drawn.width < 3 * NODE_WIDTH


def test_without_operators_there_are_inputs_and_outputs() -> None:
    builder = ModelBuilder()
    builder.outputs(builder.input((3,)))
    drawn = layout(analyze_model(builder.build()).subgraphs[0])
    assert [box.node for box in drawn.boxes] == [INPUTS, OUTPUTS]


def test_branches_are_beside_each_other_and_their_sum_is_below_the_first() -> None:
    builder = ModelBuilder()
    x = builder.input((1, 4))
    ends = [builder.tensor((1, 4)) for _ in range(3)]
    for end in ends:
        builder.operator("RELU", [x], [end])
    y = builder.tensor((1, 4))
    builder.operator("ADD_N", ends, [y])
    builder.outputs(y)
    at = boxes(layout(analyze_model(builder.build()).subgraphs[0]))
    assert len({at[branch][1] for branch in range(3)}) == 1
    assert sorted(at[branch][0] for branch in range(3)) == [at[2][0], at[0][0], at[1][0]]
    assert at[INPUTS][0] == at[0][0] == at[3][0] == at[OUTPUTS][0]


def test_edges_over_the_same_rows_have_their_own_lanes() -> None:
    builder = ModelBuilder()
    tensors = [builder.input((1, 4))]
    for _ in range(4):
        tensors.append(builder.tensor((1, 4)))
        builder.operator("RELU", [tensors[-2]], [tensors[-1]])
    y = builder.tensor((1, 4))
    builder.operator("ADD_N", [tensors[4], tensors[1], tensors[0]], [y])
    builder.outputs(y)
    edges = layout(analyze_model(builder.build()).subgraphs[0]).edges
    inner, outer = sorted((e for e in edges if len(e.points) > 2), key=lambda e: -e.source)
    assert (inner.source, outer.source) == (0, INPUTS)
    (inner_lane,), (outer_lane,) = ({x for x, _ in e.points[1:-1]} for e in (inner, outer))
    assert inner_lane != outer_lane
