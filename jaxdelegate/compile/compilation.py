"""A partition of a delegate -> a compiled program: its operators lowered as the options want it.

Imports jax and all that lowers; a delegate that finds its programs on disk does not import this.
"""

import dataclasses
import functools
import importlib.util
import logging
import os
from collections.abc import Callable, Mapping, Sequence

import jax

from jaxdelegate import memory_errors
from jaxdelegate.device_errors import device_error
from jaxdelegate.device_weights import ModelWeights
from jaxdelegate.errors import JaxDelegateError, LoweringError, OptionError
from jaxdelegate.lowering import error_probe, legality, microbatching, value_bounds
from jaxdelegate.lowering import partition as lowering
from jaxdelegate.lowering.callees import Callees
from jaxdelegate.lowering.computation import LoweredPartition
from jaxdelegate.model.records import Operator
from jaxdelegate.op_lowering.precision import PrecisionPolicy
from jaxdelegate.op_lowering.rule import LoweringContext
from jaxdelegate.optional import install
from jaxdelegate.passes.batch_slices import WHOLE_BATCH, BatchSlices
from jaxdelegate.program import Partition, Program
from jaxdelegate.simple_delegate import Node
from jaxdelegate.text import plural, printable
from jaxdelegate.tuning.selector import Tuner
from jaxdelegate.waiting import waiting
from jaxdelegate.xla import aot
from jaxdelegate.xla.over_mesh import OverMesh

_LOGGER = logging.getLogger("jaxdelegate")
_WHY_LONG = (
    "XLA takes long for large programs;\n"
    "  serialization_dir (--jax_serialization_dir) keeps them for the next start"
)

_MOST_NAMED = 5  # operators in one message
_CUDA_PLUGINS = ("jax_cuda13_plugin", "jax_cuda12_plugin")

# What jax raises without a device; it asserts that JAX_PLATFORMS names an available one.
_NO_DEVICE = (RuntimeError, AssertionError)
# What lowering, tracing and XLA raise; device and out-of-memory errors are RuntimeErrors.
_COMPILE_ERRORS = (
    RuntimeError,
    ValueError,
    TypeError,
    LookupError,
    ArithmeticError,
    MemoryError,
)


def find_device(platform: str | None, index: int) -> jax.Device:
    """The device that options name."""
    try:
        devices = jax.devices(platform) if platform else jax.devices()
    except _NO_DEVICE as error:
        wanted = platform or os.environ.get("JAX_PLATFORMS", "")
        is_gpu = wanted in ("gpu", "cuda", "rocm")
        remedy = _how_to_install("gpu" if is_gpu else wanted, error)
        raise OptionError(
            f"platform: {wanted!r} is not there; JAX has: {_platforms()}{remedy}"
        ) from None
    if index >= len(devices):
        there = ", ".join(map(str, devices))
        raise OptionError(f"device_index: {index} is not there; {devices[0].platform} has: {there}")
    return devices[index]


def _platforms() -> str:
    try:
        return ", ".join(sorted({d.platform for d in jax.devices()}))
    except _NO_DEVICE:
        return f"nothing, because JAX_PLATFORMS is {os.environ.get('JAX_PLATFORMS')!r}"


def _how_to_install(platform: str, error: Exception) -> str:
    if platform == "tpu":
        return f". On a TPU VM: {install('tpu')}"
    if platform != "gpu":
        return ""
    if any(map(importlib.util.find_spec, _CUDA_PLUGINS)):
        first = str(error).partition("\n")[0]
        return f". jax's CUDA plugin is installed but finds no GPU: {first}"
    cuda = f"{install('cuda')} (CUDA 13) or {install('cuda12')}"
    return f". For an NVIDIA GPU: {cuda}"


def context_for(
    node: Node, context: LoweringContext, precision: PrecisionPolicy | None = None
) -> LoweringContext:
    """A lowering context with the subgraphs of the node's model in reach."""
    if precision is not None:
        context = dataclasses.replace(context, precision=precision)
    return Callees(node.subgraphs, context).in_context()


def why_not(node: Node, context: LoweringContext) -> str | None:
    """Why XLA cannot run a node: its rule's reason; None: it can."""
    return Callees(node.subgraphs, context).why_not_operator(node.operator, node.specs)


def runs_in_floats(node: Node, context: LoweringContext) -> bool:
    """Whether integer mode runs a node in floats: see `float_operators`."""
    return legality.runs_in_floats(context_for(node, context), node.operator, node.specs)


def why_not_in(context: LoweringContext) -> Callable[[Node], str | None]:
    return functools.partial(why_not, context=context)


