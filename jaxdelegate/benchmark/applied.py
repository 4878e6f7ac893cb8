"""What became of each delegate that was applied to a model."""

import dataclasses
from collections.abc import Sequence

from jaxdelegate.benchmark.session import Session
from jaxdelegate.errors import DelegationError
from jaxdelegate.providers import ProvidedDelegate
from jaxdelegate.simple_delegate import SimpleDelegate

NO_FALLBACK = "Disallowed CPU fallback detected."  # TFLite's words


@dataclasses.dataclass(frozen=True)
class AppliedDelegate:
    """One delegate: its provider's name and what it took.

    `operators` and `taken` are None for compiled delegates, which do not tell.
    """

    name: str
    kernels: int
    is_complete: bool
    operators: int | None = None
    taken: int | None = None
    reasons: str = ""  # why operators were left, one line for each kind
    remark: str = ""  # how it runs what it took

    def line(self) -> str:
        """TFLite's message."""
        if self.is_complete:
            return (
                f"Explicitly applied {self.name} delegate, and the model graph will be completely "
                "executed by the delegate."
            )
        if self.kernels:
            return (
                f"Explicitly applied {self.name} delegate, and the model graph will be partially "
                f"executed by the delegate w/ {self.kernels} delegate kernels."
            )
        return (
            f"Though {self.name} delegate is explicitly applied, the model graph will not be "
            "executed by the delegate."
        )


def applied(session: Session, made: Sequence[ProvidedDelegate]) -> list[AppliedDelegate]:
    """What each delegate took of the session's subgraph."""
    return [
        _of_ours(row.provider.name, row.delegate, session.subgraph)
        if isinstance(row.delegate, SimpleDelegate)
        else _of_stock(row.provider.name, session)
        for row in made
    ]


def _of_ours(name: str, delegate: SimpleDelegate, subgraph: int) -> AppliedDelegate:
    try:
        report = delegate.report(subgraph)
    except LookupError:  # the graph had nothing left to ask it about
        return AppliedDelegate(name, 0, is_complete=False, operators=0, taken=0)
    taken = len(report.delegated)
    return AppliedDelegate(
        name,
        report.n_partitions,
        is_complete=taken > 0 and not report.left,
        operators=len(report.nodes),
        taken=taken,
        reasons=report.reasons(),
        remark=report.remark,
    )


def _of_stock(name: str, session: Session) -> AppliedDelegate:
    """A compiled delegate: what can be seen from outside are the nodes that it put in."""
    interpreter = session.interpreter
    nodes = [op for op in interpreter._get_ops_details() if op["op_name"] == "DELEGATE"]
    made = {int(i) for node in nodes for i in node["outputs"]}
    wanted = {int(d["index"]) for d in session.outputs}
    return AppliedDelegate(name, len(nodes), is_complete=len(nodes) == 1 and wanted <= made)


def require_full_delegation(rows: Sequence[AppliedDelegate]) -> None:
    """Insist that one delegate runs everything, as TFLite's tool does.

    Raises:
        DelegationError: something runs on the CPU.
    """
    if any(row.is_complete for row in rows):
        return
    told = "\n".join(row.reasons for row in rows if row.reasons)
    reasons = f"\n{told}" if told else ""
    raise DelegationError(f"{NO_FALLBACK}{reasons}")
