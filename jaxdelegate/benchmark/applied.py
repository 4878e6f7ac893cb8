"""What each delegate that was applied to a model runs of it."""

import dataclasses
from collections.abc import Sequence

from jaxdelegate.benchmark.session import Session
from jaxdelegate.errors import DelegationError
from jaxdelegate.providers import ProvidedDelegate
from jaxdelegate.simple_delegate import SimpleDelegate

NO_FALLBACK = "Disallowed CPU fallback detected."  # TFLite's words


@dataclasses.dataclass(frozen=True)
class AppliedDelegate:
    name: str
    kernels: int  # partitions
    is_complete: bool  # whether it runs the whole graph
    # Operators that it was offered; None: a compiled delegate does not say.
    operators: int | None = None
    taken: int | None = None  # operators that it runs; None: a compiled delegate does not say
    reasons: str = ""  # why it does not run the others, a line for each kind
    remark: str = ""  # how it runs its operators

    def line(self) -> str:
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


def applied(session: Session, provided: Sequence[ProvidedDelegate]) -> list[AppliedDelegate]:
    return [
        _of_python(row.provider.name, row.delegate, session.subgraph)
        if isinstance(row.delegate, SimpleDelegate)
        else _of_compiled(row.provider.name, session)
        for row in provided
    ]


def _of_python(name: str, delegate: SimpleDelegate, subgraph: int) -> AppliedDelegate:
    try:
        report = delegate.report(subgraph)
    except LookupError:  # no operator was left to offer it
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


def _of_compiled(name: str, session: Session) -> AppliedDelegate:
    """A compiled delegate: only the nodes that it inserted are visible."""
    interpreter = session.interpreter
    nodes = [op for op in interpreter._get_ops_details() if op["op_name"] == "DELEGATE"]
    produced = {int(i) for node in nodes for i in node["outputs"]}
    outputs = {int(d["index"]) for d in session.outputs}
    return AppliedDelegate(name, len(nodes), is_complete=len(nodes) == 1 and outputs <= produced)


def require_full_delegation(rows: Sequence[AppliedDelegate]) -> None:
    """Check that one delegate runs everything, as TFLite's tool does; else a DelegationError."""
    if any(row.is_complete for row in rows):
        return
    raise DelegationError("\n".join([NO_FALLBACK, *(r.reasons for r in rows if r.reasons)]))
