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
from collections import OrderedDict
from collections.abc import Hashable, Iterator, Mapping, MutableMapping, Sequence
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from jaxdelegate import jax_settings, platforms, runtime
from jaxdelegate.cache.partition_key import KnownModel, touched_by
from jaxdelegate.cache.programs import ProgramCache
from jaxdelegate.errors import DelegationError, OptionError
from jaxdelegate.kernels import library as kernels
from jaxdelegate.options import DelegateOptions, native_kernels_by_default
from jaxdelegate.processor import cpu_features
from jaxdelegate.program import Program, ResidentWeights
from jaxdelegate.runtime import Runtime
from jaxdelegate.simple_delegate import (
    DelegateContext,
    DelegateParams,
    Node,
    SimpleDelegate,
    SimpleDelegateKernel,
)
from jaxdelegate.xla_options import platform_of

if TYPE_CHECKING:
    from jaxdelegate.cache.answers import Answers
    from jaxdelegate.cache.key import Key
    from jaxdelegate.cache.starts import Start
    from jaxdelegate.op_lowering.rule import LoweringContext
    from jaxdelegate.op_lowering.spec import TensorSpec
    from jaxdelegate.report.delegation import DelegationReport
    from jaxdelegate.tuner import Tuner

_LOGGER = logging.getLogger("jaxdelegate")
_PROGRAMS = 16  # compiled programs kept per open model: input-shape signatures times partitions

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
        from jaxdelegate import precision_choice  # noqa: PLC0415 (see the module's docstring)
        from jaxdelegate.op_lowering.rule import LoweringContext  # noqa: PLC0415

        precision = precision_choice.policy_for(self.options, self._platform, cpu_features())
        remark = precision_choice.remark(self.options, self._platform, precision)
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
        from jaxdelegate.rewrites import table  # noqa: PLC0415

        return table.chosen(self.options.rewrites)

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
                return runtime.without_jax()
            except runtime.LOAD_ERRORS as error:
                _LOGGER.debug("jaxlib cannot be used without jax: %s", error)
        return runtime.of_jax(self.device)

    @functools.cached_property
    def tuner(self) -> Tuner:
        """What is known of the ways to run operators."""
        from jaxdelegate.tuner import Tuner  # noqa: PLC0415

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
        weights = _Kept.of(shared, self).on(self.runtime)
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
        nodes, known = context.nodes(), _Kept.of(context.shared, self).known
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
    from jaxdelegate import compilation  # noqa: PLC0415 (what stored programs do without)

    return compilation


@dataclasses.dataclass(frozen=True)
class CompiledPartition:
    """What one kernel runs: for tools that look into programs."""

    nodes: tuple[Node, ...]
    program: Program


