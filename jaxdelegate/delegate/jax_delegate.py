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
from collections.abc import Mapping, MutableMapping
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any, Self

from jaxdelegate.cache.partition_key import touched_by
from jaxdelegate.cache.programs import ProgramCache
from jaxdelegate.compiler.program import Program
from jaxdelegate.compiler.xla_options import platform_of
from jaxdelegate.delegate.delegate_kernel import CompiledPartition, JaxKernel, Kept
from jaxdelegate.errors import DelegationError, OptionError
from jaxdelegate.kernels import library as kernels
from jaxdelegate.kernels.processor import cpu_features
from jaxdelegate.options import DelegateOptions, native_kernels_by_default
from jaxdelegate.pjrt import client, jax_settings, platforms
from jaxdelegate.pjrt.client import Runtime
from jaxdelegate.runtime.simple_delegate import DelegateContext, Node, SimpleDelegate

if TYPE_CHECKING:
    from jaxdelegate.cache.answers import Answers
    from jaxdelegate.cache.key import Key
    from jaxdelegate.cache.starts import Start
    from jaxdelegate.op_lowering.rule import LoweringContext
    from jaxdelegate.report.delegation import DelegationReport
    from jaxdelegate.tuning.selector import Tuner

_LOGGER = logging.getLogger("jaxdelegate")

_DEVICE_NAMES = {"gpu": "the GPU", "tpu": "the TPU", "cpu": "XLA:CPU"}