@dataclasses.dataclass(frozen=True)
class Compilation:
    """How a delegate compiles."""

    context: LoweringContext  # what all operators share
    rewrites: tuple[str, ...]  # the names of those that are applied
    checks_precision: bool  # whether each partition is checked for operators that need float32
    donates: bool  # whether results may take the place of inputs
    tuner: Tuner  # chooses between the algorithms to run an operator
    device: jax.Device  # the programs'

    def program(
        self, partition: Partition, weights: ModelWeights, name: str, over: OverMesh | None = None
    ) -> Program:
        """The program of a partition; `name`: the model's file, or "<bytes>", for messages."""
        is_file = name and not name.startswith("<")
        what = plural(len(partition.operators), "operator")
        what += f" of {printable(name)}" if is_file else ""
        with waiting(f"compiling {what} for {self.device}; {_WHY_LONG}"):
            return self._compiled(partition, weights, over)

    def _compiled(
        self, partition: Partition, weights: ModelWeights, over: OverMesh | None
    ) -> Program:
        operators = partition.operators
        slices, partition = self._slices(partition)
        try:
            lowered = self.lowered(partition)
            return aot.compile_partition(lowered, weights, self.donates, slices, over)
        except JaxDelegateError:
            raise
        except _COMPILE_ERRORS as error:
            first, last = operators[0], operators[-1]
            where = (
                f"nodes {first.index} ({printable(first.name)}) to {last.index} "
                f"({printable(last.name)}) could not be compiled for {self.device}"
            )
            platform = self.context.platform
            said = memory_errors.of_partition(error, platform, partition)
            raise device_error(error, f"{where}: {said}", LoweringError) from error

    def lowered(self, partition: Partition) -> LoweredPartition:
        """The partition as its program will compute it."""
        lower, precision = self.lowering_of(partition), self.context.precision
        if self.checks_precision:
            precision = error_probe.guarded(lower, precision, self.device)
        tuned = self._tuned(partition, lower(precision))
        self._warn_of_overflow(tuned)
        return tuned

    def _warn_of_overflow(self, partition: LoweredPartition) -> None:
        """Warn of convolutions whose float16 results may overflow; log it if all were checked."""
        unbounded = value_bounds.overflowing(partition)
        if unbounded:
            _LOGGER.log(
                logging.INFO if self.checks_precision else logging.WARNING,
                "float16: a result beyond 65504 becomes infinite, and NaN may follow, in %s that "
                "nothing bounds: %s. Check the model with representative inputs (jaxdelegate "
                "check_precision), or use compute_dtype='bfloat16'.",
                plural(len(unbounded), "convolution"),
                _named(unbounded),
            )

    def _slices(self, partition: Partition) -> tuple[BatchSlices, Partition]:
        """The slices of the batch on which the program runs, and the partition of one slice.

        The plan may have decided; otherwise large batches become microbatches, unless inputs are
        donated.
        """
        params = partition.params
        if params.slices is not None:
            return params.slices, partition
        if self.context.platform != "cpu" or self.donates:
            return WHOLE_BATCH, partition
        parts = microbatching.microbatches(
            partition.operators, partition.specs, params.inputs, partition.outputs
        )
        if parts is None:
            return WHOLE_BATCH, partition
        return BatchSlices(parts.count), dataclasses.replace(partition, specs=parts.specs)

    def _tuned(self, partition: Partition, lowered: LoweredPartition) -> LoweredPartition:
        """The operators lowered by the algorithms that were chosen for them."""
        precision = lowered.precision
        context = context_for(partition.params.nodes[0], self.context, precision)
        algorithms = self.tuner.algorithms(lowered, context)
        return self.lowering_of(partition, algorithms)(precision) if algorithms else lowered

    def lowering_of(
        self, partition: Partition, algorithms: Mapping[str, str] | None = None
    ) -> Callable[[PrecisionPolicy], LoweredPartition]:
        """What lowers the partition under a precision policy, by these algorithms or defaults."""

        def lower(precision: PrecisionPolicy) -> LoweredPartition:
            context = context_for(partition.params.nodes[0], self.context, precision)
            return lowering.lower_partition(
                partition.operators,
                partition.specs,
                partition.params.inputs,
                partition.outputs,
                context.in_program(algorithms=algorithms or {}),
                rewrites=self.rewrites,
            )

        return lower


def _named(operators: Sequence[Operator]) -> str:
    named = [
        f"#{operator.index} {printable(operator.name)}" for operator in operators[:_MOST_NAMED]
    ]
    return ", ".join([*named, "..."] if len(operators) > _MOST_NAMED else named)
