"""The report of which operators a delegate takes, and why not the others."""

import dataclasses
import re
from collections.abc import Container, Iterable
from typing import Any, Self

from jaxdelegate.report.tables import table
from jaxdelegate.text import plural, printable, shortened, wrapped

HINT = "The report of the delegate, `print(delegate.report())`, has every operator."

_CAUSES, _NAMES = 7, 4  # lines of causes, and operators that a line names
# What differs in reasons of one cause, and what it becomes.
_PARTICULARS = (
    (re.compile(r"the shape of '[^']*'"), "a shape"),
    (re.compile(r"'[^']*'"), "a tensor"),
    (re.compile(r" \(about [^)]*\)"), ""),
)
_CONSEQUENCE = "depends on data"  # usually a consequence of other operators on the host


@dataclasses.dataclass(frozen=True)
class NodeReport:
    """Where one operator runs.

    Attributes:
        index: its position in the subgraph.
        op: its name.
        op_code: its code in the file.
        version: its version.
        delegated: whether the delegate runs it.
        reason: why it stays on the host; None: it does not.
        partition: the partition that has it; None: it stays on the host.
        once: whether it only initializes the model. No delegate needs to take such an operator.
    """

    index: int
    op: str
    op_code: int
    version: int
    delegated: bool
    reason: str | None
    partition: int | None
    once: bool = False


@dataclasses.dataclass(frozen=True)
class DelegationReport:
    """Where every operator of a graph runs. `str()` is a table with a summary line."""

    delegate: str
    device: str  # as reasons name it: "the GPU", "XLA:CPU"
    nodes: tuple[NodeReport, ...]
    subgraph: int = 0
    remark: str = ""  # the delegate's, about how it runs its operators

    @property
    def delegated(self) -> tuple[NodeReport, ...]:
        """The operators that the delegate runs."""
        return tuple(node for node in self.nodes if node.delegated)

    @property
    def left(self) -> tuple[NodeReport, ...]:
        """The operators that stay on the host, without those that only initialize the model."""
        return tuple(node for node in self.nodes if not node.delegated and not node.once)

    @property
    def initializing(self) -> tuple[NodeReport, ...]:
        """The operators that run once, on the host, to initialize the model (CALL_ONCE)."""
        return tuple(node for node in self.nodes if node.once and not node.delegated)

    @property
    def n_partitions(self) -> int:
        """The number of partitions that the delegate runs."""
        return len({node.partition for node in self.delegated})

    def without(self, indices: Container[int], reason: str) -> Self:
        """The report with these delegated operators moved back to the host, for a reason."""
        left: dict[str, Any] = {"delegated": False, "partition": None, "reason": reason}
        nodes = (dataclasses.replace(n, **left) if n.index in indices else n for n in self.nodes)
        return dataclasses.replace(self, nodes=tuple(nodes))

    def summary(self) -> str:
        """TFLite's line about how many operations run where."""
        once = len(self.initializing)
        more = f" {once} more initialize{'s' * (once == 1)} the model once." if once else ""
        return f"{self._counts()}{more}"

    def _counts(self) -> str:
        n, m = len(self.delegated), len(self.left)
        if self.initializing and not n + m:
            return "There is nothing to delegate."
        if not n:
            return f"No operations will run on {self.device}, and {_all(m)} will run on the CPU."
        parts = plural(self.n_partitions, "partition")
        if not m:
            return f"{_all(n).capitalize()} will run on {self.device}, in {parts}."
        return (
            f"{plural(n, 'operation')} will run on {self.device}, and the remaining "
            f"{plural(m, 'operation')} will run on the CPU; {parts}."
        )

    def reasons(self) -> str:
        """The operators on the host, grouped by reason, the most frequent first; may be empty."""
        where: dict[tuple[str, str], list[int]] = {}
        for n in self.left:
            where.setdefault((n.op, n.reason or ""), []).append(n.index)
        lines = [
            f"{op}: {reason} ({_some(indices)})"
            for (op, reason), indices in sorted(where.items(), key=lambda item: -len(item[1]))
        ]
        return "\n".join(map(printable, lines))

    def causes(self) -> list[str]:
        """The operators on the host, at most eight lines, one for each cause; may be empty.

        Reasons that differ only in the tensor or the estimate that they name have one cause. Shapes
        that depend on data come last: usually operators in the lines above cause them.
        """
        causes: dict[str, list[NodeReport]] = {}
        for node in self.left:
            causes.setdefault(_cause(node.reason or "no reason"), []).append(node)
        order = sorted(causes, key=lambda cause: (_CONSEQUENCE in cause, -len(causes[cause])))
        lines = [_cause_line(cause, causes[cause]) for cause in order[:_CAUSES]]
        if len(order) > _CAUSES:
            rest = sum(len(causes[cause]) for cause in order[_CAUSES:])
            reasons = plural(len(order) - _CAUSES, "other reason")
            lines.append(f"{plural(rest, 'more operator')}, for {reasons}")
        return [printable(line) for line in lines]

    def __str__(self) -> str:
        rows = [("#", "operator", "version", "runs on", "why not delegated")]
        rows += [
            (
                str(n.index),
                shortened(printable(n.op)),
                str(n.version),
                f"partition {n.partition}" if n.delegated else "CPU",
                printable(n.reason or ""),
            )
            for n in self.nodes
        ]
        end = [*([self.remark] if self.remark else []), self.summary()]
        return "\n".join([f"{self.delegate} delegate", *table(rows), *map(wrapped, end)])


def _cause(reason: str) -> str:
    for particular, general in _PARTICULARS:
        reason = particular.sub(general, reason)
    return reason


def _cause_line(cause: str, nodes: list[NodeReport]) -> str:
    """`ADD, MUL and 3 more: ... (12 operators: #1, #2, ...)`."""
    names = list(dict.fromkeys(shortened(node.op) for node in nodes))
    more = f" and {len(names) - _NAMES} more" if len(names) > _NAMES else ""
    indices = _some([node.index for node in nodes])
    return f"{', '.join(names[:_NAMES])}{more}: {cause} ({indices})"


def _some(indices: list[int]) -> str:
    shown = ", ".join(f"#{i}" for i in indices[:8])
    rest = ", ..." if len(indices) > 8 else ""
    return f"{plural(len(indices), 'operator')}: {shown}{rest}"


def _all(count: int) -> str:
    return f"{'the' if count == 1 else 'all'} {plural(count, 'operation')}"


def fully_delegated(
    delegate: str, device: str, nodes: Iterable[tuple[int, str, int, int]]
) -> DelegationReport:
    """The report of one partition; `nodes` are index, operator, operator code and version."""
    rows = (NodeReport(*node, delegated=True, reason=None, partition=0) for node in nodes)
    return DelegationReport(delegate, device, tuple(rows))
