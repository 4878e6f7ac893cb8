"""How an invoke ends before its time: its timeout, or `cancel` of another thread."""

import math
import time

from jaxdelegate.errors import StoppedError
from jaxdelegate.model.operator_tables import called_subgraphs
from jaxdelegate.passes.static_loops import static_loop
from jaxdelegate.simple_delegate import Node

_LOOPS = ("STABLEHLO_WHILE", "WHILE")


class Stop:
    """What hosts ask before each operator, in called subgraphs and every iteration of a loop too.

    An invoke may take `timeout` seconds; None: any time.
    """

    def __init__(self, timeout: float | None = None) -> None:
        self.timeout = timeout
        self._deadline, self._is_cancelled = math.inf, False

    def begin(self) -> None:
        """An invoke begins: what was cancelled before it does not count."""
        self._is_cancelled = False
        if self.timeout is not None:
            self._deadline = time.monotonic() + self.timeout

    def cancel(self) -> None:
        """End the invoke that runs now; from any thread."""
        self._is_cancelled = True

    def check(self) -> None:
        """Go on."""
        if self._is_cancelled:
            raise StoppedError("invoke was cancelled: cancel() was called while it ran")
        if self.timeout is not None and time.monotonic() > self._deadline:
            raise StoppedError(
                f"invoke took more than its timeout of {self.timeout} s: does a loop of the model "
                "never end? Interpreter(timeout=...) takes a longer one"
            )

    def why_not_delegated(self, node: Node) -> str | None:
        """Why a node stays on the host: a device would not ask in a loop of unknown length."""
        if self.timeout is None or not _may_not_end(node):
            return None
        return (
            "how often its loop runs depends on data, and the interpreter has a timeout: only the "
            "host can end it"
        )


def _may_not_end(node: Node) -> bool:
    """Whether it has a loop that no constant of the file ends soon."""
    called = [index for _, index in called_subgraphs(node.operator.options)]
    if any(_loops(node, index) for index in called):
        return True
    if node.name not in _LOOPS:
        return False
    options = node.operator.options
    first = node.subgraphs[options.cond_subgraph_index]  # type: ignore[attr-defined]
    body = node.subgraphs[options.body_subgraph_index]  # type: ignore[attr-defined]
    return static_loop(first, body, node.inputs) is None


def _loops(node: Node, index: int) -> bool:
    return any(
        operator.name in _LOOPS
        or any(_loops(node, callee) for _, callee in called_subgraphs(operator.options))
        for operator in node.subgraphs[index].operators
    )
