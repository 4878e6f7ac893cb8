"""A subgraph as one function: all of its nodes, and why XLA cannot run some."""

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence

from jaxdelegate.errors import DelegationError
from jaxdelegate.lru_cache import LruCache
from jaxdelegate.op_lowering.spec import Shape, TensorSpec
from jaxdelegate.passes.propagation import reads_and_writes
from jaxdelegate.plan.planner import Delegation, EntryPoint, plan
from jaxdelegate.plan.steps import PlannedOperator
from jaxdelegate.simple_delegate import Node
from jaxdelegate.text import printable

Shapes = tuple[Shape, ...]
WhyNot = Callable[[Node], str | None]
_CALL_ONCE = "CALL_ONCE"  # initializes resources: the state of a function holds what it assigns


@dataclasses.dataclass(frozen=True)
class WholePlan:
    """A subgraph for certain input shapes: nodes, specs by tensor, and the outputs they compute."""

    nodes: tuple[Node, ...]
    specs: Mapping[int, TensorSpec]
    outputs: tuple[int, ...]

    def refused(self, why_not: WhyNot) -> list[tuple[Node, str]]:
        reasons = ((node, None if node.is_constant else why_not(node)) for node in self.nodes)
        return [(node, reason) for node, reason in reasons if reason is not None]


class WholePlans:
    """The plans of a subgraph as one function, by input shapes."""

    def __init__(
        self, entry: EntryPoint, inputs: tuple[int, ...], outputs: tuple[int, ...], most: int
    ) -> None:
        self._entry, self._inputs, self._outputs = entry, inputs, outputs
        self._plans: LruCache[Shapes, WholePlan] = LruCache(most)

    def plan(self, shapes: Shapes) -> WholePlan:
        return self._plans.get(shapes, lambda: self._planned(shapes))

    def all_taken(self, shapes: Shapes, why_not: WhyNot, *, on_cpu: bool) -> WholePlan:
        """The plan, if XLA can run all of it.

        Raises:
            DelegationError: it cannot; lists the operators by reason.
            InterpreterError: a CPU would need more memory than the limits allow.
        """
        plan = self.plan(shapes)
        if on_cpu:
            operators = reads_and_writes(node.operator for node in plan.nodes)
            ends = (*self._inputs, *plan.outputs)
            self._entry.limits.check_graph(operators, plan.specs, ends)
        refused = plan.refused(why_not)
        if refused:
            raise DelegationError("XLA cannot run the whole model:\n" + _by_reason(refused))
        return plan

    def _planned(self, shapes: Shapes) -> WholePlan:
        by_tensor = dict(zip(self._inputs, (tuple(s) for s in shapes), strict=True))
        wanted = {**self._entry.declared_shapes, **by_tensor}
        planned = plan(self._entry, wanted, Delegation(may_rebatch=True, is_function=True))
        operators = (s.node for s in planned.steps if isinstance(s, PlannedOperator))
        nodes = tuple(node for node in operators if node.name != _CALL_ONCE)
        computed = [i for i in self._outputs if i not in self._inputs]
        return WholePlan(nodes, dict(enumerate(planned.specs)), tuple(dict.fromkeys(computed)))


def _by_reason(refused: Sequence[tuple[Node, str]]) -> str:
    def key(row: tuple[Node, str]) -> tuple[str, str]:
        return row[0].name, row[1]

    lines = []
    for (name, reason), rows in itertools.groupby(sorted(refused, key=key), key):
        numbers = ", ".join(f"#{node.index}" for node, _ in rows)
        lines.append(printable(f"{numbers} {name}: {reason}"))
    return "\n".join(lines)
