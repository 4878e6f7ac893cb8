import dataclasses
import itertools

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jaxdelegate.plan.node_subsets import Subset, control_edges, independent_subsets, largest


@dataclasses.dataclass(frozen=True)
class Item:
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    has_side_effect: bool = False
    variables: tuple[int, ...] = ()


def chain(n: int) -> list[Item]:
    return [Item((i,), (i + 1,)) for i in range(n)]


def test_everything_chosen_is_one_subset() -> None:
    assert independent_subsets(chain(4), {0, 1, 2, 3}) == [Subset(True, (0, 1, 2, 3))]


def test_an_item_left_behind_splits_a_chain() -> None:
    subsets = independent_subsets(chain(5), {0, 1, 3, 4})
    assert subsets == [Subset(True, (0, 1)), Subset(False, (2,)), Subset(True, (3, 4))]


def test_a_parallel_branch_does_not_split() -> None:
    # 0 -> 1 -> 3 and 0 -> 2 -> 3, where 2 stays: 1 goes with 0 although 2 stands between them.
    items = [Item((0,), (1,)), Item((1,), (3,)), Item((1,), (2,)), Item((2, 3), (4,))]
    subsets = independent_subsets(items, {0, 1, 3})
    assert subsets == [Subset(True, (0, 1)), Subset(False, (2,)), Subset(True, (3,))]


def test_side_effects_keep_their_order() -> None:
    items = [Item((0,), (1,), True), Item((0,), (2,), True), Item((0,), (3,), True)]
    assert control_edges(items) == {(0, 1), (1, 2)}
    subsets = independent_subsets(items, {0, 2})
    assert [s.items for s in subsets] == [(0,), (1,), (2,)]


def test_users_of_a_variable_keep_their_order() -> None:
    items = [Item((0,), (1,), variables=(9,)), Item((0,), (2,), variables=(9,)), Item((0,), (3,))]
    assert control_edges(items) == {(0, 1)}
    assert [s.items for s in independent_subsets(items, {0})] == [(0,), (1, 2)]


@pytest.mark.parametrize("chosen", [set(), {0}, {1}, {2}, {0, 2}])
def test_a_reader_comes_before_an_item_that_sets_its_tensor_later(chosen: set[int]) -> None:
    items = [Item((2,), (1,)), Item((1,), (2,)), Item((2, 3), (3,))]
    order = [i for subset in independent_subsets(items, chosen) for i in subset.items]
    assert order == [0, 1, 2]


def test_largest_counts_and_minimum() -> None:
    subsets = [
        Subset(True, (0,)),
        Subset(False, (1,)),
        Subset(True, (2, 3, 4)),
        Subset(True, (6, 7)),
    ]
    assert largest(subsets, most=0, min_nodes=0) == {0, 2, 3, 4, 6, 7}
    assert largest(subsets, most=1, min_nodes=0) == {2, 3, 4}
    assert largest(subsets, most=0, min_nodes=2) == {2, 3, 4, 6, 7}
    assert largest(subsets, most=3, min_nodes=9) == set()


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[Item], set[int]]:
    n = draw(st.integers(1, 24))
    items = []
    for i in range(n):
        reads = draw(st.sets(st.integers(0, i), max_size=3))
        items.append(
            Item(
                tuple(reads),
                (i + 1,),
                draw(st.booleans()),
                tuple(draw(st.sets(st.integers(50, 52), max_size=1))),
            )
        )
    return items, draw(st.sets(st.integers(0, n - 1)))


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # on a busy machine
@given(graphs())
def test_any_graph_comes_out_whole_and_in_a_runnable_order(
    graph: tuple[list[Item], set[int]],
) -> None:
    items, chosen = graph
    subsets = independent_subsets(items, chosen)
    order = [i for subset in subsets for i in subset.items]
    assert sorted(order) == list(range(len(items)))
    assert all((i in chosen) == subset.is_delegated for subset in subsets for i in subset.items)
    assert all(a.is_delegated != b.is_delegated for a, b in itertools.pairwise(subsets))
    ready = {0}
    for i in order:
        assert set(items[i].reads) <= ready
        ready |= set(items[i].writes)
    position = {i: k for k, i in enumerate(order)}
    assert all(position[a] < position[b] for a, b in control_edges(items))


def test_many_subsets_take_no_quadratic_time() -> None:
    n = 50_000  # quadratic: most of an hour
    subsets = independent_subsets(chain(n), set(range(0, n, 2)))
    assert [subset.items for subset in subsets] == [(i,) for i in range(n)]
