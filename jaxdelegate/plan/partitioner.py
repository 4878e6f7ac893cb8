"""Which nodes of a plan a delegate runs: queried one by one, grouped and reported.

The steps are those of delegates/utils/simple_delegate.cc (DelegatePrepare), for both interpreters.
"""

import dataclasses
import functools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet

from jaxdelegate.op_lowering.spec import TensorSpec
from jaxdelegate.options import DelegateOptions
from jaxdelegate.plan.gain import HostSpeed, gains_alone, why_not_gaining
from jaxdelegate.plan.node_subsets import Subset, largest
from jaxdelegate.plan.steps import DelegatedNodes
from jaxdelegate.plan.tables import why_on_host
from jaxdelegate.report.delegation import DelegationReport, NodeReport
from jaxdelegate.simple_delegate import DelegateContext, Node, SimpleDelegate, SimpleDelegateOptions

_LAST = SimpleDelegateOptions.last_delegate_node_index
_ONCE = "CALL_ONCE"
_NOT_KEPT = "its partition is not among those that the options allow"


@dataclasses.dataclass(frozen=True)
class Offer:
    """A graph that a host offers to a delegate."""

    context: DelegateContext  # the graph
    rows: Sequence[Node | DelegatedNodes]  # its plan: nodes, and what other delegates run already
    group: Callable[[AbstractSet[int]], Sequence[Subset]]  # for positions that the delegate takes
    speed: HostSpeed  # how long the host's kernels take
    refused: Mapping[int, str]  # why some nodes cannot be delegated at all, by position
    subgraph: int = 0  # the index of the subgraph, for the report
    is_called: bool = False  # an operator on the host calls it (the body of a loop)
    is_initialization: bool = False  # whether only CALL_ONCE runs the subgraph

    @functools.cached_property
    def nodes(self) -> dict[int, Node]:
        """The nodes that no delegate runs yet, by position."""
        return {i: row for i, row in enumerate(self.rows) if isinstance(row, Node)}


def delegated_subsets(delegate: SimpleDelegate, offer: Offer) -> Sequence[Subset]:
    """The subsets of the plan, delegated or not, after a delegate's `reasons` and `on_partitioned`.

    It is asked about every node that no delegate runs yet.
    """
    reasons = _reasons(delegate, offer)
    supported = {position for position, reason in reasons.items() if reason is None}
    options, group = delegate.options, offer.group
    subsets = group(supported)
    kept = largest(
        subsets,
        most=options.max_delegated_partitions,
        min_nodes=options.min_nodes_per_partition,
    )
    declined = {}
    if (offer.is_called or len(kept) < len(offer.rows)) and not _is_ranged(options):
        declined = _declined(delegate, offer, group(kept))
    if kept != supported or declined:
        subsets = group(kept - declined.keys())
    rows = _report_rows(offer, subsets, reasons | declined)
    device = delegate.device_name or delegate.name
    delegate.on_partitioned(DelegationReport(delegate.name, device, rows, offer.subgraph))
    return subsets


def _is_ranged(options: SimpleDelegateOptions | DelegateOptions) -> bool:
    """Whether the user selected the operators, for example to find a wrong one."""
    return options.first_delegate_node_index > 0 or options.last_delegate_node_index < _LAST


def _least_gain(delegate: SimpleDelegate, offer: Offer) -> str | None:
    """Why no partition can gain, whichever nodes it has: then no rule, and no jax, is needed."""
    is_whole = not (offer.refused or offer.is_called)  # a partition of all nodes need not gain
    if is_whole or _is_ranged(delegate.options):
        return None
    speed, cost, min_gain = offer.speed, delegate.transfer_cost, delegate.options.min_gain
    asked = (node for i, node in offer.nodes.items() if i not in offer.refused)
    nodes = [node for node in asked if gains_alone(node, speed, cost, min_gain)]
    return why_not_gaining(nodes, (), speed, cost, min_gain)


