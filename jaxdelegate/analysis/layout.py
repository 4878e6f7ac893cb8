"""Where a subgraph's operators stand on the page: layers from top to bottom, few crossings.

Sugiyama's method: longest-path layers, way points on edges that skip layers, barycenter sweeps.
"""

import dataclasses
import itertools
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet

from jaxdelegate.analysis.records import SubgraphAnalysis

NODE_WIDTH, NODE_HEIGHT = 220.0, 44.0
_COLUMN_GAP, _ROW_GAP = 22.0, 34.0
_ALGORITHMS_POINT_WIDTH = 10.0
_SWEEPS = 6
_FED_WEIGHT = 100.0  # of what the inputs reach, next to 1 of what prepares weights
_MOST_ALGORITHMS_POINTS = 20_000  # beyond, edges that skip layers run straight

INPUTS, OUTPUTS = -1, -2  # the boxes of the subgraph's own inputs and outputs


@dataclasses.dataclass(frozen=True)
class Box:
    """A node on the page: an operator by its index, INPUTS or OUTPUTS; its center."""

    node: int
    x: float
    y: float


@dataclasses.dataclass(frozen=True)
class Edge:
    """A tensor on its way from one node to another, through these points."""

    source: int
    target: int
    tensor: int
    points: tuple[tuple[float, float], ...]


@dataclasses.dataclass(frozen=True)
class Layout:
    """A drawing; all coordinates lie within [0, width] and [0, height]."""

    boxes: tuple[Box, ...]
    edges: tuple[Edge, ...]
    width: float
    height: float


@dataclasses.dataclass(frozen=True)
class _AlgorithmPoint:
    """Where an edge passes a layer."""

    link: int
    layer: int


_Node = int | _AlgorithmPoint
_Link = tuple[int, int, int]  # source, target, tensor


def layout(subgraph: SubgraphAnalysis) -> Layout:
    """Lay a subgraph out; constants are not drawn."""
    links = _links(subgraph)
    order = [INPUTS, *(op.index for op in subgraph.operators), OUTPUTS]
    level = _levels(order, links)
    layers, paths = _layered(order, links, level)
    neighbors = _neighbors(paths)
    _reorder(layers, neighbors)
    x = _columns(layers, neighbors, _weights(layers, _fed(order, links)))
    left = min(x[n] - _width(n) / 2 for n in x)
    right = max(x[n] + _width(n) / 2 for n in x)
    rows = {n: i for i, layer in enumerate(layers) for n in layer}

    def at(n: _Node) -> tuple[float, float]:
        return round(x[n] - left, 1), rows[n] * (NODE_HEIGHT + _ROW_GAP) + NODE_HEIGHT / 2

    edges = tuple(
        Edge(source, target, tensor, tuple(map(at, path)))
        for (source, target, tensor), path in zip(links, paths, strict=True)
    )
    height = len(layers) * (NODE_HEIGHT + _ROW_GAP) - _ROW_GAP
    return Layout(tuple(Box(n, *at(n)) for n in order), edges, right - left, height)


def _links(subgraph: SubgraphAnalysis) -> list[_Link]:
    producer = dict.fromkeys(subgraph.inputs, INPUTS)
    links: dict[_Link, None] = {}
    for op in subgraph.operators:
        for tensor in op.inputs:
            if tensor in producer:
                links[producer[tensor], op.index, tensor] = None
        producer |= {tensor: op.index for tensor in op.outputs if tensor >= 0}
    for tensor in subgraph.outputs:
        if tensor in producer:
            links[producer[tensor], OUTPUTS, tensor] = None
    return list(links)


def _levels(order: Sequence[int], links: Iterable[_Link]) -> dict[int, int]:
    """The longest path from a source to each node; `order` is one in which they can run."""
    sources: dict[int, list[int]] = {}
    targets: dict[int, list[int]] = {}
    for source, target, _ in links:
        sources.setdefault(target, []).append(source)
        targets.setdefault(source, []).append(target)
    level: dict[int, int] = {}
    for node in order:
        level[node] = 1 + max((level[s] for s in sources.get(node, ())), default=-1)
    level[OUTPUTS] = max([level[OUTPUTS], *(n for node, n in level.items() if node != OUTPUTS)])
    fed = _fed(order, links)
    for node in reversed(order):  # what no input reaches moves down to those that read it
        if node not in fed and node in targets:
            level[node] = min(level[t] for t in targets[node]) - 1
    return level


def _fed(order: Iterable[int], links: Iterable[_Link]) -> set[int]:
    """The nodes that an input reaches."""
    sources: dict[int, list[int]] = {}
    for source, target, _ in links:
        sources.setdefault(target, []).append(source)
    fed = {INPUTS}
    for node in order:
        if not fed.isdisjoint(sources.get(node, ())):
            fed.add(node)
    return fed


