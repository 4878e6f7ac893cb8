"""What a delegate's options mean on a device: which operators XLA runs, and how it compiles them.

Delegates, functions and tools all compile with a Compiler. Neither this module nor its imports need
jax, so that a process with stored programs runs without it.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import threading
import time
import weakref
from collections.abc import Mapping, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any

from jaxdelegate.cache.programs import ProgramCache
from jaxdelegate.cache.records import VERDICTS
from jaxdelegate.compile.programs import GraphState, ProgramKey, RecentPrograms, programs_of
from jaxdelegate.compile.target import Target, compilation_module
from jaxdelegate.compile.varying_shapes import VaryingShapes
from jaxdelegate.errors import OptionError
from jaxdelegate.kernels import library as kernels
from jaxdelegate.options import (
    SPLIT_PRODUCTS,
    DelegateOptions,
    is_on,
    native_kernels_by_default,
)
from jaxdelegate.pjrt import client, jax_settings

if TYPE_CHECKING:
    from collections.abc import Hashable

    from jaxdelegate.compile.compilation import Compilation
    from jaxdelegate.device_weights import ModelWeights
    from jaxdelegate.op_lowering.rule import LoweringContext
    from jaxdelegate.op_lowering.spec import TensorSpec
    from jaxdelegate.program import Partition, Program
    from jaxdelegate.simple_delegate import GraphKey, Node
    from jaxdelegate.tuning.selector import Tuner
    from jaxdelegate.xla.over_mesh import OverMesh

_LOGGER = logging.getLogger("jaxdelegate")
# Options that neither programs nor the choice of what is compiled depend on.
_NOT_IN_KEYS = ("serialization_dir", "rebatch", "pad_batch", "max_programs", "max_program_bytes")


class Compiler:
    """Compiles partitions under some options for one device.

    Attributes:
        options: what is computed, and how; `native_kernels` is never None on a CPU.
        target: the device.
        cache: the directory of compiled programs; None: they are not stored.
        compiled: how many programs it compiled, because neither memory nor the cache had them.
        varying_shapes: warns of many shapes; None: many are intended.
    """

    def __init__(
        self,
        options: DelegateOptions,
        target: Target | None = None,
        *,
        follows_xnnpack: bool = False,
    ) -> None:
        """Compile nothing yet; without a `target`, the device is that of the options.

        For `follows_xnnpack` see `ProgramTraits`.
        """
        client.check_process()
        self._follows_xnnpack = follows_xnnpack
        self.target = target or Target(options.platform, options.device_index)
        if options.native_kernels is None and self.platform == "cpu":
            options = dataclasses.replace(options, native_kernels=native_kernels_by_default())
        self.options = options
        self.is_native = _calls_native_kernels(options.native_kernels, self.platform)
        if options.rewrites not in ("all", "none"):
            _ = self.rewrites  # the names may be wrong
        if options.compute_dtype not in (None, "float32"):
            _ = self.context  # logs which of it has no effect
        self.compiled = 0
        self.varying_shapes: VaryingShapes | None = VaryingShapes(options.max_programs)
        # What it uses of each model, which would be dropped otherwise.
        self._recent: MutableMapping[Any, dict[Hashable, RecentPrograms]] = (
            weakref.WeakKeyDictionary()
        )
        self._lock = threading.Lock()
        self.cache: ProgramCache | None = None
        if options.serialization_dir:
            self.cache = ProgramCache.open(options.serialization_dir)

    @property
    def platform(self) -> str:
        """One of "cpu", "gpu" and "tpu"."""
        return self.target.platform

    @property
    def device(self) -> Any:
        return self.target.device

    @functools.cached_property
    def context(self) -> LoweringContext:
        """What lowering depends on besides the operator."""
        from jaxdelegate.compile import precision_policy  # noqa: PLC0415 (see the module's docstring)
        from jaxdelegate.op_lowering.rule import (  # noqa: PLC0415
            KernelSet,
            LoweringContext,
            ProgramTraits,
        )

        precision = precision_policy.policy_here(self.options, self.platform)
        remark = precision_policy.remark(self.options, self.platform, precision)
        if remark is not None:
            _LOGGER.warning(remark)
        quant_mode = precision_policy.quant_mode(self.options, self.platform)
        return LoweringContext(
            platform=self.platform,
            precision=precision,
            quant_mode=quant_mode,
            enable_quant=self.options.enable_quant,
            kernels=KernelSet(
                cpu=self.is_native,
                cpu_bfloat16=self.is_native and kernels.multiplies_bfloat16(),
                cpu_int8_sums=self.is_native and kernels.adds_int8_products(),
                triton=self.options.native_kernels is not False and self.target.runs_triton,
                mosaic=self.options.native_kernels is not False and self.platform == "tpu",
                processors=self.target.processors or KernelSet.processors,
                splits_products=bool(self._switches),
            ),
            program=ProgramTraits(
                may_use_floats=self.options.quant_mode == "auto" and quant_mode == "integer",
                follows_xnnpack=self._follows_xnnpack,
            ),
        )

    @functools.cached_property
    def remark(self) -> str | None:
        """The warning that a requested dtype is ignored; None if it is used."""
        from jaxdelegate.compile import precision_policy  # noqa: PLC0415

        return precision_policy.remark(self.options, self.platform, self.context.precision)

    @functools.cached_property
    def rewrites(self) -> tuple[str, ...]:
        from jaxdelegate.lowering.rewrites import registry  # noqa: PLC0415

        return registry.enabled(self.options.rewrites)

    @functools.cached_property
    def tuner(self) -> Tuner:
        from jaxdelegate.tuning.selector import Tuner  # noqa: PLC0415

        store = None if self.cache is None else self.cache.choices(self.device)
        return Tuner(self.options.inference_preference, self.device, store)

    @property
    def checks_precision(self) -> bool:
        """Whether each partition is checked for operators that need float32."""
        options = self.options
        return options.compute_dtype == "auto" and options.float32_operators is None

    @property
    def compilation(self) -> Compilation:
        """The steps from a partition to a program; imports jax."""
        compilation: Compilation = compilation_module().Compilation(
            context=self.context,
            rewrites=self.rewrites,
            checks_precision=self.checks_precision,
            donates=self.options.donate_inputs,
            tuner=self.tuner,
            device=self.device,
        )
        return compilation

    # ---- which operators XLA runs

    def why_not(self, node: Node) -> str | None:
        """The rule's reason why XLA cannot run a node; None: it can. Constants need no rule."""
        if node.is_constant:
            return None
        reason: str | None = compilation_module().why_not(node, self.context)
        return reason

    def runs_in_floats(self, node: Node) -> bool:
        """Whether a quantized node runs in floats although others run in integers."""
        if node.is_constant or not self.context.program.may_use_floats:
            return False
        in_floats: bool = compilation_module().runs_in_floats(node, self.context)
        return in_floats

    def reasons(
        self,
        nodes: Sequence[Node],
        graph: Sequence[Node],
        specs: Mapping[int, TensorSpec],
        state: GraphState,
    ) -> list[str | None]:
        """The rules' reasons for several nodes; the cache keeps those of earlier processes."""
        cache = self.cache
        if cache is None:
            return [self.why_not(node) for node in nodes]
        device = self.target.runtime.device
        key = cache.graph_key(graph, specs, state.known, self.cache_settings(), device)
        stored = (None if key is None else cache.record(VERDICTS, key)) or {}
        asked = {
            node.index: self.why_not(node)
            for node in nodes
            if not node.is_constant and node.index not in stored
        }
        known = {**stored, **asked}
        if key is not None and asked:
            cache.save_record(VERDICTS, key, known)
        return [None if node.is_constant else known[node.index] for node in nodes]

    # ---- programs

    def program(
        self,
        partition: Partition,
        graph: GraphKey,
        shapes: Hashable,
        state: GraphState,
        over: OverMesh | None = None,
    ) -> Program:
        """The program of a partition: from memory, from the cache, or compiled and stored there.

        Args:
            partition: what it computes.
            graph: which graph it is of.
            shapes: the graph's input shapes: with the graph they determine every spec.
            state: what is remembered of the graph.
            over: a mesh whose devices all run it, each on its part; the cache has no such programs.

        Raises:
            LoweringError: it cannot be compiled.
            DeviceMemoryError: the device has no memory for it.
        """
        client.check_process()
        params = partition.params
        nodes = tuple(node.index for node in params.nodes)
        # Not the partition's own input shapes: folded constants may differ where those agree.
        key = ProgramKey(nodes, shapes, params.inputs, params.outputs, params.slices, over)
        state.known.name = graph.name
        programs, group = programs_of(graph.model), self._group(graph)
        recent = programs.recent(group, self.options)
        with self._lock:
            self._recent.setdefault(graph.model, {})[group] = recent
        return programs.get(
            group,
            key,
            recent,
            self.options.max_program_bytes,
            lambda: self._made(graph, key, partition, state),
        )

    def _made(
        self,
        graph: GraphKey,
        key: ProgramKey,
        partition: Partition,
        state: GraphState,
    ) -> Program:
        start, before = time.monotonic(), self.compiled
        program = self._loaded_or_compiled(partition, state, key.over)
        if self.varying_shapes is not None and self.compiled > before:
            seconds = time.monotonic() - start
            self.varying_shapes.compiled(graph, key.nodes, key.shapes, seconds)
        return program

    def forget(self, graph: GraphKey, program: Program) -> None:
        """Drop a graph's programs from memory if this one, which cannot run, is among them."""
        programs_of(graph.model).forget(self._group(graph), program)

    def _group(self, graph: GraphKey) -> Hashable:
        return graph.entry, self._key, _jax_settings()

    @property
    def _key(self) -> Hashable:
        """Equal for compilers that make the same programs."""
        keyed = (f.name for f in dataclasses.fields(self.options) if f.metadata["keyed"])
        return (
            tuple(getattr(self.options, name) for name in keyed),
            self.options.serialization_dir,
            self.options.model_token,
            self.context,
            self.rewrites,
            self.target.key,
            self.choices_digest(),
        )

    def _loaded_or_compiled(
        self,
        partition: Partition,
        state: GraphState,
        over: OverMesh | None,
    ) -> Program:
        cache, key = self.cache, None
        if over is not None:
            from jaxdelegate.xla.over_mesh import mesh_runtime  # noqa: PLC0415 (imports jax)

            weights = state.on(mesh_runtime(over))
            return self.newly_compiled(partition, weights, state.known.name, over)
        if cache is not None:
            settings = self.cache_settings()
            for weights in state.weights(self.target):
                device = weights.runtime.device
                key = cache.program_key(
                    partition.params, partition.specs, state.known, settings, device
                )
                program = None if key is None else cache.load(key, weights)
                if program is not None:
                    return program
        weights = state.on(client.of_jax(self.device))
        if cache is None or key is None:
            return self.newly_compiled(partition, weights, state.known.name)
        with cache.compile_lock(key) as may_be_stored:
            program = cache.load(key, weights) if may_be_stored else None
            if program is None:
                name = state.known.name
                program = self.newly_compiled(partition, weights, name)
                program = cache.save(key, program)
        return program

    def newly_compiled(
        self,
        partition: Partition,
        weights: ModelWeights,
        name: str,
        over: OverMesh | None = None,
    ) -> Program:
        """The program of a partition, compiled now; `name`: the model's, for messages."""
        program = self.compilation.program(partition, weights, name, over)
        with self._lock:
            self.compiled += 1
        return program

    def cache_settings(self) -> dict[str, Any]:
        """What of the options belongs to the keys of stored programs."""
        keyed = [f.name for f in dataclasses.fields(self.options) if f.metadata["keyed"]]
        context = self.context
        return {
            "options": {name: getattr(self.options, name) for name in keyed},
            "lowering": [context.platform, context.precision, context.quant_mode],
            "rewrites": sorted(self.rewrites),
            "model_token": self.options.model_token,
            "choices": self.choices_digest(),
            **self._switches,
        }

    @property
    def _switches(self) -> dict[str, bool]:
        """Those of the environment that change programs, if they are on."""
        is_split = self.platform == "gpu" and is_on(SPLIT_PRODUCTS)
        return {"split products": True} if is_split else {}

    def file_settings(self) -> dict[str, Any]:
        """What belongs to the keys of programs of a whole file in its shapes; needs no jax."""
        options = dataclasses.asdict(self.options) | {"platform": self.platform}
        for name in _NOT_IN_KEYS:
            del options[name]
        return {"options": options, "choices": self.choices_digest(), **self._switches}

    def choices_digest(self) -> str | None:
        """The digest of the tuner's stored choices; None if programs do not depend on them."""
        depends = self.options.inference_preference == "balanced" and self.cache is not None
        return self.tuner.digest() if depends else None


def _jax_settings() -> Hashable:
    """JAX's settings that traces depend on; None: those of the environment."""
    if jax_settings.are_of_environment():
        return None
    return tuple(jax_settings.current().items())


def _calls_native_kernels(asked: bool | None, platform: str) -> bool:
    """Whether programs may call this package's own kernels; loads these if so."""
    if asked is False or (asked is None and platform != "cpu"):
        return False
    reason = kernels.why_not() if platform == "cpu" else f"they do not run on a {platform}"
    if asked and reason is not None:
        raise OptionError(f"native_kernels: {reason}")
    return reason is None
