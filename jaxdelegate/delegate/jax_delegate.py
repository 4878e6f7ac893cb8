"""JaxDelegate: the delegate that runs partitions on XLA, written on the SimpleDelegate core.

What its options mean is a Compiler's to know. Neither this module nor what it imports needs jax.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
import weakref
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from jaxdelegate.cache.partition_key import tensors_of
from jaxdelegate.compile.compiler import Compiler
from jaxdelegate.compile.programs import GraphState
from jaxdelegate.delegate.delegate_kernel import CompiledPartition, JaxKernel
from jaxdelegate.errors import DelegationError
from jaxdelegate.kernels import library as kernels
from jaxdelegate.options import DelegateOptions
from jaxdelegate.report.delegation import HINT
from jaxdelegate.simple_delegate import DelegateContext, Node, SimpleDelegate, TransferCost
from jaxdelegate.text import plural, wrapped
from jaxdelegate.thunks import calls

if TYPE_CHECKING:
    from jaxdelegate.cache.programs import ProgramCache
    from jaxdelegate.compile.target import Target
    from jaxdelegate.op_lowering.rule import LoweringContext
    from jaxdelegate.report.delegation import DelegationReport
    from jaxdelegate.tuning.selector import Tuner

_LOGGER = logging.getLogger("jaxdelegate")

# CPU: rounded from bench/handover.py; XLA:CPU takes 2 us for each operator of keyword spotters and
# audio codecs, where fusions share it. GPU, TPU: a launch, a wait for it, pageable memory over
# PCIe, and a kernel as they usually are; not measured.
_TRANSFER_COST = {
    "cpu": TransferCost(call=20e-6, byte=5e-11, operator=2e-6, copies_tables=True),
    "gpu": TransferCost(call=60e-6, byte=1e-10, operator=1e-6),
    "tpu": TransferCost(call=100e-6, byte=2e-10, operator=1e-6),
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
            OptionError: an unknown or impossible option, or a platform that is not available.
            InterpreterError: the process was forked from one that had used XLA.
        """
        super().__init__()
        self.compiler = self.make_compiler(DelegateOptions.of(options, **more))
        self.options: DelegateOptions = self.compiler.options
        self.device_name = _DEVICE_NAMES[self.compiler.platform]
        self.is_in_host_memory = self.compiler.platform == "cpu"
        if not self.options.require_full_delegation:  # else no partition is too small
            self.transfer_cost = _TRANSFER_COST[self.compiler.platform]
        self.last_error: str | None = None
        self._kernels: weakref.WeakSet[JaxKernel] = weakref.WeakSet()
        self._starts: weakref.WeakSet[Any] = weakref.WeakSet()
        self._opening = threading.Lock()  # for these two: threads open interpreters at once
        self._warned: dict[int, tuple[str, tuple[str, ...]]] = {}  # by subgraph

    def make_compiler(self, options: DelegateOptions) -> Compiler:
        """What compiles its partitions; tools derive a delegate to compile otherwise.

        Raises:
            OptionError: an impossible option, or a platform that is not available.
        """
        return Compiler(options)

    @property
    def device(self) -> Any:
        """The jax.Device of the options."""
        return self.compiler.device

    @property
    def target(self) -> Target:
        """The device, for processes without jax."""
        return self.compiler.target

    @property
    def lowering_context(self) -> LoweringContext:
        """What lowering depends on besides the operator."""
        return self.compiler.context

    @property
    def remark(self) -> str | None:
        """The warning that a requested `compute_dtype` is ignored; None if it is used."""
        return self.compiler.remark

    @property
    def programs(self) -> ProgramCache | None:
        """The compiled programs on disk; None without a `serialization_dir` that can be used."""
        return self.compiler.cache

    @property
    def tuner(self) -> Tuner:
        """What is known of the algorithms for each operator."""
        return self.compiler.tuner

    @property
    def rebatches(self) -> bool:
        """Whether a batch may become single runs: the option, or a tool's choice."""
        return self.options.rebatch

    @property
    def pads_batch(self) -> bool:
        """Whether batches run as larger ones: the option."""
        return self.options.pad_batch

    def set_rebatch(self, value: bool) -> None:
        """Change the option `rebatch` from the next `allocate_tensors` on: for tools."""
        self.options = dataclasses.replace(self.options, rebatch=value)

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
        return self.compiler.why_not(node)

    def reasons(self, context: DelegateContext, nodes: Sequence[Node]) -> Sequence[str | None]:
        """The reasons for several nodes, from the cache or from the rules."""
        if type(self).why_not is not JaxDelegate.why_not:
            return super().reasons(context, nodes)
        graph = context.nodes()
        specs = {i: context.spec(i) for i in tensors_of(graph)}
        return self.compiler.reasons(
            nodes, graph, specs, GraphState.of(context.shared, self.compiler)
        )

    def started(self, start: Any) -> None:
        """Register a stored start, whose model is read when `partitions` is called."""
        with self._opening:
            self._starts.add(start)

    def create_kernel(self) -> JaxKernel:
        """A kernel for one partition."""
        kernel = JaxKernel(self.compiler)
        with self._opening:
            self._kernels.add(kernel)
        return kernel

    def partitions(self) -> list[CompiledPartition]:
        """The partitions of open interpreters, in the order of their first nodes.

        Reads models that stored starts did not read: using their interpreters in another thread
        meanwhile is an error.
        """
        with self._opening:
            starts = list(self._starts)
        for start in starts:
            start.read()
        with self._opening:
            open_kernels = list(self._kernels)
        compiled = [k.compiled for k in open_kernels if k.compiled is not None]
        return sorted(compiled, key=lambda partition: partition.nodes[0].index)

    def on_partitioned(self, report: DelegationReport) -> None:
        """Keep the report, warn as TFLite does, and check `require_full_delegation`.

        Raises:
            DelegationError: with `require_full_delegation`, if an operator would stay on the host.
        """
        report = dataclasses.replace(report, remark=self._kernels_in_words())
        super().on_partitioned(report)
        if self.options.require_full_delegation and report.left:
            raise DelegationError(
                f"{len(report.left)} of {plural(len(report.nodes), 'operator')} cannot be "
                f"delegated:\n{report.reasons()}"
            )
        causes = report.summary(), tuple(report.causes())
        if self._warned.get(report.subgraph) != causes:  # once, not at every resize
            self._warned[report.subgraph] = causes
            warn_of_left_operators(report)

    def _kernels_in_words(self) -> str:
        """The native kernels that programs may call, or why it has none; empty off the CPU."""
        if self.compiler.platform != "cpu":
            return ""
        if self.compiler.is_native:
            reason = calls.why_not()
            slow = f" XLA's runtime runs all programs, small ones more slowly: {reason}."
            return f"Native kernels: {kernels.in_use()}.{slow if reason else ''}"
        if self.options.native_kernels is False:
            return "Native kernels: off; XLA computes all."
        return f"Native kernels: none, XLA computes all: {kernels.why_not()}."

    def __repr__(self) -> str:
        """The options that are not their defaults, as they were given."""
        changed = ", ".join(f"{k}={v!r}" for k, v in self.options.changed().items())
        return f"{type(self).__name__}({changed})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the options: the copy compiles, or loads stored programs, where it is used."""
        return type(self), (self.options,)

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
    """Log how many operators are delegated, as TFLite does, and why the others are not."""
    if not report.left:
        _LOGGER.info(report.summary())
        return
    causes = "".join(f"\n  {cause}" for cause in report.causes())
    text = wrapped(f"{report.delegate}: {report.summary()}{causes}")
    _LOGGER.warning("%s\n%s", text, HINT)
