"""Applies rules to the operators of a graph until none applies."""

import collections
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from jaxdelegate.conversion.emitter import Emitter
from jaxdelegate.conversion.errors_at import Place
from jaxdelegate.conversion.graph import Graph, Node, Value
from jaxdelegate.conversion.primitives import PRIMITIVES

_MAX_PASSES = 100  # each makes the graph smaller or moves an operator towards an output
Rule = Callable[["Rewriter", Node], Value | None]


class Rewriter:
    """One pass over a graph. A rule returns the value that replaces its node's result, or None."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.readers: dict[int, list[Node]] = collections.defaultdict(list)
        for node in (*graph.nodes, Node("", [*graph.outputs], [])):
            for v in node.inputs:
                self.readers[id(v)].append(node)
        self.emitter = Emitter(Graph(graph.name), PRIMITIVES)
        self.changed = False
        self._new: dict[int, Value] = {}
        self._kept: list[Any] = []  # ids are of objects that live

    def run(self, rules: Mapping[str, Sequence[Rule]]) -> bool:
        """Whether anything changed."""
        for node in self.graph.nodes:
            node.inputs = [self._resolved(v) for v in node.inputs]
            if not node.keeps and self._rewritten(node, rules.get(node.op, ())):
                self.changed = True
            else:
                self.emitter.graph.nodes.append(node)
        self.graph.nodes = self.emitter.graph.nodes
        self.graph.outputs = [self._resolved(v) or v for v in self.graph.outputs]
        drop_dead(self.graph)
        return self.changed

    def _rewritten(self, node: Node, rules: Iterable[Rule]) -> bool:
        old = node.outputs[0]
        self.emitter.place = Place(scope=old.name.rpartition("/")[0])
        for rule in rules:
            new = rule(self, node)
            if new is not None and new is not old:
                self._replace(old, new)
                return True
        return False

    def _replace(self, old: Value, new: Value) -> None:
        nodes = self.emitter.graph.nodes
        if nodes and new is nodes[-1].output and old.name:
            new.name = old.name
        self.readers[id(new)] += self.readers[id(old)]
        self._new[id(old)] = new
        self._kept.append(old)

    def _resolved(self, value: Value | None) -> Value | None:
        while value is not None and id(value) in self._new:
            value = self._new[id(value)]
        return value

    def is_read_once(self, value: Value) -> bool:
        return len(self.readers[id(value)]) == 1


def rewrite(graph: Graph, rules: Mapping[str, Sequence[Rule]]) -> None:
    for _ in range(_MAX_PASSES):
        if not Rewriter(graph).run(rules):
            return


def drop_dead(graph: Graph) -> None:
    """Leave out the operators whose results nothing reads."""
    read = {id(v) for v in graph.outputs}
    kept = []
    for node in reversed(graph.nodes):
        if any(id(v) in read for v in node.outputs):
            kept.append(node)
            read.update(id(v) for v in node.inputs if v is not None)
    graph.nodes = kept[::-1]


def merge_equal(graph: Graph) -> None:
    """Compute once what two operators compute from the same values."""
    known: dict[Any, list[Value]] = {}
    new: dict[int, Value] = {}
    kept = []
    for node in graph.nodes:
        node.inputs = [None if v is None else new.get(id(v), v) for v in node.inputs]
        key = None if node.graphs or node.keeps else _computation(node)
        before = known.get(key) if key is not None else None
        if before is None:
            known[key] = node.outputs
            kept.append(node)
        else:
            new.update((id(v), b) for v, b in zip(node.outputs, before, strict=True))
    graph.nodes = kept
    graph.outputs = [new.get(id(v), v) for v in graph.outputs]


def _computation(node: Node) -> Any:
    """What an operator computes; BITCAST says it by the dtype of its result only."""
    dtypes = tuple(v.dtype for v in node.outputs)
    return node.op, node.options, dtypes, *map(_key, node.inputs)


def _key(value: Value | None) -> Any:
    if value is not None and isinstance(value.data, np.ndarray) and value.data.size <= 64:
        return value.data.dtype.str, value.shape, np.ascontiguousarray(value.data).tobytes()
    return id(value)
