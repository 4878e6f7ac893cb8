"""JaxDelegate: the delegate that runs partitions on XLA, written on the SimpleDelegate core.

Neither this module nor what it imports needs jax, or knows operators. A delegate imports jax when
its options do not mean the CPU for certain, when a rule has to be asked, and when a program has to
be compiled.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import threading
import weakref
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from jaxdelegate.cache.partition_key import touched_by
from jaxdelegate.cache.programs import ProgramCache
from jaxdelegate.compiler.program import Program, ResidentWeights
from jaxdelegate.delegate.delegate_kernel import CompiledPartition, JaxKernel
from jaxdelegate.delegate.model_state import ModelState
from jaxdelegate.delegate.target import Target, with_jax
from jaxdelegate.errors import DelegationError, OptionError
from jaxdelegate.kernels import library as kernels
from jaxdelegate.kernels.processor import cpu_features
from jaxdelegate.options import DelegateOptions, native_kernels_by_default
from jaxdelegate.pjrt import client
from jaxdelegate.runtime.simple_delegate import (
    DelegateContext,
    DelegateParams,
    Handover,
    Node,
    SimpleDelegate,
)

if TYPE_CHECKING:
    from jaxdelegate.op_lowering.rule import LoweringContext
    from jaxdelegate.op_lowering.spec import TensorSpec
    from jaxdelegate.report.delegation import DelegationReport
    from jaxdelegate.tuning.selector import Tuner

_LOGGER = logging.getLogger("jaxdelegate")

# CPU: rounded from bench/handover.py. GPU, TPU: a launch, a wait for it, and pageable memory over
# PCIe as they usually are; not measured.
_HANDOVER = {
    "cpu": Handover(call=20e-6, byte=5e-11),
    "gpu": Handover(call=60e-6, byte=1e-10),
    "tpu": Handover(call=100e-6, byte=2e-10),
}
_DEVICE_NAMES = {"gpu": "the GPU", "tpu": "the TPU", "cpu": "XLA:CPU"}


class JaxDelegate(SimpleDelegate):
    """Takes every operator that XLA can run, and compiles each partition into one program.

    Give it to `experimental_delegates` of `jaxdelegate.Interpreter`; one serves several of them.
    """

    name = "JaxDelegate"

    def __init__(
        self, options: Mapping[str, Any] | DelegateOptions | None = None, **more: Any
    ) -> None:
        """Check the options and find the device.

        Args:
            options: a mapping or DelegateOptions.
            **more: single options, which win over `options`.

        Raises:
            OptionError: an unknown or impossible option, or a platform that is not there.
            InterpreterError: the process was forked from one that had used XLA.
        """
        client.check_process()
        super().__init__()
        self.options: DelegateOptions = DelegateOptions.of(options, **more)
        self.target = self.find_target()
        self._platform = self.target.platform
        if self.options.native_kernels is None and self._platform == "cpu":
            default = native_kernels_by_default()
            self.options = dataclasses.replace(self.options, native_kernels=default)
        self._is_native = _calls_native_kernels(self.options.native_kernels, self._platform)
        if self.options.rewrites not in ("all", "none"):
            _ = self.rewrites  # names may be wrong
        if self.options.compute_dtype not in (None, "float32"):
            _ = self.lowering_context  # says what is not used
        self.device_name = _DEVICE_NAMES[self._platform]
        self.is_in_host_memory = self._platform == "cpu"
        if not self.options.require_full_delegation:  # who insists on it wants no advice
            self.handover = _HANDOVER[self._platform]
        self.last_error: str | None = None
        self._kernels: weakref.WeakSet[JaxKernel] = weakref.WeakSet()
        self._starts: weakref.WeakSet[Any] = weakref.WeakSet()
        self._opening = threading.Lock()  # for these two: threads open interpreters at once
        self._warned: dict[int, tuple[str, tuple[str, ...]]] = {}  # what was said of a subgraph
        self.programs: ProgramCache | None = None
        if self.options.serialization_dir:
            self.programs = ProgramCache(self.options.serialization_dir)

    def find_target(self) -> Target:
        """The device of the options.

        Raises:
            OptionError: it is not there.
        """
        return Target(self.options.platform, self.options.device_index)

    @functools.cached_property
    def lowering_context(self) -> LoweringContext:
        """Everything outside of an operator that its lowering depends on."""
        from jaxdelegate.delegate import precision_policy  # noqa: PLC0415 (see the module's docstring)
        from jaxdelegate.op_lowering.rule import LoweringContext  # noqa: PLC0415

        precision = precision_policy.policy_for(self.options, self._platform, cpu_features())
        remark = precision_policy.remark(self.options, self._platform, precision)
        if remark is not None:
            _LOGGER.info(remark)
        return LoweringContext(
            platform=self._platform,
            precision=precision,
            quant_mode=self.options.quant_mode,
            enable_quant=self.options.enable_quant,
            native_kernels=self._is_native,
            native_bfloat16=self._is_native and kernels.multiplies_bfloat16(),
            triton_kernels=self.options.native_kernels is not False and self.target.runs_triton,
        )

    @functools.cached_property
    def rewrites(self) -> tuple[str, ...]:
        """The names of the rewrites that are applied.

        Raises:
            OptionError: an unknown name.
        """
        from jaxdelegate.lowering.rewrites import registry  # noqa: PLC0415

        return registry.enabled(self.options.rewrites)

    @property
    def device(self) -> Any:
        """The jax.Device of the options."""
        return self.target.device

    @functools.cached_property
    def tuner(self) -> Tuner:
        """What is known of the algorithms to run operators."""
        from jaxdelegate.tuning.selector import Tuner  # noqa: PLC0415

        store = None if self.programs is None else self.programs.choices(self.device)
        return Tuner(self.options.inference_preference, self.device, store)

    @property
    def max_programs(self) -> int:
        """The option: how many programs are kept in memory for a subgraph of an open model."""
        return self.options.max_programs

    @property
    def rebatches(self) -> bool:
        """Whether a batch may become single runs: the option, or a tool's choice."""
        return self.options.rebatch

    def set_rebatch(self, value: bool) -> None:
        """Change the option `rebatch` from the next `allocate_tensors` on: for tools."""
        self.options = dataclasses.replace(self.options, rebatch=value)

    @property
    def compilation(self) -> Any:
        """How partitions are compiled (compilation.py)."""
        return with_jax().Compilation(
            self.lowering_context,
            self.rewrites,
            self.checks_precision,
            self.options.donate_inputs,
            self.tuner,
            self.device,
        )

    @property
    def checks_precision(self) -> bool:
        """Whether each partition is checked for operators that need float32."""
        options = self.options
        return options.compute_dtype == "auto" and options.float32_operators is None

    @classmethod
    def from_strings(cls, options: Mapping[str, str]) -> Self:
        """An instance from `load_delegate`'s options: those of DelegateOptions, as strings.

        Raises:
            OptionError: an unknown option, or a string that does not read as its type.
        """
        return cls(DelegateOptions.from_strings(options))

    def is_node_supported(self, node: Node) -> bool:
        """Whether XLA can run the node."""
        return self.why_not(node) is None

    def why_not(self, node: Node) -> str | None:
        """The rule's reason; a node whose outputs are constants needs no rule."""
        if node.is_constant:
            return None
        reason: str | None = with_jax().why_not(node, self.lowering_context)
        return reason

    def reasons(self, context: DelegateContext, nodes: Sequence[Node]) -> Sequence[str | None]:
        """As `why_not` for each node; rules are asked what no earlier process has stored."""
        cache = self.programs
        if cache is None or type(self).why_not is not JaxDelegate.why_not:
            return super().reasons(context, nodes)
        every, known = context.nodes(), ModelState.of(context.shared, self).known
        specs = {i: context.spec(i) for i in touched_by(every)}
        device = self.target.runtime.device
        key = cache.graph_key(every, specs, known, self.cache_settings(), device)
        stored = (None if key is None else cache.answers(key)) or {}
        asked = {
            node.index: self.why_not(node)
            for node in nodes
            if not node.is_constant and node.index not in stored
        }
        if key is not None and asked:
            cache.keep_answers(key, {**stored, **asked})
        answers = {**stored, **asked}
        return [None if node.is_constant else answers[node.index] for node in nodes]

    def program(
        self,
        node: DelegateParams,
        specs: Mapping[int, TensorSpec],
        outputs: Sequence[int],
        state: ModelState,
    ) -> Program:
        """As ProgramSource has it: from the cache, or compiled, and then stored."""
        client.check_process()
        cache, slot = self.programs, None
        if cache is not None:
            settings = self.cache_settings()
            for weights in state.weights(self.target):
                device = weights.runtime.device
                slot = cache.slot(node, specs, state.known, settings, device)
                program = None if slot is None else cache.load(slot, weights)
                if program is not None:
                    return program
        weights = state.on(client.of_jax(self.device))
        if cache is None or slot is None:
            return self.compiled(node, specs, outputs, weights)
        with cache.turn(slot) as may_be_there:
            program = cache.load(slot, weights) if may_be_there else None
            if program is None:
                program = self.compiled(node, specs, outputs, weights)
                program = cache.save(slot, program, weights)
        return program

    def compiled(
        self,
        node: DelegateParams,
        specs: Mapping[int, TensorSpec],
        outputs: Sequence[int],
        weights: ResidentWeights,
    ) -> Program:
        """A program that the cache did not have; a server's delegate counts them."""
        program: Program = self.compilation.program(node, specs, outputs, weights)
        return program

    def started(self, start: Any) -> None:
        """Know a stored start, whose model has to be read when somebody asks for `partitions`."""
        with self._opening:
            self._starts.add(start)

    def cache_settings(self) -> dict[str, Any]:
        """What of this delegate belongs to the keys of stored programs."""
        keyed = [f.name for f in dataclasses.fields(self.options) if f.metadata["keyed"]]
        context = self.lowering_context
        return {
            "options": {name: getattr(self.options, name) for name in keyed},
            "lowering": [context.platform, context.precision, context.quant_mode],
            "rewrites": sorted(self.rewrites),
            "model_token": self.options.model_token,
            "choices": self.choices_digest(),
        }

    def choices_digest(self) -> str | None:
        """Of stored choices, where programs depend on what was stored before them."""
        is_open = self.options.inference_preference == "balanced" and self.programs is not None
        return self.tuner.digest() if is_open else None

    def create_kernel(self) -> JaxKernel:
        """A kernel for one partition."""
        kernel = JaxKernel(self)
        with self._opening:
            self._kernels.add(kernel)
        return kernel

    def partitions(self) -> list[CompiledPartition]:
        """The partitions that open interpreters run now, in the order of their first nodes.

        Reads the models of those that began without: a thread that uses one meanwhile is refused.
        """
        with self._opening:
            starts = list(self._starts)
        for start in starts:
            start.read()
        with self._opening:
            made = list(self._kernels)
        found = [k.compiled for k in made if k.compiled is not None]
        return sorted(found, key=lambda partition: partition.nodes[0].index)

    def on_partitioned(self, report: DelegationReport) -> None:
        """Keep the report, warn as TFLite does, and insist on full delegation where asked to.

        Raises:
            DelegationError: with `require_full_delegation`, if an operator would stay on the host.
        """
        report = dataclasses.replace(report, remark=self._kernels_in_words())
        super().on_partitioned(report)
        if self.options.require_full_delegation and report.left:
            raise DelegationError(
                f"{len(report.left)} of {len(report.nodes)} operators cannot be delegated:\n"
                f"{report.reasons()}"
            )
        causes = report.summary(), tuple(report.causes())
        if self._warned.get(report.subgraph) != causes:  # once, not at every resize
            self._warned[report.subgraph] = causes
            warn_of_left_operators(report)

    def _kernels_in_words(self) -> str:
        """Which native kernels programs may call, and if none, why; empty on other devices."""
        if self._platform != "cpu":
            return ""
        if self._is_native:
            return f"Native kernels: {kernels.in_use()}."
        if self.options.native_kernels is False:
            return "Native kernels: off; XLA computes all."
        return f"Native kernels: none, XLA computes all: {kernels.why_not()}."

    def __repr__(self) -> str:
        """The options that are not their defaults, as they were given."""
        given = ", ".join(f"{k}={v!r}" for k, v in self.options.changed().items())
        return f"{type(self).__name__}({given})"

    def close(self) -> None:
        """Forget reports; programs live as long as the interpreters that run them."""
        self._reports.clear()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close."""
        self.close()


def warn_of_left_operators(report: DelegationReport) -> None:
    """Log how many operations run where, as TFLite does, and in a few lines why some are left."""
    if not report.left:
        _LOGGER.info(report.summary())
        return
    _LOGGER.warning(
        "%s: %s\n%s\nThe report of the delegate, `print(delegate.report())`, has every operator.",
        report.delegate,
        report.summary(),
        "\n".join(f"  {cause}" for cause in report.causes()),
    )


def _calls_native_kernels(asked: bool | None, platform: str) -> bool:
    """Whether programs may call this package's own kernels; from now on they can, if so.

    Raises:
        OptionError: they are asked for, and cannot be had.
    """
    if asked is False or (asked is None and platform != "cpu"):
        return False
    reason = kernels.why_not() if platform == "cpu" else f"they do not run on a {platform}"
    if asked and reason is not None:
        raise OptionError(f"native_kernels: {reason}")
    return reason is None
