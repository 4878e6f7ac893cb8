"""JaxDelegate: the delegate that runs partitions on XLA, written on the SimpleDelegate core."""

import dataclasses
import logging
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import jax
import numpy as np

from jaxdelegate import batching, compiler, lowering, precision_choice, side_by_side
from jaxdelegate.cache.partition_key import KnownModel, touched_by
from jaxdelegate.cache.programs import ProgramCache
from jaxdelegate.compiler import Program, ResidentWeights
from jaxdelegate.errors import (
    DelegationError,
    JaxDelegateError,
    LoweringError,
    OptionError,
)
from jaxdelegate.kernels import library as kernels
from jaxdelegate.lowered_partition import LoweredPartition
from jaxdelegate.op_lowering.precision import PrecisionPolicy
from jaxdelegate.op_lowering.rule import LoweringContext
from jaxdelegate.op_lowering.spec import TensorSpec
from jaxdelegate.options import DelegateOptions, native_kernels_by_default
from jaxdelegate.processor import cpu_features
from jaxdelegate.report.delegation import DelegationReport
from jaxdelegate.rewrites import table as rewrites
from jaxdelegate.simple_delegate import (
    DelegateContext,
    DelegateParams,
    Node,
    SimpleDelegate,
    SimpleDelegateKernel,
)
from jaxdelegate.tuner import Tuner
from jaxdelegate.xla_options import platform_of

_LOGGER = logging.getLogger("jaxdelegate")
_PROGRAMS = 16  # compiled programs kept per open model: input-shape signatures times partitions

