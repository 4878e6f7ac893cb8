"""A subgraph for certain input shapes: its nodes and tensors, and why XLA cannot run some."""

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence

from jaxdelegate.compile.compilation import why_not
from jaxdelegate.errors import DelegationError
from jaxdelegate.function.states import ONCE
from jaxdelegate.lru_cache import LruCache
from jaxdelegate.model.records import Subgraph
from jaxdelegate.op_lowering.rule import LoweringContext
from jaxdelegate.op_lowering.spec import Shape, TensorSpec
from jaxdelegate.passes.propagation import reads_and_writes
from jaxdelegate.runtime.subgraph import Host, ModelStore
from jaxdelegate.simple_delegate import Node
from jaxdelegate.text import printable

Shapes = tuple[Shape, ...]


@dataclasses.dataclass(frozen=True)
class Planned:
    """A subgraph for certain input shapes: nodes, specs by tensor, and the outputs they make."""

    nodes: tuple[Node, ...]
    specs: Mapping[int, TensorSpec]
    outputs: tuple[int, ...]

    def refused(self, context: LoweringContext) -> list[tuple[Node, str]]:
        """The nodes that XLA cannot run, and why."""
        asked = (
            (node, None if node.is_constant else why_not(node, context)) for node in self.nodes
        )
        return [(node, reason) for node, reason in asked if reason is not None]


class Plans:
    """The plans of a subgraph, made once for every input-shape signature."""

    def __init__(
        self,
        subgraph: Subgraph,
        inputs: tuple[int, ...],
        outputs: tuple[int, ...],
        store: Callable[[], ModelStore],
        most: int,
    ) -> None:
        """Plan nothing yet.

        Args:
            subgraph: as the file has it.
            inputs: tensors to be given.
            outputs: tensors to be returned.
            store: makes an empty store of the model.
            most: how many plans to keep.
        """
        self._subgraph, self._inputs, self._outputs = subgraph, inputs, outputs
        self._store = store
        self._plans: LruCache[Shapes, Planned] = LruCache(most)

    def plan(self, shapes: Shapes) -> Planned:
        """The nodes and tensors for such inputs.

        Raises:
            InterpreterError: an operator refuses the shapes.
        """
        return self._plans.get(shapes, lambda: self._planned(shapes))

    def all_taken(self, shapes: Shapes, context: LoweringContext) -> Planned:
        """The plan, if XLA can run all of it.

        Raises:
            DelegationError: it cannot; lists the operators by reason.
            InterpreterError: a CPU would need more memory than the limits allow.
        """
        plan = self.plan(shapes)
        if context.platform == "cpu":
            operators = reads_and_writes(node.operator for node in plan.nodes)
            self._store().limits.check_graph(operators, plan.specs, (*self._inputs, *plan.outputs))
        refused = plan.refused(context)
        if refused:
            raise DelegationError("XLA cannot run the whole model:\n" + _by_reason(refused))
        return plan

    def _planned(self, shapes: Shapes) -> Planned:
        host = Host(self._subgraph, model=self._store())
        for index, shape in zip(self._inputs, shapes, strict=True):
            host.resize(index, tuple(shape))
        host.plan()
        nodes = tuple(node for node in host.nodes() if node.name != ONCE)  # see `States`
        made = [i for i in self._outputs if i not in self._inputs]
        specs = {t.index: host.spec(t.index) for t in host.subgraph.tensors}
        return Planned(nodes, specs, tuple(dict.fromkeys(made)))


def _by_reason(refused: Sequence[tuple[Node, str]]) -> str:
    """A line for each reason and operator: who, and why."""

    def what(row: tuple[Node, str]) -> tuple[str, str]:
        return row[0].name, row[1]

    lines = []
    for (name, reason), rows in itertools.groupby(sorted(refused, key=what), what):
        numbers = ", ".join(f"#{node.index}" for node, _ in rows)
        lines.append(printable(f"{numbers} {name}: {reason}"))
    return "\n".join(lines)
