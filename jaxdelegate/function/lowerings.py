"""Compilers and lowerings of a model's functions.

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
import functools
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import jax
from jax import lax

from jaxdelegate.compile import precision_policy
from jaxdelegate.compile.compilation import why_not_in
from jaxdelegate.compile.compiler import Compiler
from jaxdelegate.compile.target import AbsentTarget, Target
from jaxdelegate.errors import OptionError
from jaxdelegate.function.mode import PLATFORMS
from jaxdelegate.function.training.trainable import Trainable
from jaxdelegate.function.views import View
from jaxdelegate.lowering import error_probe
from jaxdelegate.lowering.callees import Callees
from jaxdelegate.lowering.computation import LoweredPartition
from jaxdelegate.lowering.partition import lower_partition
from jaxdelegate.lru_cache import LruCache
from jaxdelegate.model.records import Subgraph
from jaxdelegate.op_lowering.precision import PrecisionPolicy
from jaxdelegate.op_lowering.rule import LoweringContext
from jaxdelegate.options import DelegateOptions, Platform
from jaxdelegate.pjrt import client
from jaxdelegate.plan.whole import Shapes, WholePlan, WholePlans
from jaxdelegate.xla.options import platform_of
from jaxdelegate.xla.weights import DeviceWeights

_DEFAULT = "default"  # the form for all platforms that have none of their own
_NEUTRAL = "tpu"  # whose rules do not expand operators that libraries or compilers have
_MAX_DEVICES = 64


class Compilers:
    """The compilers of a model's functions: for programs on devices, and for functions to trace."""

    def __init__(self, view: View, weights: DeviceWeights | None = None) -> None:
        """Prepared weights join `weights`."""
        self._options, self._prepared = view.options, view.prepared or view.options
        self._follows_xnnpack, self._weights = view.follows_xnnpack, weights
        self._by_device: LruCache[jax.Device, Compiler] = LruCache(_MAX_DEVICES)

    @functools.cached_property
    def traced(self) -> Compiler:
        """The compiler for functions that JAX transforms, without native kernels."""
        return Compiler(dataclasses.replace(self._options, native_kernels=False))

    @functools.cache  # noqa: B019 (as long as the model)
    def preparing(self, platform: Platform | None) -> tuple[Compiler, DeviceWeights]:
        """The compiler of functions with prepared weights, and the arrays that they share.

        No program uses these arrays, because a caller may donate them. They are on a CPU if the
        platform is not there, so that functions can be exported for it.
        """
        options = self._prepared
        if platform is not None:
            options = dataclasses.replace(options, platform=platform)
        target = None if platform is None else _target(platform, options)
        compiler = Compiler(options, target, follows_xnnpack=self._follows_xnnpack)
        runtime = client.of_jax(compiler.device)
        if self._weights is not None and self._weights.runtime is runtime:
            return compiler, self._weights
        return compiler, DeviceWeights(runtime)

    def on(self, device: jax.Device) -> Compiler:
        def compiler() -> Compiler:
            index = jax.devices(device.platform).index(device)
            own = {"platform": device.platform, "device_index": index}
            return Compiler(dataclasses.replace(self._options, **own))

        return self._by_device.get(device, compiler)


def _target(platform: Platform, options: DelegateOptions) -> Target:
    try:
        return Target(platform, options.device_index)
    except OptionError:
        if platform_of(platform) == "cpu" or options.device_index:
            raise
        return AbsentTarget(platform)


class Lowerings:
    """The lowerings of one subgraph for traces, with weights in the file's layout."""

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
        self._plans, self._trainable, self._compiler = plans, trainable, compiler
        most = compiler.options.max_programs
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
        """The forms of a trace, by jax's platform.

        Args:
            shapes: the inputs' shapes.
            platform: the only platform; None: those that XLA may compile for.
            learns: whether scales are weights.
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
        own = self._compiler.context.platform
        if self._compiler.options.platform is not None or own != "cpu":
            return {_DEFAULT: self._context_on(own)}
        cpu, gpu, tpu = map(self._context_on, ("cpu", "gpu", "tpu"))
        if tpu.precision == gpu.precision:
            return {"cpu": cpu, _DEFAULT: tpu}
        return {"cpu": cpu, "cuda": gpu, "rocm": gpu, _DEFAULT: tpu}

    def _context_on(self, platform: str) -> LoweringContext:
        own = self._compiler.context
        precision = own.precision
        if platform != own.platform:
            precision = precision_policy.policy_here(self._compiler.options, platform)
        form = "cpu" if platform == "cpu" else _NEUTRAL
        return own.without_kernels(platform=form, precision=precision)

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
    """Call the form for the platform that XLA compiles for.

    Args:
        forms: as `Lowerings.by_platform` has them; all return the same shapes and dtypes.
        *arguments: arrays, or pytrees of them.
    """
    if list(forms) == [_DEFAULT]:
        return forms[_DEFAULT](*arguments)
    return lax.platform_dependent(*arguments, **forms)
