"""Operations, bytes and seconds of measured operators, for a roofline plot."""

import dataclasses
from collections.abc import Iterable, Sequence

from jaxdelegate.measuring.costs import operator_cost
from jaxdelegate.simple_delegate import Node


@dataclasses.dataclass(frozen=True)
class Span:
    nodes: tuple[int, ...]  # the operators that it computes
    seconds: float  # in one run
    bytes: int  # that it reads and writes


@dataclasses.dataclass(frozen=True)
class OperatorWork:
    """One operator, or several that XLA fused, whose times cannot be separated."""

    name: str  # types and indices
    nodes: tuple[int, ...]
    seconds: float  # in one run
    flops: int | None  # arithmetic operations in one run; None: unknown
    bytes: int  # that reach memory; values inside a fusion stay in registers


def work_of(spans: Iterable[Span], nodes: Sequence[Node]) -> list[OperatorWork]:
    """The spans that have nodes, merged if they share an operator."""
    by_index = {node.index: node for node in nodes}
    known = [span for span in spans if span.nodes]
    rows = []
    for group in _merged(span.nodes for span in known):
        own = [span for span in known if span.nodes[0] in group]
        indices = tuple(sorted(group))
        kinds = "+".join(dict.fromkeys(by_index[i].name for i in indices))
        rows.append(
            OperatorWork(
                f"{kinds} {'+'.join(map(str, indices))}",
                indices,
                sum(span.seconds for span in own),
                _flops([by_index[i] for i in indices]),
                sum(span.bytes for span in own),
            )
        )
    return rows


def _merged(sets: Iterable[Sequence[int]]) -> list[frozenset[int]]:
    """The connected components of overlapping sets, in the order of their first members."""
    groups: list[set[int]] = []
    for members in sets:
        touching = [group for group in groups if group & set(members)]
        merged = set(members).union(*touching)
        groups = [group for group in groups if group not in touching]
        groups.append(merged)
    return sorted(map(frozenset, groups), key=min)


def _flops(nodes: Iterable[Node]) -> int | None:
    costs = [operator_cost(n.name, n.operator.options, n.inputs, n.outputs).flops for n in nodes]
    return None if any(flops is None for flops in costs) else sum(filter(None, costs))


def host_span(node: Node, seconds: float) -> Span:
    """The span of a host operator; numpy reads and writes whole tensors."""
    cost = operator_cost(node.name, node.operator.options, node.inputs, node.outputs)
    return Span((node.index,), seconds, cost.bytes or 0)