def _weights(layers: Iterable[Iterable[_Node]], fed: AbstractSet[int]) -> dict[_Node, float]:
    """How much each node decides on columns: what only prepares weights steps aside."""
    nodes = (node for layer in layers for node in layer)
    return {n: 1.0 if isinstance(n, int) and n not in fed else _FED_WEIGHT for n in nodes}


def _layered(
    order: Sequence[int], links: Sequence[_Link], level: Mapping[int, int]
) -> tuple[list[list[_Node]], list[list[_Node]]]:
    """Nodes and way points by layer, and each link's path through the layers."""
    layers: list[list[_Node]] = [[] for _ in range(max(level.values()) + 1)]
    for node in order:
        layers[level[node]].append(node)
    n_algorithm_points = sum(level[t] - level[s] - 1 for s, t, _ in links)
    paths: list[list[_Node]] = []
    shared: dict[tuple[int, int], list[_AlgorithmPoint]] = {}
    for number, (source, target, tensor) in enumerate(links):
        between: Iterable[int] = range(level[source] + 1, level[target])
        if n_algorithm_points > _MOST_ALGORITHMS_POINTS:
            between = ()
        known = shared.setdefault((source, tensor), [])  # one line as far as readers share it
        for layer in itertools.islice(between, len(known), None):
            known.append(_AlgorithmPoint(number, layer))
            layers[layer].append(known[-1])
        paths.append([source, *known[: len(list(between))], target])
    return layers, paths


def _neighbors(paths: Iterable[Sequence[_Node]]) -> dict[_Node, tuple[list[_Node], list[_Node]]]:
    """Of each node, those above it and those below it."""
    found: dict[_Node, tuple[list[_Node], list[_Node]]] = {}
    for path in paths:
        for upper, lower in itertools.pairwise(path):
            found.setdefault(upper, ([], []))[1].append(lower)
            found.setdefault(lower, ([], []))[0].append(upper)
    return found


def _reorder(
    layers: list[list[_Node]], neighbors: Mapping[_Node, tuple[list[_Node], list[_Node]]]
) -> None:
    """Sort every layer by where its neighbors stand, down and up in turns."""
    place = {node: i for layer in layers for i, node in enumerate(layer)}
    for sweep in range(_SWEEPS):
        side = sweep % 2  # 0: by the nodes above, going down
        for layer in layers if side == 0 else reversed(layers):

            def center(node: _Node, side: int = side) -> float:
                others = neighbors.get(node, ([], []))[side]
                return sum(map(place.__getitem__, others)) / len(others) if others else place[node]

            layer.sort(key=center)
            place.update((node, i) for i, node in enumerate(layer))


def _columns(
    layers: Sequence[Sequence[_Node]],
    neighbors: Mapping[_Node, tuple[list[_Node], list[_Node]]],
    weights: Mapping[_Node, float],
) -> dict[_Node, float]:
    """Where every node stands across: near the mean of its neighbors, in the order of its layer."""
    x: dict[_Node, float] = {}
    for layer in layers:
        x.update(_spread(layer, [0.0] * len(layer), weights))
    for sweep in range(_SWEEPS):
        side = sweep % 2
        for layer in layers if side == 0 else reversed(layers):
            wanted = []
            for node in layer:
                others = neighbors.get(node, ([], []))[side]
                total = sum(weights[o] for o in others)
                mean = sum(weights[o] * x[o] for o in others) / total if others else x[node]
                wanted.append(mean)
            x.update(_spread(layer, wanted, weights))
    return x


@dataclasses.dataclass
class _Group:
    """Nodes that push each other: where it begins, how wide it is, where its nodes stand in it."""

    left: float
    width: float
    weight: float
    offsets: list[tuple[_Node, float]]

    def join(self, other: "_Group") -> None:
        """Take in the group to the right; both yield by their weights."""
        goal = other.left - self.width
        total = self.weight + other.weight
        self.left = (self.left * self.weight + goal * other.weight) / total
        self.offsets += [(node, offset + self.width) for node, offset in other.offsets]
        self.width, self.weight = self.width + other.width, total


def _spread(
    layer: Sequence[_Node], wanted: Sequence[float], weights: Mapping[_Node, float]
) -> dict[_Node, float]:
    """Positions close to the wanted ones that keep their order and their distance.

    Groups of nodes that push each other are placed around the weighted mean of what they want.
    """
    groups: list[_Group] = []
    for node, goal in zip(layer, wanted, strict=True):
        width = _width(node) + _COLUMN_GAP
        groups.append(_Group(goal - width / 2, width, weights[node], [(node, width / 2)]))
        while len(groups) > 1 and groups[-2].left + groups[-2].width > groups[-1].left:
            last = groups.pop()
            groups[-1].join(last)
    return {node: group.left + offset for group in groups for node, offset in group.offsets}


def _width(node: _Node) -> float:
    return _ALGORITHMS_POINT_WIDTH if isinstance(node, _AlgorithmPoint) else NODE_WIDTH
