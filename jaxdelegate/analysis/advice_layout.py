"""Advice on operators that only move data."""

from collections.abc import Iterator

from jaxdelegate.analysis.graph import Graph
from jaxdelegate.analysis.records import Finding
from jaxdelegate.analysis.units import data, nodes
from jaxdelegate.simple_delegate import Node

_FREE = frozenset(("RESHAPE", "SQUEEZE", "EXPAND_DIMS", "STABLEHLO_RESHAPE"))
_COPYING = frozenset(
    (
        "BATCH_TO_SPACE_ND",
        "DEPTH_TO_SPACE",
        "REVERSE_V2",
        "SPACE_TO_BATCH_ND",
        "SPACE_TO_DEPTH",
        "STABLEHLO_TRANSPOSE",
        "TRANSPOSE",
    )
)
_CONVOLUTIONS = frozenset(("CONV_2D", "DEPTHWISE_CONV_2D"))


def space_to_batch(graph: Graph) -> Iterator[Finding]:
    """Dilated convolutions written as SPACE_TO_BATCH_ND, convolution, BATCH_TO_SPACE_ND."""
    for node in graph.nodes:
        if node.name != "SPACE_TO_BATCH_ND" or node.is_constant:
            continue
        convolution = graph.only_consumer(node)
        if convolution is None or convolution.name not in _CONVOLUTIONS:
            continue
        back = graph.only_consumer(convolution)
        if back is None or back.name != "BATCH_TO_SPACE_ND":
            continue
        block = None if node.inputs[1].const is None else node.inputs[1].const.tolist()
        moved = sum(graph.costs[n.index].bytes or 0 for n in (node, back))
        indices = (node.index, convolution.index, back.index)
        yield Finding(
            "space_to_batch",
            graph.index,
            indices,
            f"SPACE_TO_BATCH_ND, {convolution.name}, BATCH_TO_SPACE_ND ({nodes(indices)}) are a "
            f"convolution dilated by {block}; the rearrangement moves {data(moved)}",
            "inside a partition, the rewrite dilate_convolution replaces them; elsewhere, export "
            "the convolution with dilation_h_factor and dilation_w_factor",
            {"bytes_moved": moved},
        )


def movement_chains(graph: Graph) -> Iterator[Finding]:
    """Two or more data movements in a row; transposes among them may cancel out."""
    seen: set[int] = set()
    for node in graph.nodes:
        if node.index in seen or not _moves(node):
            continue
        chain = [node]
        while (following := graph.only_consumer(chain[-1])) is not None and _moves(following):
            if graph.producer.get(following.operator.inputs[0]) != chain[-1].index:
                break
            chain.append(following)
        seen.update(n.index for n in chain)
        if len(chain) > 1:
            yield _chain_finding(graph, chain)


def _moves(node: Node) -> bool:
    return node.name in _FREE | _COPYING and not node.is_constant


def _chain_finding(graph: Graph, chain: list[Node]) -> Finding:
    indices = tuple(node.index for node in chain)
    sizes = [graph.costs[n.index].bytes for n in chain if n.name in _COPYING]
    moved = sum(n for n in sizes if n is not None)
    amount = "how much depends on data" if None in sizes else f"{data(moved)} if each runs alone"
    names = ", ".join(node.name for node in chain)
    what = f"{names} ({nodes(indices)}) only move data: {amount}"
    remedy = "fold them into one TRANSPOSE and one RESHAPE where the model is exported"
    if _is_identity(chain):
        what += "; together they change nothing"
        remedy = "remove them where the model is exported"
    elif not sizes:
        what += "; reshapes cost nothing inside a partition"
        remedy = "one RESHAPE is enough; on the CPU each of them is a copy"
    numbers = {"operators": len(chain), "bytes_moved": moved}
    return Finding("movement_chain", graph.index, indices, what, remedy, numbers)


def _is_identity(chain: list[Node]) -> bool:
    """Whether the result equals the input: it has the same shape, and no element moves."""
    first, last = chain[0].inputs[0], chain[-1].outputs[0]
    if first.is_dynamic or last.is_dynamic or first.shape != last.shape:
        return False
    if all(node.name in _FREE for node in chain):
        return True
    if any(node.name != "TRANSPOSE" for node in chain):
        return False
    order = list(range(len(first.shape)))
    for node in chain:
        permutation = node.inputs[1].const
        if permutation is None:
            return False
        order = [order[int(axis)] for axis in permutation.reshape(-1)]
    return order == sorted(order)
