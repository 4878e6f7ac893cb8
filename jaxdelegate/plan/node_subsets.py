"""TFLite's graph partitioning, for anything that reads and writes tensors.

The algorithm is that of graph_info.cc (PartitionGraphIntoIndependentNodeSubsets) and of
delegates/utils.cc (GraphPartitionHelper).
"""

import dataclasses
import heapq
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from collections.abc import Set as AbstractSet
from typing import Protocol


class Item(Protocol):
    """One step of a plan: an operator, or a partition that some delegate already took."""

    @property
    def reads(self) -> Collection[int]:
        """Tensors that must be ready before it runs."""
        ...

    @property
    def writes(self) -> Collection[int]:
        """Tensors that it makes ready."""
        ...

    @property
    def has_side_effect(self) -> bool:
        """Whether its order among items with side effects must be kept."""
        ...

    @property
    def variables(self) -> Collection[int]:
        """Variable tensors that it reads or updates."""
        ...


@dataclasses.dataclass(frozen=True)
class Subset:
    """Items of one kind that can run one after the other; `items` are positions in the plan."""

    is_delegated: bool
    items: tuple[int, ...]


def control_edges(items: Sequence[Item]) -> set[tuple[int, int]]:
    """Orders that no tensor shows: side effects in program order, and users of one variable."""
    edges: set[tuple[int, int]] = set()
    last_effect: int | None = None
    last_user: dict[int, int] = {}
    for i, item in enumerate(items):
        if item.has_side_effect:
            if last_effect is not None:
                edges.add((last_effect, i))
            last_effect = i
        for variable in item.variables:
            if variable in last_user:
                edges.add((last_user[variable], i))
            last_user[variable] = i
    return edges


def independent_subsets(items: Sequence[Item], chosen: AbstractSet[int]) -> list[Subset]:
    """Split a plan into alternating subsets of chosen and other items, in an order that can run.

    Each subset greedily takes every item of its kind whose inputs earlier subsets (or itself) have
    made ready, so that few subsets come out.

    Args:
        items: in an order that can run: what an item reads of a later one's it reads before that.
        chosen: positions.
    """
    waiting, followers = _dependencies(items)
    ready = {
        kind: [i for i in waiting if not waiting[i] and (i in chosen) == kind]
        for kind in (True, False)
    }
    subsets = []
    while any(ready.values()):
        kind = min((heap[0], kind) for kind, heap in ready.items() if heap)[1]
        taken: list[int] = []
        # What an item makes ready before itself waits for the next pass through the plan.
        this_pass, next_pass = ready[kind], list[int]()
        while this_pass:
            item = heapq.heappop(this_pass)
            taken.append(item)
            for follower in followers.pop(item, ()):
                waiting[follower] -= 1
                if waiting[follower]:
                    continue
                if (follower in chosen) != kind:
                    heapq.heappush(ready[not kind], follower)
                else:
                    heapq.heappush(this_pass if follower > item else next_pass, follower)
            if not this_pass:
                this_pass, next_pass = next_pass, []
        ready[kind] = []
        subsets.append(Subset(kind, tuple(taken)))
    return subsets


def _dependencies(items: Sequence[Item]) -> tuple[dict[int, int], dict[int, list[int]]]:
    """How many others each item waits for, and who waits for each: by position."""
    writers: dict[int, int] = {}
    for i, item in enumerate(items):
        for tensor in item.writes:
            writers.setdefault(tensor, i)
    edges = control_edges(items)
    for i, item in enumerate(items):
        others = (writers[tensor] for tensor in item.reads if tensor in writers)
        # A variable's reader comes before an operator that sets it later: no edge leads back.
        edges.update((min(i, other), max(i, other)) for other in others if other != i)
    followers: dict[int, list[int]] = {}
    for before, after in edges:
        followers.setdefault(before, []).append(after)
    count = Counter(after for _, after in edges)
    return {i: count[i] for i in range(len(items))}, followers


def largest(subsets: Iterable[Subset], *, most: int, min_nodes: int) -> set[int]:
    """The items of the `most` largest delegated subsets (0: all) of at least `min_nodes` items."""
    ordered = sorted((s for s in subsets if s.is_delegated), key=lambda s: -len(s.items))
    kept = ordered[: most or None]
    return {i for s in kept if len(s.items) >= min_nodes for i in s.items}
