"""What a stock interpreter's graph is: it does not name its file, so its content does."""

import threading
import weakref
from collections.abc import Mapping, MutableMapping
from typing import Any

from jaxdelegate.cache.constants import ConstantDigests
from jaxdelegate.cache.key import Key
from jaxdelegate.cache.partition_key import model_part, operators_part
from jaxdelegate.litert.graph import Graph
from jaxdelegate.simple_delegate import GraphKey


class _Content:
    """Stands for all open graphs of equal operators and constants."""


_LOCK = threading.Lock()
_CONTENTS: MutableMapping[str, _Content] = weakref.WeakValueDictionary()


def graph_key(graph: Graph, shared: MutableMapping[Any, Any]) -> GraphKey:
    """The key of a graph; `shared` keeps it as long as the interpreter lives."""
    known = shared.get(GraphKey)
    if known is None:
        constants = shared.setdefault(ConstantDigests, ConstantDigests())
        known = shared[GraphKey] = GraphKey(_content(graph, constants), graph.index)
    key: GraphKey = known
    return key


def _content(graph: Graph, constants: ConstantDigests) -> _Content:
    try:
        digest = _digest(graph, constants)
    except TypeError:  # options of a custom operator, of a type that no digest covers
        return _Content()
    with _LOCK:
        return _CONTENTS.setdefault(digest, _Content())


def _digest(graph: Graph, constants: ConstantDigests) -> str:
    specs = dict(enumerate(graph.declared))
    held: Mapping[int, Any] = {i: s.const for i, s in specs.items() if s.const is not None}
    nodes = graph.nodes(graph.operators, graph.declared)
    parts = {"partition": operators_part(nodes, specs), **model_part(constants.of(held))}
    return Key(parts).digest
