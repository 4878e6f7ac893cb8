"""Lowers the functions of a model for JAX to trace.

A function that JAX traces is lowered in a form for CPUs and in a neutral form; XLA selects one when
it compiles. The form for CPUs uses algorithms (tap sums, Winograd, blocks) that suit no other
device. They help gradients as well: on a Zen 4, MobileNet v1 takes a third of the time that it
takes with XLA:CPU's convolutions (bench/gradients.py). The neutral form consists of plain
convolutions and products, which XLA fuses and differentiates well on all devices. (A delegate's
programs for a GPU expand small convolutions, which is good for inference only.) A function that is
traced on a machine with only a CPU may be compiled or exported for another device. So the trace
contains both forms, and `jax.lax.platform_dependent` selects one of them for each program.
"""

import dataclasses
from collections.abc import Callable, Hashable, Mapping
from typing import Any

from jax import lax

from jaxdelegate.compile import precision_policy
from jaxdelegate.compile.compilation import why_not_in
from jaxdelegate.function.context import Ends, ModelContext
from jaxdelegate.function.mode import PLATFORMS
from jaxdelegate.lowering import error_probe
from jaxdelegate.lowering.callees import Callees
from jaxdelegate.lowering.computation import LoweredPartition
from jaxdelegate.lowering.partition import lower_partition
from jaxdelegate.lru_cache import LruCache
from jaxdelegate.op_lowering.precision import PrecisionPolicy
from jaxdelegate.op_lowering.rule import KernelSet, LoweringContext
from jaxdelegate.plan.whole import Shapes, WholePlan, WholePlans

_DEFAULT = "default"  # the form for all platforms that have none of their own
_NEUTRAL = "tpu"  # whose rules do not expand operators that libraries or compilers have


class Lowerings:
    """The lowerings of one subgraph for traces, with weights in the file's layout."""

    def __init__(self, model: ModelContext, ends: Ends, plans: WholePlans) -> None:
        self._subgraphs, self._trainable = model.subgraphs, model.trainable
        self._index, self._inputs, _ = ends
        self._plans, self._compiler = plans, model.compilers.traced
        most = model.view.options.max_programs
        self._lowered: LruCache[Hashable, LoweredPartition] = LruCache(most)

    @property
    def platform(self) -> str:
        """The options' platform, or JAX's default one."""
        return self._compiler.platform

    def declared(self, *, learns: bool) -> LoweredPartition:
        """The lowering for the declared shapes and any platform, which determines the weights."""
        tensors = self._subgraphs[self._index].tensors
        shapes = tuple(tensors[i].shape for i in self._inputs)
        context = next(iter(self._contexts(None).values()))
        return self._partition(shapes, context, learns=learns)

    def by_platform(
        self, shapes: Shapes, platform: str | None, *, learns: bool
    ) -> dict[str, LoweredPartition]:
        """The forms of a trace, by jax's platform; with `learns`, scales are weights.

        `platform` is the only one; None: those that XLA may compile for.
        """
        contexts = self._contexts(platform)
        plan = self._plans.plan(shapes)
        possible = {name: c for name, c in contexts.items() if not plan.refused(why_not_in(c))}
        if not possible:
            self._taken(shapes, next(iter(contexts.values())))
        return {n: self._partition(shapes, c, learns=learns) for n, c in possible.items()}

    def _contexts(self, platform: str | None) -> dict[str, LoweringContext]:
        """The lowering contexts of a trace by jax's platform, `_DEFAULT` for all others."""
        if platform is not None:
            return {_DEFAULT: self._context_on(PLATFORMS[platform])}
        default = self._compiler.context.platform
        if self._compiler.options.platform is not None or default != "cpu":
            return {_DEFAULT: self._context_on(default)}
        cpu, gpu, tpu = map(self._context_on, ("cpu", "gpu", "tpu"))
        if tpu.precision == gpu.precision:
            return {"cpu": cpu, _DEFAULT: tpu}
        return {"cpu": cpu, "cuda": gpu, "rocm": gpu, _DEFAULT: tpu}

    def _context_on(self, platform: str) -> LoweringContext:
        context = self._compiler.context
        precision = context.precision
        if platform != context.platform:
            precision = precision_policy.policy_here(self._compiler.options, platform)
        form = "cpu" if platform == "cpu" else _NEUTRAL
        return dataclasses.replace(context, platform=form, precision=precision, kernels=KernelSet())

    def _partition(
        self, shapes: Shapes, context: LoweringContext, *, learns: bool
    ) -> LoweredPartition:
        learned = frozenset(self._trainable.by_place if learns else ())
        key = shapes, context, learns
        return self._lowered.get(key, lambda: self._new_partition(shapes, context, learned))

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


def for_platform(forms: Mapping[str, Callable[..., Any]], *arguments: Any) -> Any:
    """Call the form, of `Lowerings.by_platform`, for the platform that XLA compiles for.

    All forms return the same shapes and dtypes; arguments are arrays, or pytrees of them.
    """
    if list(forms) == [_DEFAULT]:
        return forms[_DEFAULT](*arguments)
    return lax.platform_dependent(*arguments, **forms)
