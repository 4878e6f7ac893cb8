"""Which operators a delegate took, and why it left the others."""

import dataclasses
from collections import Counter
from collections.abc import Iterable


@dataclasses.dataclass(frozen=True)
class NodeReport:
    """One operator: where it runs, and if on the host, why."""

    index: int
    op: str
    op_code: int
    version: int
    delegated: bool
    reason: str | None
    partition: int | None


@dataclasses.dataclass(frozen=True)
class DelegationReport:
    """What became of every operator of a graph. `str()` is a table that ends in a summary line."""

    delegate: str
    device: str  # as it is in a reason: "the GPU", "XLA:CPU"
    nodes: tuple[NodeReport, ...]
    subgraph: int = 0
    remark: str = ""  # a reason of the delegate's about how it runs what it took

    @property
    def delegated(self) -> tuple[NodeReport, ...]:
        """The operators that the delegate runs."""
        return tuple(node for node in self.nodes if node.delegated)

    @property
    def left(self) -> tuple[NodeReport, ...]:
        """The operators that stay on the host."""
        return tuple(node for node in self.nodes if not node.delegated)

    @property
    def n_partitions(self) -> int:
        """How many partitions the delegate runs."""
        return len({node.partition for node in self.delegated})

    def summary(self) -> str:
        """TFLite's line of how many operations run where."""
        n, m = len(self.delegated), len(self.left)
        if not n:
            return (
                f"No operations will run on {self.device}, "
                f"and all {m} operations will run on the CPU."
            )
        parts = f"{self.n_partitions} partition{'s' if self.n_partitions > 1 else ''}"
        if not m:
            return f"All {n} operations will run on {self.device}, in {parts}."
        return (
            f"{n} operations will run on {self.device}, and the remaining {m} operations"
            f" will run on the CPU; {parts}."
        )

    def reasons(self) -> str:
        """What stays on the host, grouped by reason, the most frequent first; empty for none."""
        counts = Counter((node.op, node.reason or "") for node in self.left)
        where = {
            key: [n.index for n in self.left if (n.op, n.reason or "") == key] for key in counts
        }
        lines = [
            f"{op}: {reason} ({count} operator{'s' * (count > 1)}: {_some(where[op, reason])})"
            for (op, reason), count in counts.most_common()
        ]
        return "\n".join(lines)

    def __str__(self) -> str:
        """A table of all operators, then the delegate's remark and the summary."""
        rows = [("#", "operator", "version", "runs on", "why not delegated")]
        rows += [
            (
                str(n.index),
                n.op,
                str(n.version),
                f"partition {n.partition}" if n.delegated else "CPU",
                n.reason or "",
            )
            for n in self.nodes
        ]
        widths = [max(len(row[i]) for row in rows) for i in range(4)]
        lines = [
            "  ".join([*(c.ljust(w) for c, w in zip(row, widths, strict=False)), row[4]])
            for row in rows
        ]
        end = [*([self.remark] if self.remark else []), self.summary()]
        return "\n".join([f"{self.delegate} delegate", *(line.rstrip() for line in lines), *end])


def _some(indices: list[int]) -> str:
    shown = ", ".join(f"#{i}" for i in indices[:8])
    return shown + (", ..." if len(indices) > 8 else "")


def fully_delegated(
    delegate: str, device: str, nodes: Iterable[tuple[int, str, int, int]]
) -> DelegationReport:
    """The report of a graph that is one partition.

    Args:
        delegate: its name.
        device: as of DelegationReport.
        nodes: index, operator, its code and version, of each.
    """
    rows = (NodeReport(*node, delegated=True, reason=None, partition=0) for node in nodes)
    return DelegationReport(delegate, device, tuple(rows))
