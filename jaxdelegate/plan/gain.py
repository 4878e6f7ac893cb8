"""Whether a partition can gain: the host's time for its operators against its transfer cost.

A pure function of specs. Times are estimates. The device's own time is not estimated: `min_gain`
stands for it.
"""

import dataclasses
from collections.abc import Iterable, Sequence

from jaxdelegate.costs import Cost, operator_cost, specs_bytes
from jaxdelegate.op_lowering.spec import Specs, TensorSpec
from jaxdelegate.simple_delegate import Node, TransferCost


@dataclasses.dataclass(frozen=True)
class HostSpeed:
    """How long a host's own kernels take."""

    call: float  # seconds for each operator, however small
    operation: float  # seconds for each arithmetic operation
    transcendental: float  # seconds for each exponential, logarithm, root or similar, in addition
    byte: float  # seconds for each byte read or written

    def seconds(self, cost: Cost) -> float | None:
        """The time for one operator; None if it depends on data."""
        if cost.flops is None or cost.bytes is None:
            return None
        return (
            self.call
            + self.operation * cost.flops
            + self.transcendental * cost.transcendentals
            + self.byte * cost.bytes
        )


# Rounded from bench/handover.py on a server's CPU. LITERT is about half of XNNPACK's speed there.
REFERENCE = HostSpeed(call=10e-6, operation=5e-10, transcendental=1e-10, byte=1.5e-10)
LITERT = HostSpeed(call=2e-7, operation=2.5e-11, transcendental=5e-10, byte=5e-11)
# The host may have no kernel for other dtypes and for custom operators.
_COMMON = frozenset(("bool", "float32", "int8", "uint8", "int16", "int32", "int64"))


def host_seconds(nodes: Iterable[Node], speed: HostSpeed) -> float | None:
    """The host's time for some nodes; None: unknown, or the host may lack a kernel for one.

    Custom operators, and operators with dtypes that few of LiteRT's kernels support, may run only
    on the delegate.
    """
    total = 0.0
    for node in nodes:
        if node.is_constant:
            continue
        inputs, outputs = _hinted(node.inputs), _hinted(node.outputs)
        is_common = all(s is None or s.dtype.name in _COMMON for s in (*inputs, *outputs))
        if node.operator.custom or not is_common:
            return None
        cost = operator_cost(node.name, node.operator.options, inputs, outputs)
        seconds = speed.seconds(cost)
        if seconds is None:
            return None
        total += seconds
    return total


def _hinted(specs: Iterable[TensorSpec]) -> Specs:
    """With the file's shapes where data decide, if those have a size."""
    return tuple(
        dataclasses.replace(spec, is_dynamic=False)
        if spec is not None and spec.is_dynamic and min(spec.shape, default=1) > 0
        else spec
        for spec in specs
    )


def gains_alone(node: Node, speed: HostSpeed, cost: TransferCost, min_gain: float) -> bool:
    """Whether a partition gains more with a node than without it; True if that is unknown."""
    alone = host_seconds([node], speed)
    return alone is None or alone > min_gain * cost.operator


def why_not_gaining(
    nodes: Sequence[Node],
    crossing: Iterable[TensorSpec],
    speed: HostSpeed,
    cost: TransferCost,
    min_gain: float,
) -> str | None:
    """Why a partition is not worth its transfer cost; None if it may be.

    `crossing` are the tensors that it reads from the host or writes for it. The host must need
    `min_gain` times the cost of one call.
    """
    alone = host_seconds(nodes, speed)
    crossed = specs_bytes(_hinted(crossing))
    if alone is None or crossed is None:
        return None
    count = sum(not node.is_constant for node in nodes)
    overhead = cost.call + cost.byte * crossed + cost.operator * count
    if alone >= min_gain * overhead:
        return None
    return (
        f"its partition gains too little (about {_microseconds(alone)} on the CPU, "
        f"{_microseconds(overhead)} of overhead); min_gain=0 delegates it"
    )


def _microseconds(seconds: float) -> str:
    return f"{max(1, round(1e6 * seconds))} us"
