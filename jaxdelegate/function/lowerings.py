"""Lowers a subgraph for transformation by JAX, once for each set of input shapes."""

import dataclasses
from collections.abc import Hashable, Sequence

from jaxdelegate.compile.compilation import why_not_in
from jaxdelegate.compile.compiler import Compiler
from jaxdelegate.function import forms
from jaxdelegate.function.training import Trainable
from jaxdelegate.lowering import error_probe
from jaxdelegate.lowering.callees import Callees
from jaxdelegate.lowering.computation import LoweredPartition
from jaxdelegate.lowering.partition import lower_partition
from jaxdelegate.lru_cache import LruCache
from jaxdelegate.model.records import Subgraph
from jaxdelegate.op_lowering.precision import PrecisionPolicy
from jaxdelegate.op_lowering.rule import LoweringContext
from jaxdelegate.plan.whole import Shapes, WholePlan, WholePlans


class Lowerings:
    """The lowerings of one subgraph, with weights in the file's layout."""

    def __init__(
        self,
        subgraphs: Sequence[Subgraph],
        index: int,
        inputs: tuple[int, ...],
        plans: WholePlans,
        compiler: Compiler,
        trainable: Trainable,
    ) -> None:
        self._subgraphs, self._index, self._inputs = subgraphs, index, inputs
        self._plans, self._trainable = plans, trainable
        self._compiler = compiler
        self._lowered: LruCache[Hashable, LoweredPartition] = LruCache(
            compiler.options.max_programs
        )

    @property
    def platform(self) -> str:
        """The options' platform, or JAX's default one."""
        return self._compiler.platform

    def declared(self, *, learns: bool) -> LoweredPartition:
        """The lowering for the declared shapes and any platform, which determines the weights."""
        tensors = self._subgraphs[self._index].tensors
        shapes = tuple(tensors[i].shape for i in self._inputs)
        context = next(iter(forms.contexts(self._compiler, None).values()))
        return self._partition(shapes, context, learns=learns)

    def by_platform(
        self, shapes: Shapes, platform: str | None, *, learns: bool
    ) -> dict[str, LoweredPartition]:
        """The lowerings of a trace, by platform.

        Args:
            shapes: the inputs' shapes.
            platform: the only platform; None: those that XLA may compile for.
            learns: whether scales are weights.
        """
        contexts = forms.contexts(self._compiler, platform)
        plan = self._plans.plan(shapes)
        possible = {name: c for name, c in contexts.items() if not plan.refused(why_not_in(c))}
        if not possible:
            self._taken(shapes, next(iter(contexts.values())))
        return {n: self._partition(shapes, c, learns=learns) for n, c in possible.items()}

    def _partition(
        self, shapes: Shapes, context: LoweringContext, *, learns: bool
    ) -> LoweredPartition:
        learned = frozenset(self._trainable.by_place if learns else ())
        return self._lowered.get(
            (shapes, context, learns),
            lambda: self._new_partition(shapes, context, learned),
        )

    def _taken(self, shapes: Shapes, context: LoweringContext) -> WholePlan:
        on_cpu = context.platform == "cpu"
        return self._plans.all_taken(shapes, why_not_in(context), on_cpu=on_cpu)

    def _new_partition(
        self, shapes: Shapes, context: LoweringContext, learned: frozenset[tuple[int, int]]
    ) -> LoweredPartition:
        plan = self._taken(shapes, context)

        def lower(precision: PrecisionPolicy) -> LoweredPartition:
            own = dataclasses.replace(context, precision=precision)
            return lower_partition(
                [node.operator for node in plan.nodes],
                plan.specs,
                self._inputs,
                plan.outputs,
                Callees(self._subgraphs, own, learned).in_context(),
                raw_weights=True,
                learned={i for s, i in learned if s == self._index},
            )

        if self._compiler.checks_precision:
            return lower(error_probe.guarded(lower, context.precision, self._compiler.device))
        return lower(context.precision)
