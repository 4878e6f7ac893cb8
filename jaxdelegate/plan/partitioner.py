"""Which nodes of a plan a delegate runs: queried one by one, grouped and reported.

The steps are those of delegates/utils/simple_delegate.cc (DelegatePrepare), for both interpreters.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet

from jaxdelegate.op_lowering.spec import TensorSpec
from jaxdelegate.plan.gain import HostSpeed, gains_alone, why_not_gaining
from jaxdelegate.plan.node_subsets import Subset, largest
from jaxdelegate.plan.steps import DelegatedNodes
from jaxdelegate.plan.tables import why_on_host
from jaxdelegate.report.delegation import DelegationReport, NodeReport
from jaxdelegate.simple_delegate import (
    DelegateContext,
    Node,
    PartitioningOptions,
    SimpleDelegate,
    SimpleDelegateOptions,
)

_LAST = SimpleDelegateOptions.last_delegate_node_index
_ONCE = "CALL_ONCE"
_NOT_KEPT = "its partition is not among those that the options allow"


Rows = Sequence[Node | DelegatedNodes]
Group = Callable[[AbstractSet[int]], Sequence[Subset]]  # positions in the plan -> its subsets


def delegated_subsets(
    delegate: SimpleDelegate,
    context: DelegateContext,
    plan: Rows,
    group: Group,
    speed: HostSpeed,
    *,
    subgraph: int = 0,
    is_called: bool = False,
    is_initialization: bool = False,
    refused: Mapping[int, str] | None = None,
) -> Sequence[Subset]:
    """Query a delegate about every node that no delegate runs yet, and report the partitioning.

    Args:
        delegate: its `reasons` and `on_partitioned` are called.
        context: the graph.
        plan: in execution order.
        group: partitions the plan for the positions that the delegate takes.
        speed: of the host's kernels.
        subgraph: the index of the subgraph, for the report.
        is_called: whether an operator on the host calls the subgraph (the body of a loop).
        is_initialization: whether only CALL_ONCE runs the subgraph.
        refused: why some nodes cannot be delegated at all, by position.

    Returns:
        The subsets of the plan, delegated or not.
    """
    refused = refused or {}
    least = _least_gain(delegate, plan, refused, speed) if refused or is_called else None
    reasons = _reasons(delegate, context, plan, refused, least)
    supported = {position for position, reason in reasons.items() if reason is None}
    options = delegate.options
    subsets = group(supported)
    kept = largest(
        subsets,
        most=options.max_delegated_partitions,
        min_nodes=options.min_nodes_per_partition,
    )
    declined = {}
    if (is_called or len(kept) < len(plan)) and not _is_ranged(options):
        declined = _declined(delegate, plan, group(kept), speed)
    if kept != supported or declined:
        subsets = group(kept - declined.keys())
    reasons.update(declined)
    rows = sorted(_rows(plan, subsets, reasons, is_initialization), key=lambda row: row.index)
    device = delegate.device_name or delegate.name
    delegate.on_partitioned(DelegationReport(delegate.name, device, tuple(rows), subgraph))
    return subsets


def _is_ranged(options: PartitioningOptions) -> bool:
    """Whether the user selected the operators, for example to find a wrong one."""
    return options.first_delegate_node_index > 0 or options.last_delegate_node_index < _LAST


def _may_decline(options: PartitioningOptions) -> bool:
    return options.min_gain > 0 and not _is_ranged(options)


def _least_gain(
    delegate: SimpleDelegate, plan: Rows, refused: Mapping[int, str], speed: HostSpeed
) -> str | None:
    """Why no partition can gain, whichever nodes it has: then no rule, and no jax, is needed."""
    if _is_ranged(delegate.options):
        return None
    cost, min_gain = delegate.transfer_cost, delegate.options.min_gain
    asked = (row for i, row in enumerate(plan) if isinstance(row, Node) and i not in refused)
    nodes = [node for node in asked if gains_alone(node, speed, cost, min_gain)]
    return why_not_gaining(nodes, (), speed, cost, min_gain)


def _reasons(
    delegate: SimpleDelegate,
    context: DelegateContext,
    plan: Rows,
    refused: Mapping[int, str],
    declined: str | None,
) -> dict[int, str | None]:
    """By position in the plan: why a node stays with the host; None: the delegate can run it.

    `declined` is why the delegate need not be asked; None: it is.
    """
    first = delegate.options.first_delegate_node_index
    last = delegate.options.last_delegate_node_index
    outside = f"outside of first_delegate_node_index {first} .. last_delegate_node_index {last}"
    reasons: dict[int, str | None] = {}
    asked: dict[int, Node] = {}
    for position, node in enumerate(plan):
        if not isinstance(node, Node):
            continue
        if position in refused:
            reasons[position] = refused[position]
        elif declined is not None:
            reasons[position] = declined
        elif first <= node.index <= last:
            asked[position] = node
        else:
            reasons[position] = outside
    answers = dict(zip(asked, delegate.reasons(context, tuple(asked.values())), strict=True))
    if delegate.transfer_cost.copies_tables and _may_decline(delegate.options):
        taken = [position for position, reason in answers.items() if reason is None]
        answers |= why_on_host({i: n for i, n in enumerate(plan) if isinstance(n, Node)}, taken)
    return reasons | answers


def _declined(
    delegate: SimpleDelegate, plan: Rows, subsets: Sequence[Subset], speed: HostSpeed
) -> dict[int, str]:
    """By position: why a partition that the delegate could run is not worth its hand-over."""
    declined = {}
    readers = Counter(i for row in plan for node in _nodes(row) for i in {*node.operator.inputs})
    for subset in subsets:
        if not subset.is_delegated:
            continue
        nodes = [row for row in (plan[i] for i in subset.items) if isinstance(row, Node)]
        crossing = _crossing(nodes, readers)
        reason = why_not_gaining(
            nodes, crossing, speed, delegate.transfer_cost, delegate.options.min_gain
        )
        if reason is not None:
            declined.update(dict.fromkeys(subset.items, reason))
    return declined


def _crossing(inside: Sequence[Node], readers: Mapping[int, int]) -> Sequence[TensorSpec]:
    """The tensors that a partition reads from the host or writes for it.

    Tensors without a reader are results of the graph.

    Args:
        inside: the partition.
        readers: how many nodes of the plan read each tensor.
    """
    own = Counter(i for node in inside for i in {*node.operator.inputs})
    read = {i: s for n in inside for i, s in zip(n.operator.inputs, n.inputs, strict=True)}
    made = {i: s for n in inside for i, s in zip(n.operator.outputs, n.outputs, strict=True)}
    entering = {i: s for i, s in read.items() if i not in made}
    leaving = {i: s for i, s in made.items() if readers[i] > own[i] or i not in read}
    specs = (entering | leaving).values()
    return [spec for spec in specs if spec is not None and spec.const is None]


def _nodes(row: Node | DelegatedNodes) -> Sequence[Node]:
    return (row,) if isinstance(row, Node) else row.nodes


def _rows(
    plan: Rows, subsets: Iterable[Subset], reasons: Mapping[int, str | None], once: bool
) -> Iterable[NodeReport]:
    taken = [subset for subset in subsets if subset.is_delegated]
    partitions = {i: number for number, subset in enumerate(taken) for i in subset.items}
    for position, row in enumerate(plan):
        if isinstance(row, Node):
            yield _report(row, partitions.get(position), reasons[position] or _NOT_KEPT, once)
        else:
            taker = f"taken by {row.delegate}"
            yield from (_report(node, None, taker, once) for node in row.nodes)


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