class _Planning(threading.local):
    """The graph that this thread is planning: what is known and what was asked of its operators."""

    def __init__(self) -> None:
        self.key: Key | None = None
        self.stored: Answers = {}
        self.asked: dict[int, str | None] = {}


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
        """
        super().__init__()
        self.options: DelegateOptions = DelegateOptions.of(options, **more)
        self._can_do_without_jax = self.options.device_index == 0 and platforms.is_cpu(
            self.options.platform
        )
        name = "cpu" if self._can_do_without_jax else self.device.platform
        self._platform = platform_of(name)
        if self.options.native_kernels is None and self._platform == "cpu":
            default = native_kernels_by_default()
            self.options = dataclasses.replace(self.options, native_kernels=default)
        self._is_native = _calls_native_kernels(self.options.native_kernels, self._platform)
        if self.options.rewrites not in ("all", "none"):
            _ = self.rewrites  # names may be wrong
        if self.options.compute_dtype not in (None, "float32"):
            _ = self.lowering_context  # says what is not used
        self.device_name = _DEVICE_NAMES[self._platform]
        self.last_error: str | None = None
        self._kernels: weakref.WeakSet[JaxKernel] = weakref.WeakSet()
        self._starts: weakref.WeakSet[Any] = weakref.WeakSet()
        self._planning = _Planning()
        self.programs: ProgramCache | None = None
        if self.options.serialization_dir:
            self.programs = ProgramCache(self.options.serialization_dir)

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
        )

    @functools.cached_property
    def rewrites(self) -> tuple[str, ...]:
        """The names of the rewrites that are applied.

        Raises:
            OptionError: an unknown name.
        """
        from jaxdelegate.lowering.rewrites import registry  # noqa: PLC0415

        return registry.chosen(self.options.rewrites)

    @functools.cached_property
    def device(self) -> Any:
        """The jax.Device of the options.

        Raises:
            OptionError: there is none.
        """
        find = _with_jax().find_device
        return find(self.options.platform, self.options.device_index)

    @property
    def runtime(self) -> Runtime:
        """Where programs run: without jax as long as that can be, and nobody has imported it."""
        if self._can_do_without_jax and not jax_settings.is_jax_imported():
            try:
                return client.without_jax()
            except client.LOAD_ERRORS as error:
                _LOGGER.debug("jaxlib cannot be used without jax: %s", error)
        return client.of_jax(self.device)

    @functools.cached_property
    def tuner(self) -> Tuner:
        """What is known of the ways to run operators."""
        from jaxdelegate.tuning.selector import Tuner  # noqa: PLC0415

        store = None if self.programs is None else self.programs.choices(self.device)
        return Tuner(self.options.inference_preference, self.device, store)

    @property
    def compilation(self) -> Any:
        """How partitions are compiled (compilation.py)."""
        return _with_jax().Compilation(
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
        """The rule's sentence; a node whose outputs are constants needs no rule."""
        planning = self._planning
        if node.is_constant:
            return None
        if node.index in planning.stored:
            return planning.stored[node.index]
        reason: str | None = _with_jax().why_not(node, self.lowering_context)
        planning.asked[node.index] = reason
        return reason

    # ---- starts without reading the model

    def stored_start(self, content: memoryview) -> Start | None:
        """What an earlier process has stored to start a model without reading it.

        Args:
            content: of the model's file.
        """
        key = self._start_key(content)
        start = None if self.programs is None or key is None else self.programs.start(key)
        if start is not None:
            from jaxdelegate.report.delegation import fully_delegated  # noqa: PLC0415

            self.on_partitioned(fully_delegated(self.name, self.device_name, start.nodes))
        return start

    def keep_start(self, content: memoryview, start: Start) -> None:
        """Store it."""
        key = self._start_key(content)
        if self.programs is not None and key is not None:
            self.programs.keep_start(key, start)

    def load_start(
        self, start: Start, content: memoryview, shared: MutableMapping[Any, Any]
    ) -> Program:
        """The program of a stored start, its weights on the device.

        Args:
            start: what was stored.
            content: of the model's file.
            shared: as of the main subgraph's DelegateContext, if the model is read after all.

        Raises:
            LOAD_ERRORS: it cannot be loaded without reading the model.
        """
        if self.programs is None:
            raise LookupError("no programs are kept")
        weights = Kept.of(shared, self).on(self.runtime)
        return self.programs.load_start(start, content, weights)

    def started(self, start: Any) -> None:
        """Know a start, whose model has to be read when somebody asks for `partitions`."""
        self._starts.add(start)

    def _start_key(self, content: memoryview) -> Key | None:
        if self.programs is None or not self._can_do_without_jax:
            return None
        options = dataclasses.asdict(self.options)
        del options["serialization_dir"]
        settings = {"options": options, "choices": self._choices_digest()}
        return self.programs.start_key(content, settings, self.runtime.device)

    def cache_settings(self) -> dict[str, Any]:
        """What of this delegate belongs to the keys of stored programs."""
        keyed = [f.name for f in dataclasses.fields(self.options) if f.metadata["keyed"]]
        context = self.lowering_context
        return {
            "options": {name: getattr(self.options, name) for name in keyed},
            "lowering": [context.platform, context.precision, context.quant_mode],
            "rewrites": sorted(self.rewrites),
            "model_token": self.options.model_token,
            "choices": self._choices_digest(),
        }

    def _choices_digest(self) -> str | None:
        """Of stored choices, where programs depend on what was stored before them."""
        is_open = self.options.inference_preference == "balanced" and self.programs is not None
        return self.tuner.digest() if is_open else None

    def initialize(self, context: DelegateContext) -> None:
        """Look up what the rules have answered of this graph before."""
        planning = self._planning
        planning.key, planning.stored, planning.asked = None, {}, {}
        if self.programs is None:
            return
        nodes, known = context.nodes(), Kept.of(context.shared, self).known
        specs = {i: context.spec(i) for i in touched_by(nodes)}
        device = self.runtime.device
        key = self.programs.graph_key(nodes, specs, known, self.cache_settings(), device)
        if key is not None:
            planning.key, planning.stored = key, self.programs.answers(key) or {}

    def create_kernel(self) -> JaxKernel:
        """A kernel for one partition."""
        kernel = JaxKernel(self)
        self._kernels.add(kernel)
        return kernel

    def partitions(self) -> list[CompiledPartition]:
        """The partitions that open interpreters run now, in the order of their first nodes."""
        for start in list(self._starts):
            start.read()
        found = [k.compiled for k in self._kernels if k.compiled is not None]
        return sorted(found, key=lambda partition: partition.nodes[0].index)

    def on_partitioned(self, report: DelegationReport) -> None:
        """Keep the report, warn as TFLite does, and insist on full delegation where asked to.

        Raises:
            DelegationError: with `require_full_delegation`, if any operator stays behind.
        """
        report = dataclasses.replace(report, remark=self._kernels_in_words())
        super().on_partitioned(report)
        planning = self._planning
        if self.programs is not None and planning.key is not None and planning.asked:
            self.programs.keep_answers(planning.key, {**planning.stored, **planning.asked})
        planning.key, planning.stored, planning.asked = None, {}, {}
        if self.options.require_full_delegation and report.left:
            raise DelegationError(
                f"{len(report.left)} of {len(report.nodes)} operators cannot be delegated:\n"
                f"{report.reasons()}"
            )
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
    """Log TFLite's lines: one per operator code that stays, and how many operations run where."""
    if not report.left:
        _LOGGER.info(report.summary())
        return
    for code in sorted({node.op_code for node in report.left}):
        _LOGGER.warning("WARNING: op code #%d cannot be handled by this delegate.", code)
    _LOGGER.warning(
        "Following operations are not supported by %s:\n%s\n%s",
        report.delegate,
        report.reasons(),
        report.summary(),
    )


def _with_jax() -> ModuleType:
    """The module that compiles, and jax with it."""
    jax_settings.import_jax()
    from jaxdelegate.delegate import compilation  # noqa: PLC0415 (what stored programs do without)

    return compilation


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