class JaxKernel(SimpleDelegateKernel):
    """One partition on one device."""

    def __init__(self, delegate: JaxDelegate) -> None:
        """Belong to `delegate`."""
        self._delegate = delegate
        self._program: Program | None = None
        self._is_constant = False  # nothing is left to run
        self.compiled: CompiledPartition | None = None
        self._constant_outputs: tuple[tuple[int, Any], ...] = ()

    def init(self, context: DelegateContext, params: DelegateParams) -> None:
        """Nothing to do before the shapes are final."""

    def prepare(self, context: DelegateContext, node: DelegateParams) -> None:
        """Compile for the current shapes, or take the program that was kept for them."""
        specs = touched(context, node)
        known = {i for i in node.outputs if specs[i].const is not None}
        self._constant_outputs = tuple((i, specs[i].const) for i in known)
        if all(n.is_constant for n in node.nodes):
            self._program, self.compiled, self._is_constant = None, None, True
            return
        kept = _Kept.of(context.shared, self._delegate)
        key = _program_key(context, node)
        program = kept.get(key)
        if program is None:
            program = self._made(node, specs, [i for i in node.outputs if i not in known], kept)
            kept.put(key, program)
        self._program, self._is_constant = program, False
        self.compiled = CompiledPartition(node.nodes, program)

    def _made(
        self,
        node: DelegateParams,
        specs: Mapping[int, TensorSpec],
        outputs: Sequence[int],
        kept: _Kept,
    ) -> Program:
        """The program from the cache, or a compiled one, which goes into it."""
        delegate = self._delegate
        cache, settings = delegate.programs, delegate.cache_settings()
        slot = None
        if cache is not None:
            for weights in kept.weights(delegate):
                device = weights.runtime.device
                slot = cache.slot(node, specs, kept.known, settings, device)
                program = None if slot is None else cache.load(slot, weights)
                if program is not None:
                    return program
        weights = kept.on(runtime.of_jax(delegate.device))
        program = delegate.compilation.program(node, specs, outputs, weights)
        return program if cache is None or slot is None else cache.save(slot, program, weights)

    @property
    def only_program(self) -> Program | None:
        """Its program, if there is nothing else to it: no output is a constant."""
        return None if self._constant_outputs else self._program

    def eval(self, context: DelegateContext, node: DelegateParams) -> None:  # noqa: ARG002 (the API's)
        """Dispatch the program; results stay on the device until the host wants them."""
        program = self._program
        if program is not None:
            results = program(arriving(program, context))
            for index, result in zip((*program.outputs, *program.states), results, strict=True):
                context.assign(index, result)
        elif not self._is_constant:
            raise RuntimeError("eval before prepare")
        for index, value in self._constant_outputs:
            context.assign(index, value)


def arriving(program: Program, context: DelegateContext) -> list[Any]:
    """The values of a program's inputs, then of its states."""
    values = [context.value(i) for i in program.inputs]
    return values + [_state(context, i, spec) for i, spec in program.states.items()]


def _state(context: DelegateContext, index: int, spec: TensorSpec) -> Any:
    """A state's value; zeros for a resource variable that nothing was assigned to yet."""
    value = context.value(index)
    return np.zeros(spec.shape, spec.dtype) if value is None else value


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


class _Kept:
    """What a delegate keeps with an open model: resident weights, the latest programs by shape."""

    def __init__(self) -> None:
        self._weights: dict[Runtime, ResidentWeights] = {}
        self.known = KnownModel()
        self._programs: OrderedDict[Hashable, Program] = OrderedDict()

    @classmethod
    def of(cls, shared: MutableMapping[Any, Any], delegate: JaxDelegate) -> _Kept:
        kept = shared.setdefault(delegate, cls())
        if not isinstance(kept, cls):
            raise TypeError(f"context.shared[delegate] holds {type(kept).__name__}")
        return kept

    def on(self, where: Runtime) -> ResidentWeights:
        """The weights on a device."""
        return self._weights.setdefault(where, ResidentWeights(where))

    def weights(self, delegate: JaxDelegate) -> Iterator[ResidentWeights]:
        """Where a stored program can be loaded: without jax, then with it."""
        first = delegate.runtime
        yield self.on(first)
        if not first.has_jax:
            yield self.on(runtime.of_jax(delegate.device))

    def get(self, key: Hashable) -> Program | None:
        if key in self._programs:
            self._programs.move_to_end(key)
        return self._programs.get(key)

    def put(self, key: Hashable, program: Program) -> None:
        self._programs[key] = program
        while len(self._programs) > _PROGRAMS:
            self._programs.popitem(last=False)


def touched(context: DelegateContext, node: DelegateParams) -> dict[int, TensorSpec]:
    """The specs of all tensors that a partition's operators touch."""
    return {i: context.spec(i) for i in touched_by(node.nodes).union(node.outputs)}


def _program_key(context: DelegateContext, node: DelegateParams) -> Hashable:
    # Not the partition's own input shapes: folded constants may differ where those agree.
    return tuple(n.index for n in node.nodes), node.outputs, context.shapes()