# What lowering, tracing and XLA raise; device and out-of-memory errors are RuntimeErrors.
_COMPILE_ERRORS = (RuntimeError, ValueError, TypeError, LookupError, ArithmeticError)

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
        """
        super().__init__()
        self.options: DelegateOptions = DelegateOptions.of(options, **more)
        self.device = find_device(self.options.platform, self.options.device_index)
        platform = platform_of(self.device.platform)
        if self.options.native_kernels is None and platform == "cpu":
            default = native_kernels_by_default()
            self.options = dataclasses.replace(self.options, native_kernels=default)
        is_native = _calls_native_kernels(self.options.native_kernels, platform)
        self.lowering_context = LoweringContext(
            platform=platform,
            precision=precision_choice.policy_for(self.options, platform, cpu_features()),
            quant_mode=self.options.quant_mode,
            enable_quant=self.options.enable_quant,
            native_kernels=is_native,
            native_bfloat16=is_native and kernels.multiplies_bfloat16(),
        )
        self._say_what_is_not_used()
        self.rewrites = rewrites.chosen(self.options.rewrites)
        self.device_name = _DEVICE_NAMES[self.lowering_context.platform]
        self.last_error: str | None = None
        self._kernels: weakref.WeakSet[JaxKernel] = weakref.WeakSet()
        self._foreseen: dict[int, Node] = {}  # of the graph that is being planned, by identity
        self.programs: ProgramCache | None = None
        if self.options.serialization_dir:
            self.programs = ProgramCache(self.options.serialization_dir, self.device)
        store = None if self.programs is None else self.programs.choices
        self.tuner = Tuner(self.options.inference_preference, self.device, store)

    @property
    def checks_precision(self) -> bool:
        """Whether each partition is checked for operators that need float32."""
        options = self.options
        return options.compute_dtype == "auto" and options.float32_operators is None

    def _say_what_is_not_used(self) -> None:
        context = self.lowering_context
        remark = precision_choice.remark(self.options, context.platform, context.precision)
        if remark is not None:
            _LOGGER.info(remark)

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
        if node.is_constant or id(node) in self._foreseen:
            return None
        specs = dict(zip(node.operator.intermediates, node.intermediates, strict=False))
        context = lowering.context_for(self.context_for(node), node.operator, specs)
        return lowering.why_not(context, node.operator, node.inputs, node.outputs)

    def context_for(self, node: Node, precision: PrecisionPolicy | None = None) -> LoweringContext:
        """The lowering context, with the subgraphs of the node's model in reach.

        Args:
            node: the node.
            precision: another policy than the options'.
        """
        context = self.lowering_context
        if precision is not None:
            context = dataclasses.replace(context, precision=precision)
        return lowering.Callees(node.subgraphs, context).in_context()

    def cache_settings(self) -> dict[str, Any]:
        """What of this delegate belongs to the keys of stored programs."""
        keyed = [f.name for f in dataclasses.fields(self.options) if f.metadata["keyed"]]
        context = self.lowering_context
        return {
            "options": {name: getattr(self.options, name) for name in keyed},
            "lowering": [context.platform, context.precision, context.quant_mode],
            "rewrites": sorted(self.rewrites),
            "model_token": self.options.model_token,
            "choices": self.tuner.digest(),
        }

    def expect(self, content: memoryview) -> None:
        """Begin to load the program that this model ran last."""
        if self.programs is not None:
            self.programs.expect(content, self.cache_settings())

    def initialize(self, context: DelegateContext) -> None:
        """Find out whether a stored program was made of this graph: no rule is asked then."""
        self._foreseen = {}
        if self.programs is None:
            return
        nodes, known = context.nodes(), _Kept.of(context, self).known
        specs = {i: context.spec(i) for i in touched_by(nodes)}
        if self.programs.foresees(nodes, specs, known, self.cache_settings()):
            self._foreseen = {id(node): node for node in nodes}

    def create_kernel(self) -> "JaxKernel":
        """A kernel for one partition."""
        kernel = JaxKernel(self)
        self._kernels.add(kernel)
        return kernel

    def partitions(self) -> list["CompiledPartition"]:
        """The partitions that open interpreters run now, in the order of their first nodes."""
        found = [k.compiled for k in self._kernels if k.compiled is not None]
        return sorted(found, key=lambda partition: partition.nodes[0].index)

    def on_partitioned(self, report: DelegationReport) -> None:
        """Keep the report, warn as TFLite does, and insist on full delegation where asked to.

        Raises:
            DelegationError: with `require_full_delegation`, if any operator stays behind.
        """
        report = dataclasses.replace(report, remark=self._kernels_in_words())
        super().on_partitioned(report)
        self._foreseen = {}
        if self.options.require_full_delegation and report.left:
            raise DelegationError(
                f"{len(report.left)} of {len(report.nodes)} operators cannot be delegated:\n"
                f"{report.reasons()}"
            )
        warn_of_left_operators(report)

    def _kernels_in_words(self) -> str:
        """Which native kernels programs may call, and if none, why; empty on other devices."""
        if self.lowering_context.platform != "cpu":
            return ""
        if self.lowering_context.native_kernels:
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


def find_device(platform: str | None, index: int) -> jax.Device:
    """The device that options name.

    Raises:
        OptionError: no such platform or device; lists what is there.
    """
    try:
        devices = jax.devices(platform) if platform else jax.devices()
    except RuntimeError:
        there = ", ".join(sorted({d.platform for d in jax.devices()}))
        raise OptionError(f"platform: {platform!r} is not there; JAX has: {there}") from None
    if index >= len(devices):
        there = ", ".join(map(str, devices))
        raise OptionError(f"device_index: {index} is not there; {devices[0].platform} has: {there}")
    return devices[index]


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
        self.compiled: CompiledPartition | None = None
        self._constant_outputs: tuple[tuple[int, Any], ...] = ()

    def init(self, context: DelegateContext, params: DelegateParams) -> None:
        """Nothing to do before the shapes are final."""

    def prepare(self, context: DelegateContext, node: DelegateParams) -> None:
        """Compile for the current shapes, or take the program that was kept for them."""
        specs = touched(context, node)
        known = {i for i in node.outputs if specs[i].const is not None}
        self._constant_outputs = tuple((i, specs[i].const) for i in known)
        kept = _Kept.of(context, self._delegate)
        key = _program_key(context, node)
        program = kept.get(key)
        if program is None:
            program = self._made(node, specs, [i for i in node.outputs if i not in known], kept)
            kept.put(key, program)
        self._program = program
        self.compiled = CompiledPartition(node.nodes, program)

    def _made(
        self,
        node: DelegateParams,
        specs: Mapping[int, TensorSpec],
        outputs: Sequence[int],
        kept: "_Kept",
    ) -> Program:
        """The program from the cache, or a compiled one, which goes into it."""

        def compiled() -> Program:
            return self._compiled(node, specs, outputs, kept.weights)

        cache = self._delegate.programs
        if cache is None:
            return compiled()
        slot = cache.slot(node, specs, kept.known, self._delegate.cache_settings())
        return compiled() if slot is None else cache.get(slot, kept.weights, compiled)

    def _compiled(
        self,
        node: DelegateParams,
        specs: Mapping[int, TensorSpec],
        outputs: Sequence[int],
        weights: ResidentWeights,
    ) -> Program:
        operators = [n.operator for n in node.nodes]
        parts = self._turns(node, specs, outputs)
        specs = specs if parts is None else parts.specs
        lower = self.lowering_of(node, specs, outputs)
        precision = self._delegate.lowering_context.precision
        try:
            if self._delegate.checks_precision:
                precision = side_by_side.guarded(lower, precision, self._delegate.device)
            partition = self._tuned(node, specs, outputs, lower(precision))
            donate = self._delegate.options.donate_inputs
            count = 1 if parts is None else parts.count
            return compiler.compile_partition(partition, weights, donate, count)
        except JaxDelegateError:
            raise
        except _COMPILE_ERRORS as error:
            first, last = operators[0], operators[-1]
            raise LoweringError(
                f"nodes {first.index} ({first.name}) to {last.index} ({last.name}) "
                f"could not be compiled for {self._delegate.device}: {error}"
            ) from error

    def _turns(
        self, node: DelegateParams, specs: Mapping[int, TensorSpec], outputs: Sequence[int]
    ) -> batching.Turns | None:
        """How a large batch is cut up; donated buffers are not."""
        delegate = self._delegate
        if delegate.lowering_context.platform != "cpu" or delegate.options.donate_inputs:
            return None
        return batching.turns([n.operator for n in node.nodes], specs, node.inputs, outputs)

    def _tuned(
        self,
        node: DelegateParams,
        specs: Mapping[int, TensorSpec],
        outputs: Sequence[int],
        partition: LoweredPartition,
    ) -> LoweredPartition:
        """The partition with its operators lowered in the ways that were chosen for them."""
        precision = partition.precision
        context = self._delegate.context_for(node.nodes[0], precision)
        ways = self._delegate.tuner.ways(partition, context)
        return self.lowering_of(node, specs, outputs, ways)(precision) if ways else partition

    def lowering_of(
        self,
        node: DelegateParams,
        specs: Mapping[int, TensorSpec],
        outputs: Sequence[int],
        ways: Mapping[str, str] | None = None,
    ) -> Callable[[PrecisionPolicy], LoweredPartition]:
        """What lowers the partition under a precision policy; `ways` other than the defaults."""

        def lower(precision: PrecisionPolicy) -> LoweredPartition:
            context = self._delegate.context_for(node.nodes[0], precision)
            return lowering.lower_partition(
                [n.operator for n in node.nodes],
                specs,
                node.inputs,
                outputs,
                dataclasses.replace(context, ways=ways or {}),
                rewrites=self._delegate.rewrites,
            )

        return lower

    def eval(self, context: DelegateContext, node: DelegateParams) -> None:  # noqa: ARG002 (the API's)
        """Dispatch the program; results stay on the device until the host wants them."""
        program = self._program
        if program is None:
            raise RuntimeError("eval before prepare")
        results = program(arriving(program, context))
        for index, result in zip((*program.outputs, *program.states), results, strict=True):
            context.assign(index, result)
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

    def __init__(self, device: jax.Device) -> None:
        self.weights = ResidentWeights(device)
        self.known = KnownModel()
        self._programs: OrderedDict[Hashable, Program] = OrderedDict()

    @classmethod
    def of(cls, context: DelegateContext, delegate: JaxDelegate) -> "_Kept":
        kept = context.shared.setdefault(delegate, cls(delegate.device))
        if not isinstance(kept, cls):
            raise TypeError(f"context.shared[delegate] holds {type(kept).__name__}")
        return kept

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
