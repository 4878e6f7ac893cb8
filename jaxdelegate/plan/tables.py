"""Lookups in large tables: a host reads rows in the mapped file.

A program on a CPU would have a copy of the whole table, which its first call waits for.
"""

import math
from collections.abc import Collection, Iterable, Mapping

from jaxdelegate.costs import specs_bytes
from jaxdelegate.op_lowering.spec import TensorSpec
from jaxdelegate.simple_delegate import Node

# The positions of indices and table among the inputs.
_LOOKUPS = {"EMBEDDING_LOOKUP": (0, 1), "GATHER": (1, 0)}
_LEAST_TABLE = 64 << 20  # bytes; a smaller one is copied in less than a tenth of a second
_MOST_NODES = 8  # that compute indices on the host
_MOST_BYTES = 1 << 20


def why_on_host(nodes: Mapping[int, Node], taken: Collection[int]) -> dict[int, str]:
    """By position: why nodes that a delegate could take are left to the host.

    Only lookups whose indices are inputs of the graph, or follow from them in a few small steps.
    A table that another node reads as well is in the program anyway. Positions are in the order of
    execution; `taken` are those of the nodes that the delegate can take.
    """
    reasons = {}
    for position in taken:
        node = nodes[position]
        table = _table(node)
        if table is None or _is_read_elsewhere(node, table, (nodes[i] for i in taken)):
            continue
        if _are_small(node.operator.inputs[_LOOKUPS[node.name][0]], nodes, position):
            size = (specs_bytes([table]) or 0) >> 20
            reasons[position] = (
                "its table is large, and the host reads rows of it in the file, without a copy "
                f"({size} MiB); min_gain=0 delegates it"
            )
    return reasons


def _table(node: Node) -> TensorSpec | None:
    """The large constant table of a lookup of a few of its rows."""
    if node.name not in _LOOKUPS or getattr(node.operator.options, "axis", 0) != 0:
        return None
    table = node.inputs[_LOOKUPS[node.name][1]]
    size = specs_bytes([table])
    if table.const is None or not table.shape or size is None or size < _LEAST_TABLE:
        return None
    rows = node.outputs[0].shape
    return table if 16 * math.prod(rows) <= math.prod(table.shape) else None


def _is_read_elsewhere(node: Node, table: TensorSpec, others: Iterable[Node]) -> bool:
    specs = (spec for other in others if other is not node for spec in other.inputs)
    return any(spec is not None and spec.const is table.const for spec in specs)


def _are_small(tensor: int, nodes: Mapping[int, Node], before: int) -> bool:
    """Whether a tensor is an input of the graph, or the result of a few small nodes."""
    makers = {i: node for p, node in nodes.items() if p < before for i in node.operator.outputs}
    needed, counted = [tensor], set[int]()
    while needed:
        maker = makers.get(needed.pop())
        if maker is None or maker.index in counted:
            continue
        counted.add(maker.index)
        size = specs_bytes(maker.outputs)
        if len(counted) > _MOST_NODES or size is None or size > _MOST_BYTES:
            return False
        needed += maker.operator.inputs
    return True