def _reasons(delegate: SimpleDelegate, offer: Offer) -> dict[int, str | None]:
    """By position in the plan: why a node stays with the host; None: the delegate can run it."""
    options, declined = delegate.options, _least_gain(delegate, offer)
    first, last = options.first_delegate_node_index, options.last_delegate_node_index
    outside = f"outside of first_delegate_node_index {first} .. last_delegate_node_index {last}"
    reasons: dict[int, str | None] = {}
    asked: dict[int, Node] = {}
    for position, node in offer.nodes.items():
        if position in offer.refused:
            reasons[position] = offer.refused[position]
        elif declined is not None:
            reasons[position] = declined
        elif first <= node.index <= last:
            asked[position] = node
        else:
            reasons[position] = outside
    answers = delegate.reasons(offer.context, tuple(asked.values()))
    reasons.update(zip(asked, answers, strict=True))
    may_decline = options.min_gain > 0 and not _is_ranged(options)
    if delegate.transfer_cost.copies_tables and may_decline:
        reasons.update(why_on_host(offer.nodes, [i for i in asked if reasons[i] is None]))
    return reasons


def _declined(
    delegate: SimpleDelegate, offer: Offer, subsets: Iterable[Subset]
) -> dict[int, str | None]:
    """By position: why a partition that the delegate could run is not worth its hand-over."""
    declined: dict[int, str | None] = {}
    cost, min_gain = delegate.transfer_cost, delegate.options.min_gain
    all_nodes = (node for row in offer.rows for node in _nodes(row))
    readers = Counter(i for node in all_nodes for i in {*node.operator.inputs})
    for subset in subsets:
        if subset.is_delegated:
            nodes = [offer.nodes[i] for i in subset.items if i in offer.nodes]
            crossing = _crossing(nodes, readers)
            reason = why_not_gaining(nodes, crossing, offer.speed, cost, min_gain)
            if reason is not None:
                declined.update(dict.fromkeys(subset.items, reason))
    return declined


def _crossing(inside: Sequence[Node], readers: Mapping[int, int]) -> Sequence[TensorSpec]:
    """The tensors that a partition reads from the host or writes for it.

    Tensors without a reader are results of the graph. `readers` counts those in the plan.
    """
    own = Counter(i for node in inside for i in {*node.operator.inputs})
    read = {i: s for n in inside for i, s in zip(n.operator.inputs, n.inputs, strict=True)}
    written = {i: s for n in inside for i, s in zip(n.operator.outputs, n.outputs, strict=True)}
    entering = {i: s for i, s in read.items() if i not in written}
    leaving = {i: s for i, s in written.items() if readers[i] > own[i] or i not in read}
    specs = (entering | leaving).values()
    return [spec for spec in specs if spec is not None and spec.const is None]


def _nodes(row: Node | DelegatedNodes) -> Sequence[Node]:
    return (row,) if isinstance(row, Node) else row.nodes


def _report_rows(
    offer: Offer, subsets: Iterable[Subset], reasons: Mapping[int, str | None]
) -> tuple[NodeReport, ...]:
    taken = [subset for subset in subsets if subset.is_delegated]
    partitions = {i: number for number, subset in enumerate(taken) for i in subset.items}
    rows = []
    for position, row in enumerate(offer.rows):
        partition = partitions.get(position) if isinstance(row, Node) else None
        for node in _nodes(row):
            taker = reasons[position] if isinstance(row, Node) else f"taken by {row.delegate}"
            rows.append(_report(node, partition, taker or _NOT_KEPT, offer.is_initialization))
    return tuple(sorted(rows, key=lambda row: row.index))


def _report(node: Node, partition: int | None, reason: str, once: bool) -> NodeReport:
    """One row of the report; the reason counts only for a node that stays."""
    operator = node.operator
    return NodeReport(
        index=operator.index,
        op=operator.name,
        op_code=operator.builtin_code,
        version=operator.version,
        delegated=partition is not None,
        reason=None if partition is not None else reason,
        partition=partition,
        once=once or operator.name == _ONCE,
    )
