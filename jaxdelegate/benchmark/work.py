"""Times of operators, and their operations, bytes and seconds for a roofline plot."""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

from jaxdelegate.costs import Cost, operator_cost
from jaxdelegate.measuring.stats import Stat
from jaxdelegate.simple_delegate import Node


@dataclasses.dataclass(frozen=True)
class OpTime:
    type: str  # the operator's name, or several joined by + if XLA fused them
    name: str  # its outputs and its index, as TFLite names nodes
    times: Stat  # microseconds in each profiled run
    bytes: int = 0  # the size of its results; 0: it depends on data
    times_called: int = 1  # in one run; inside a partition the number of XLA instructions
    nodes: tuple[int, ...] = ()  # the operators' indices
    traffic: int = 0  # bytes that it reads and writes

    def as_dict(self) -> dict[str, Any]:
        return {
            "type": self.type,
            "name": self.name,
            "nodes": list(self.nodes),
            "times_called": self.times_called,
            "bytes": self.bytes,
            "us": self.times.as_dict(),
        }


@dataclasses.dataclass(frozen=True)
class OperatorWork:
    """One operator, or several that XLA fused, whose times cannot be separated."""

    name: str  # types and indices
    nodes: tuple[int, ...]
    seconds: float  # in one run
    flops: int | None  # arithmetic operations in one run; None: unknown
    bytes: int  # memory traffic; values inside a fusion stay in registers


def work_of(rows: Iterable[OpTime], nodes: Sequence[Node]) -> list[OperatorWork]:
    by_index = {node.index: node for node in nodes}
    known = [row for row in rows if row.nodes]
    work = []
    for group in _merged(row.nodes for row in known):
        members = [row for row in known if row.nodes[0] in group]
        indices = tuple(sorted(group))
        kinds = "+".join(dict.fromkeys(by_index[i].name for i in indices))
        work.append(
            OperatorWork(
                f"{kinds} {'+'.join(map(str, indices))}",
                indices,
                sum(row.times.avg for row in members) / 1e6,
                _flops([by_index[i] for i in indices]),
                sum(row.traffic for row in members),
            )
        )
    return work


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
    costs = [cost_of(node).flops for node in nodes]
    return None if any(flops is None for flops in costs) else sum(filter(None, costs))


def cost_of(node: Node) -> Cost:
    return operator_cost(node.name, node.operator.options, node.inputs, node.outputs)
