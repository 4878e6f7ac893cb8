"""Which operators go together: TFLite's graph partitioning, on whatever reads and writes tensors.

The algorithm is that of graph_info.cc (PartitionGraphIntoIndependentNodeSubsets) and of
delegates/utils.cc (GraphPartitionHelper).
"""

import dataclasses
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
        """Whether its order among its like must be kept."""
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

    Raises:
        ValueError: some item waits for a tensor that nothing makes, or control edges form a cycle.
    """
    pending = {tensor for item in items for tensor in item.writes}
    edges = control_edges(items)
    blocked = Counter(after for _, after in edges)
    followers: dict[int, list[int]] = {}
    for before, after in edges:
        followers.setdefault(before, []).append(after)
    left = list(range(len(items)))
    subsets = []
    while left:
        taken: dict[int, None] = {}
        kind: bool | None = None
        progress = True
        while progress:
            progress = False
            for i in left:
                ready = not blocked[i] and pending.isdisjoint(items[i].reads)
                if i in taken or not ready or (kind is not None and kind != (i in chosen)):
                    continue
                kind, progress = i in chosen, True
                taken[i] = None
                pending.difference_update(items[i].writes)
                for follower in followers.get(i, ()):
                    blocked[follower] -= 1
            left = [i for i in left if i not in taken]
        if not taken:
            raise ValueError(f"items {left} wait for tensors that nothing writes")
        subsets.append(Subset(bool(kind), tuple(taken)))
    return subsets


def largest(subsets: Iterable[Subset], *, most: int, min_nodes: int) -> set[int]:
    """The items of the `most` largest delegated subsets (0: all) of at least `min_nodes` items."""
    ordered = sorted((s for s in subsets if s.is_delegated), key=lambda s: -len(s.items))
    kept = ordered[: most or None]
    return {i for s in kept if len(s.items) >= min_nodes for i in s.items}
