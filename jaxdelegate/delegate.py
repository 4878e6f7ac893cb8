"""JaxDelegate: the delegate that runs partitions on XLA, written on the SimpleDelegate core."""

import logging
from collections import OrderedDict
from collections.abc import Hashable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import jax
import numpy as np

from jaxdelegate import compiler, lowering
from jaxdelegate.compiler import Program, ResidentWeights
from jaxdelegate.errors import (
    DelegationError,
    JaxDelegateError,
    LoweringError,
    OptionError,
)
from jaxdelegate.op_lowering.rule import LoweringContext
from jaxdelegate.op_lowering.spec import TensorSpec
from jaxdelegate.options import DelegateOptions
from jaxdelegate.report.delegation import DelegationReport
from jaxdelegate.simple_delegate import (
    DelegateContext,
    DelegateParams,
    Node,
    SimpleDelegate,
    SimpleDelegateKernel,
)

_LOGGER = logging.getLogger("jaxdelegate")
_PROGRAMS = 16  # compiled programs kept per open model: input-shape signatures times partitions

# What lowering, tracing and XLA raise; device and out-of-memory errors are RuntimeErrors.
_COMPILE_ERRORS = (RuntimeError, ValueError, TypeError, LookupError, ArithmeticError)

_DEVICE_NAMES = {"gpu": "the GPU", "tpu": "the TPU", "cpu": "XLA:CPU"}
_PLATFORMS = {"gpu": "gpu", "cuda": "gpu", "rocm": "gpu", "tpu": "tpu", "cpu": "cpu"}


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
        _refuse_unbuilt(self.options)
        self.device = find_device(self.options.platform, self.options.device_index)
        self.lowering_context = LoweringContext(
            platform=_PLATFORMS[self.device.platform],
            quant_mode=self.options.quant_mode,
            enable_quant=self.options.enable_quant,
        )
        self.device_name = _DEVICE_NAMES[self.lowering_context.platform]
        self.last_error: str | None = None

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
        if node.is_constant:
            return None
        specs = dict(zip(node.operator.intermediates, node.intermediates, strict=False))
        context = lowering.context_for(self.context_for(node), node.operator, specs)
        return lowering.why_not(context, node.operator, node.inputs, node.outputs)

    def context_for(self, node: Node) -> LoweringContext:
        """The lowering context, with the subgraphs of the node's model in reach."""
        return lowering.Callees(node.subgraphs, self.lowering_context).in_context()

    def create_kernel(self) -> "JaxKernel":
        """A kernel for one partition."""
        return JaxKernel(self)

    def on_partitioned(self, report: DelegationReport) -> None:
        """Keep the report, warn as TFLite does, and insist on full delegation where asked to.

        Raises:
            DelegationError: with `require_full_delegation`, if any operator stays behind.
        """
        super().on_partitioned(report)
        if self.options.require_full_delegation and report.left:
            raise DelegationError(
                f"{len(report.left)} of {len(report.nodes)} operators cannot be delegated:\n"
                f"{report.reasons()}"
            )
        warn_of_left_operators(report)

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


def _refuse_unbuilt(options: DelegateOptions) -> None:
    """Options whose part of the design is not built yet must not be ignored in silence."""
    defaults = DelegateOptions()
    for name in (
        "is_precision_loss_allowed",
        "inference_priority1",
        "compute_dtype",
        "accumulate_float32",
        "inference_preference",
        "serialization_dir",
        "model_token",
        "donate_inputs",
    ):
        value, only = getattr(options, name), getattr(defaults, name)
        same = {only, False} if name == "is_precision_loss_allowed" else {only}
        same |= {"float32"} if name == "compute_dtype" else set()
        if value not in same:
            raise OptionError(f"{name}={value!r} is not available in this version; only {only!r}")


class JaxKernel(SimpleDelegateKernel):
    """One partition on one device."""

    def __init__(self, delegate: JaxDelegate) -> None:
        """Belong to `delegate`."""
        self._delegate = delegate
        self._program: Program | None = None
        self._constant_outputs: tuple[tuple[int, Any], ...] = ()

    def init(self, context: DelegateContext, params: DelegateParams) -> None:
        """Nothing to do before the shapes are final."""

    def prepare(self, context: DelegateContext, node: DelegateParams) -> None:
        """Compile for the current shapes, or take the program that was kept for them."""
        specs = _touched(context, node)
        known = {i for i in node.outputs if specs[i].const is not None}
        self._constant_outputs = tuple((i, specs[i].const) for i in known)
        kept = _Kept.of(context, self._delegate)
        key = _program_key(context, node)
        program = kept.get(key)
        if program is None:
            leaving = [i for i in node.outputs if i not in known]
            program = self._compiled(node, specs, leaving, kept.weights)
            kept.put(key, program)
        self._program = program

    def _compiled(
        self,
        node: DelegateParams,
        specs: Mapping[int, TensorSpec],
        outputs: Sequence[int],
        weights: ResidentWeights,
    ) -> Program:
        operators = [n.operator for n in node.nodes]
        context = self._delegate.context_for(node.nodes[0])
        try:
            partition = lowering.lower_partition(operators, specs, node.inputs, outputs, context)
            return compiler.compile_partition(partition, weights)
        except JaxDelegateError:
            raise
        except _COMPILE_ERRORS as error:
            first, last = operators[0], operators[-1]
            raise LoweringError(
                f"nodes {first.index} ({first.name}) to {last.index} ({last.name}) "
                f"could not be compiled for {self._delegate.device}: {error}"
            ) from error

    def eval(self, context: DelegateContext, node: DelegateParams) -> None:  # noqa: ARG002 (the API's)
        """Dispatch the program; results stay on the device until the host wants them."""
        program = self._program
        if program is None:
            raise RuntimeError("eval before prepare")
        values = [context.value(i) for i in program.inputs]
        values += [_state(context, i, spec) for i, spec in program.states.items()]
        results = program(values)
        for index, result in zip((*program.outputs, *program.states), results, strict=True):
            context.assign(index, result)
        for index, value in self._constant_outputs:
            context.assign(index, value)


def _state(context: DelegateContext, index: int, spec: TensorSpec) -> Any:
    """A state's value; zeros for a resource variable that nothing was assigned to yet."""
    value = context.value(index)
    return np.zeros(spec.shape, spec.dtype) if value is None else value


class _Kept:
    """What a delegate keeps with an open model: resident weights, the latest programs by shape."""

    def __init__(self, device: jax.Device) -> None:
        self.weights = ResidentWeights(device)
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


def _touched(context: DelegateContext, node: DelegateParams) -> dict[int, TensorSpec]:
    operators = [n.operator for n in node.nodes]
    indices = {
        i for op in operators for i in (*op.inputs, *op.outputs, *op.intermediates) if i >= 0
    }
    return {i: context.spec(i) for i in indices | set(node.outputs)}


def _program_key(context: DelegateContext, node: DelegateParams) -> Hashable:
    # Not the partition's own input shapes: folded constants may differ where those agree.
    return tuple(n.index for n in node.nodes), node.outputs, context.shapes()
