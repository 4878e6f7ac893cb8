"""Positions of a subgraph's operators on the page: layers from top to bottom, few crossings.

The method is Sugiyama's: layers by longest path, way-points on edges that skip layers, barycenter
sweeps. Operators that only prepare weights are placed next to their reader, so that the path from
the inputs is a straight column.
"""

import collections
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from jaxdelegate.analysis.records import SubgraphAnalysis

NODE_WIDTH, NODE_HEIGHT = 220.0, 44.0
_COLUMN_GAP, _ROW_GAP = 22.0, 34.0
_WAY_POINT_WIDTH = 10.0
_SWEEPS = 6
_REACHED_WEIGHT = 100.0  # of nodes that an input reaches; nodes that prepare weights have 1
_MAX_WAY_POINTS = 20_000  # with more, edges that skip layers are straight

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


class _WayPoint(NamedTuple):
    """Where the line of a tensor crosses a layer; all readers of the tensor share it."""

    source: int
    tensor: int
    layer: int


_Node = int | _WayPoint
_Neighbors = Mapping[_Node, Sequence[_Node]]


def layout(subgraph: SubgraphAnalysis) -> Layout:
    """Constants are not drawn."""
    links = _links(subgraph)
    order = [INPUTS, *(op.index for op in subgraph.operators), OUTPUTS]
    reached = _reached(order, links)
    level = _levels(order, links, reached)
    paths = _paths(links, level)
    layers = _layers(order, level, paths)
    pairs = [pair for path in paths for pair in itertools.pairwise(path)]
    above, below = _grouped((b, a) for a, b in pairs), _grouped(pairs)
    _reorder(layers, above, below)
    x = _columns(layers, above, below, reached)
    left = min(x[n] - _width(n) / 2 for n in x)
    right = max(x[n] + _width(n) / 2 for n in x)
    rows = {n: i for i, layer in enumerate(layers) for n in layer}

    def at(n: _Node) -> tuple[float, float]:
        return round(x[n] - left, 1), rows[n] * (NODE_HEIGHT + _ROW_GAP) + NODE_HEIGHT / 2

    return Layout(
        boxes=tuple(Box(n, *at(n)) for n in order),
        edges=tuple(
            Edge(*link, points=tuple(map(at, path)))
            for link, path in zip(links, paths, strict=True)
        ),
        width=round(right - left, 1),
        height=round(len(layers) * (NODE_HEIGHT + _ROW_GAP) - _ROW_GAP, 1),
    )


def _links(subgraph: SubgraphAnalysis) -> list[_Link]:
    producer = dict.fromkeys(subgraph.inputs, INPUTS)
    links = []
    for op in subgraph.operators:
        links += [_Link(producer[t], op.index, t) for t in op.inputs if t in producer]
        producer |= {tensor: op.index for tensor in op.outputs if tensor >= 0}
    links += [_Link(producer[t], OUTPUTS, t) for t in subgraph.outputs if t in producer]
    return list(dict.fromkeys(links))


def _grouped(pairs: Iterable[tuple[_Node, _Node]]) -> _Neighbors:
    groups: dict[_Node, list[_Node]] = {}
    for node, neighbor in pairs:
        groups.setdefault(node, []).append(neighbor)
    return groups


def _reached(order: Iterable[int], links: Iterable[_Link]) -> set[_Node]:
    """The nodes that depend on an input; `order` is an execution order."""
    sources = _grouped((link.target, link.source) for link in links)
    reached: set[_Node] = {INPUTS}
    for node in order:
        if not reached.isdisjoint(sources.get(node, ())):
            reached.add(node)
    return reached


def _levels(
    order: Sequence[int], links: Sequence[_Link], reached: AbstractSet[_Node]
) -> dict[_Node, int]:
    """The longest path to each node; nodes that no input reaches are right above their reader."""
    sources = _grouped((link.target, link.source) for link in links)
    targets = _grouped((link.source, link.target) for link in links)
    level: dict[_Node, int] = {}
    for node in order:
        level[node] = 1 + max((level[s] for s in sources.get(node, ())), default=-1)
    level[OUTPUTS] = max(level.values())
    for node in reversed(order):
        if node not in reached and node in targets:
            level[node] = min(level[t] for t in targets[node]) - 1
    return level


