"""Positions of a subgraph's operators on the page: a grid of rows and lanes.

An operator is in the row below the last of its sources, and in the lane of the first one, or else
next to the others of its row. Operators that only prepare weights are next to their reader, and
edges that skip rows run next to the operators there, so that the path from the inputs is straight.
"""

import itertools
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from jaxdelegate.analysis.records import SubgraphAnalysis

NODE_WIDTH, NODE_HEIGHT = 220.0, 44.0
_LANE_GAP, _ROW_GAP = 22.0, 34.0
_EDGE_WIDTH = 10.0  # the width of a lane without nodes
_MAX_SKIPPED = 20_000  # rows; with more, all edges are straight

INPUTS, OUTPUTS = -1, -2  # the boxes of the subgraph's own inputs and outputs


class Box(NamedTuple):
    """A node on the page: an operator's index, INPUTS or OUTPUTS, and its center."""

    node: int
    x: float
    y: float


class Edge(NamedTuple):
    """A tensor drawn from one node to another through these points."""

    source: int
    target: int
    tensor: int
    points: tuple[tuple[float, float], ...]


class Layout(NamedTuple):
    """A drawing; all coordinates are within [0, width] and [0, height]."""

    boxes: tuple[Box, ...]
    edges: tuple[Edge, ...]
    width: float
    height: float


class _Link(NamedTuple):
    source: int
    target: int
    tensor: int


_Neighbors = Mapping[int, Sequence[int]]


def layout(subgraph: SubgraphAnalysis) -> Layout:
    """Constants are not drawn."""
    links = _links(subgraph)
    order = [INPUTS, *(op.index for op in subgraph.operators), OUTPUTS]
    grid = _Grid(order, links)
    x, width = grid.columns()

    def at(row: int, lane: int) -> tuple[float, float]:
        return x[lane], row * (NODE_HEIGHT + _ROW_GAP) + NODE_HEIGHT / 2

    return Layout(
        boxes=tuple(Box(node, *at(grid.row[node], grid.lane[node])) for node in order),
        edges=tuple(
            Edge(*link, points=tuple(itertools.starmap(at, grid.path(link)))) for link in links
        ),
        width=width,
        height=(max(grid.row.values()) + 1) * (NODE_HEIGHT + _ROW_GAP) - _ROW_GAP,
    )


def _links(subgraph: SubgraphAnalysis) -> list[_Link]:
    producer = dict.fromkeys(subgraph.inputs, INPUTS)
    links = []
    for op in subgraph.operators:
        links += [_Link(producer[t], op.index, t) for t in op.inputs if t in producer]
        producer |= {tensor: op.index for tensor in op.outputs if tensor >= 0}
    links += [_Link(producer[t], OUTPUTS, t) for t in subgraph.outputs if t in producer]
    return list(dict.fromkeys(links))


class _Grid:
    """The rows and lanes of nodes, and the lanes of edges that skip rows."""

    def __init__(self, order: Sequence[int], links: Sequence[_Link]) -> None:
        self._taken: set[tuple[int, int]] = set()
        self._ends: dict[int, tuple[int, int]] = {}  # row -> its first and last lane in use
        above = _grouped((link.target, link.source) for link in links)
        below = _grouped((link.source, link.target) for link in links)
        trunk = _reached(order, above) | {OUTPUTS}
        self.row = _rows(order, above, below, trunk)
        self.lane: dict[int, int] = {}
        self._place([node for node in order if node in trunk], above)
        self._place([node for node in reversed(order) if node not in trunk], below)
        self._skips = self._skip_lanes(links)

    def path(self, link: _Link) -> Iterator[tuple[int, int]]:
        """The rows and lanes that an edge goes through."""
        first, last = self.row[link.source], self.row[link.target]
        yield first, self.lane[link.source]
        lane = self._skips.get((link.source, link.tensor))
        if lane is not None:
            yield from ((row, lane) for row in sorted({first + 1, last - 1}) if first < row < last)
        yield last, self.lane[link.target]

    def columns(self) -> tuple[dict[int, float], float]:
        """The center of each lane, and the width of all."""
        wide, x, right = {*self.lane.values()}, {}, 0.0
        for lane in sorted({*wide, *self._skips.values()}):
            width = NODE_WIDTH if lane in wide else _EDGE_WIDTH
            x[lane] = right + width / 2
            right += width + _LANE_GAP
        return x, right - _LANE_GAP

    def _place(self, nodes: Iterable[int], neighbors: _Neighbors) -> None:
        """Place nodes in the lane of their first neighbor that has one, or close to it."""
        for node in nodes:
            lanes = (self.lane[n] for n in neighbors.get(node, ()) if n in self.lane)
            self.lane[node] = self._take([self.row[node]], next(lanes, 0))

    def _skip_lanes(self, links: Iterable[_Link]) -> dict[tuple[int, int], int]:
        """The lane of each tensor's edges between distant rows, by source and tensor."""
        skipped: dict[tuple[int, int], range] = {}
        for source, target, tensor in links:
            rows = range(self.row[source] + 1, self.row[target])
            skipped[source, tensor] = max(skipped.get((source, tensor), rows), rows, key=len)
        if sum(map(len, skipped.values())) > _MAX_SKIPPED:
            return {}
        shortest_first = sorted(skipped.items(), key=lambda item: len(item[1]))
        return {key: self._take(rows, self.lane[key[0]]) for key, rows in shortest_first if rows}

    def _take(self, rows: Sequence[int], near: int) -> int:
        """Take a lane in all of these rows: `near` if it is free, else the closest one outside."""
        lane = near
        if any((row, near) in self._taken for row in rows):
            ends = [self._ends[row] for row in rows if row in self._ends]
            outer = (max(last for _, last in ends) + 1, min(first for first, _ in ends) - 1)
            lane = min(outer, key=lambda other: abs(other - near))
        for row in rows:
            first, last = self._ends.get(row, (lane, lane))
            self._ends[row] = min(first, lane), max(last, lane)
            self._taken.add((row, lane))
        return lane


def _grouped(pairs: Iterable[tuple[int, int]]) -> _Neighbors:
    groups: dict[int, list[int]] = {}
    for node, neighbor in pairs:
        groups.setdefault(node, []).append(neighbor)
    return groups


def _reached(order: Iterable[int], above: _Neighbors) -> set[int]:
    """The nodes that depend on an input; `order` is an execution order."""
    reached = {INPUTS}
    for node in order:
        if not reached.isdisjoint(above.get(node, ())):
            reached.add(node)
    return reached


def _rows(
    order: Sequence[int], above: _Neighbors, below: _Neighbors, trunk: Container[int]
) -> dict[int, int]:
    """The longest path to each node; nodes outside of the trunk are right above their reader."""
    row: dict[int, int] = {}
    for node in order:
        row[node] = 1 + max((row[source] for source in above.get(node, ())), default=-1)
    row[OUTPUTS] = max(row.values())
    for node in reversed(order):
        if node not in trunk and node in below:
            row[node] = min(row[target] for target in below[node]) - 1
    return row