def _paths(links: Sequence[_Link], level: Mapping[_Node, int]) -> list[list[_Node]]:
    between = [range(level[link.source] + 1, level[link.target]) for link in links]
    if sum(map(len, between)) > _MAX_WAY_POINTS:
        between = [range(0)] * len(links)
    return [
        [link.source, *(_WayPoint(link.source, link.tensor, i) for i in skipped), link.target]
        for link, skipped in zip(links, between, strict=True)
    ]


def _layers(
    order: Iterable[int], level: Mapping[_Node, int], paths: Iterable[Iterable[_Node]]
) -> list[list[_Node]]:
    layers: dict[int, dict[_Node, None]] = collections.defaultdict(dict)
    for node in order:
        layers[level[node]][node] = None
    for point in itertools.chain.from_iterable(paths):
        if isinstance(point, _WayPoint):
            layers[point.layer][point] = None
    return [list(layers[i]) for i in sorted(layers)]


def _sweeps(
    layers: Sequence[list[_Node]], above: _Neighbors, below: _Neighbors
) -> Iterator[tuple[list[_Node], _Neighbors]]:
    """Each layer with its neighbors in the layer before it, down and up in turns."""
    for sweep in range(_SWEEPS):
        down = sweep % 2 == 0
        for layer in layers if down else reversed(layers):
            yield layer, above if down else below


def _reorder(layers: Sequence[list[_Node]], above: _Neighbors, below: _Neighbors) -> None:
    """Sort every layer by the mean position of its neighbors."""
    place = {node: float(i) for layer in layers for i, node in enumerate(layer)}
    equal = dict.fromkeys(place, 1.0)
    for layer, neighbors in _sweeps(layers, above, below):
        means = {n: _mean(n, neighbors, place, equal) for n in layer}
        layer.sort(key=means.__getitem__)
        place.update((node, float(i)) for i, node in enumerate(layer))


def _columns(
    layers: Sequence[list[_Node]],
    above: _Neighbors,
    below: _Neighbors,
    reached: AbstractSet[_Node],
) -> dict[_Node, float]:
    """The x of each node: near the mean of its neighbors, in the order of its layer."""
    weights = {
        node: _REACHED_WEIGHT if node in reached or isinstance(node, _WayPoint) else 1.0
        for layer in layers
        for node in layer
    }
    x: dict[_Node, float] = {}
    for layer in layers:
        x |= _spread(layer, dict.fromkeys(layer, 0.0), weights)
    for layer, neighbors in _sweeps(layers, above, below):
        x |= _spread(layer, {n: _mean(n, neighbors, x, weights) for n in layer}, weights)
    return x


def _mean(
    node: _Node,
    neighbors: _Neighbors,
    values: Mapping[_Node, float],
    weights: Mapping[_Node, float],
) -> float:
    others = neighbors.get(node, ())
    total = sum(weights[o] for o in others)
    return sum(weights[o] * values[o] for o in others) / total if others else values[node]


def _spread(
    layer: Sequence[_Node], goals: Mapping[_Node, float], weights: Mapping[_Node, float]
) -> dict[_Node, float]:
    """Positions close to the goals that keep the layer's order and do not overlap.

    Without the widths to their left, positions must only not decrease: pool adjacent violators.
    """
    offsets = list(itertools.accumulate((_width(n) + _COLUMN_GAP for n in layer), initial=0.0))
    starts = [offset + _width(n) / 2 for n, offset in zip(layer, offsets, strict=False)]
    pools: list[tuple[float, float, int]] = []  # mean, weight and number of nodes
    for node, start in zip(layer, starts, strict=True):
        mean, weight, count = goals[node] - start, weights[node], 1
        while pools and pools[-1][0] > mean:
            other_mean, other_weight, other_count = pools.pop()
            mean = (mean * weight + other_mean * other_weight) / (weight + other_weight)
            weight, count = weight + other_weight, count + other_count
        pools.append((mean, weight, count))
    means = [mean for mean, _, count in pools for _ in range(count)]
    return {n: mean + start for n, mean, start in zip(layer, means, starts, strict=True)}


def _width(node: _Node) -> float:
    return _WAY_POINT_WIDTH if isinstance(node, _WayPoint) else NODE_WIDTH
