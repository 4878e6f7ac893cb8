"""Delegates written in Python: TFLite's SimpleDelegate.

Mirrors delegates/utils/simple_delegate.h. A delegate declares which nodes it supports; the host
groups them into partitions and replaces each by one kernel, which is initialized once, prepared
when shapes change, and evaluated at every invoke.
"""

from __future__ import annotations

import abc
import dataclasses
import logging
from collections.abc import Callable, Hashable, Iterable, Mapping, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Protocol, Self, runtime_checkable

from jaxdelegate.whole_imports import REGISTERED

if TYPE_CHECKING:
    import numpy as np

    from jaxdelegate.errors import JaxDelegateError
    from jaxdelegate.model.records import Operator, Subgraph
    from jaxdelegate.op_lowering.spec import Shape, Specs, TensorSpec
    from jaxdelegate.options import DelegateOptions
    from jaxdelegate.passes.batch_slices import BatchSlices
    from jaxdelegate.report.delegation import DelegationReport

_LOGGER = logging.getLogger("jaxdelegate")


@dataclasses.dataclass(frozen=True)
class GraphKey:
    """What a graph is, for all that is shared in a process: programs of equal keys are equal."""

    model: Any  # an object that stands for the model, by identity; what is shared lives as long
    entry: Hashable  # which of the model's graphs
    name: str = dataclasses.field(default="", compare=False)  # the file's, or empty: for people


@dataclasses.dataclass(frozen=True)
class Node:
    """One operator of the graph as a delegate sees it, with the specs of its tensors."""

    operator: Operator
    inputs: Specs
    outputs: Specs
    intermediates: tuple[TensorSpec, ...] = ()
    subgraphs: Sequence[Subgraph] = ()  # the model's, for operators that call them

    @property
    def index(self) -> int:
        """The operator's position in its subgraph."""
        return self.operator.index

    @property
    def name(self) -> str:
        """The builtin operator's name, or the custom operator's."""
        return self.operator.name

    @property
    def specs(self) -> dict[int, TensorSpec]:
        """The specs by tensor."""
        op = self.operator
        ends = zip((*op.inputs, *op.outputs), (*self.inputs, *self.outputs), strict=True)
        between = zip(op.intermediates, self.intermediates, strict=False)
        pairs = (*ends, *between)
        return {i: spec for i, spec in pairs if spec is not None}

    @property
    def is_constant(self) -> bool:
        """Whether every output is known before the first invoke, so that nothing is left to run."""
        return bool(self.outputs) and all(s is None or s.const is not None for s in self.outputs)


@dataclasses.dataclass(frozen=True)
class DelegateParams:
    """What one kernel replaces. `inputs` and `outputs` are tensor indices, without constants.

    `slices`: the kernel runs the nodes on each of these slices of the batch (only for delegates
    whose `rebatches` is true). The nodes' specs are those of one slice, the context's specs and
    values those of the whole batch.
    `padded_to`: the graph's input shapes that the nodes' specs are for, if their batch is larger
    than the context's (only for delegates whose `pads_batch` is true): the kernel adds items to the
    inputs, and drops their results.
    """

    nodes: tuple[Node, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    slices: BatchSlices | None = None
    padded_to: Hashable = None


@runtime_checkable
class DelegateContext(Protocol):
    """The host's side: the graph while a delegate looks at it, the tensors while a kernel runs."""

    preserve_all_tensors: bool
    # For delegates to keep things in, as long as the model is open.
    shared: MutableMapping[Any, Any]

    @property
    def graph_key(self) -> GraphKey:
        """Equal for graphs of equal operators and constants in this process."""
        ...

    def nodes(self) -> Sequence[Node]:
        """The operators still to be run, in execution order."""
        ...

    def shapes(self) -> Hashable:
        """The graph's current input shapes: together with the model they determine every spec."""
        ...

    def spec(self, index: int) -> TensorSpec:
        """A tensor's current static side."""
        ...

    def value(self, index: int) -> Any:
        """A tensor's value: a numpy array, or the device array that a kernel assigned."""
        ...

    def array(self, index: int) -> np.ndarray:
        """A tensor's value in host memory; do not write to it."""
        ...

    def assign(self, index: int, value: Any) -> None:
        """Set a tensor; what is given may stay on its device until the host needs it."""
        ...


@dataclasses.dataclass(frozen=True)
class TransferCost:
    """What one call of a partition costs, whatever it computes; by default nothing.

    Attributes:
        call: seconds for each call.
        byte: seconds for each byte that it reads from the host or writes for it.
        operator: seconds for each operator, however small.
        copies_tables: whether it copies a constant table in the host's memory to look up rows, so
            that the host, which reads only these rows, keeps lookups in large tables.
    """

    call: float = 0.0
    byte: float = 0.0
    operator: float = 0.0
    copies_tables: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class SimpleDelegateOptions:
    """What every delegate lets its user choose.

    Attributes:
        max_delegated_partitions: how many partitions it takes; 0: no limit.
        min_nodes_per_partition: smaller partitions stay on the host.
        min_gain: a partition stays on the host if the host needs less than this many times the
            delegate's `transfer_cost` for it, and other nodes stay there, too.
        first_delegate_node_index: nodes before it stay on the host.
        last_delegate_node_index: nodes after it stay on the host.
        fallback_on_error: a partition that cannot be prepared runs on the host.
    """

    max_delegated_partitions: int = 0
    min_nodes_per_partition: int = 0
    min_gain: float = 2.0
    first_delegate_node_index: int = 0
    last_delegate_node_index: int = 2**31 - 1
    fallback_on_error: bool = False


class Shortcut(NamedTuple):
    """A quicker `eval`, for the host that reads and writes the tensors.

    Attributes:
        inputs: the tensors whose values the call takes, in this order.
        outputs: those that it computes.
        call: returns their values; None: it has done nothing, `eval` has to run. The next call may
            overwrite them, unless they are referred to; the sequence must not be kept.
    """

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    call: Callable[[Iterable[Any]], Sequence[Any] | None]


class SimpleDelegateKernel(abc.ABC):
    """Runs one partition."""

    returns_own_memory = False  # `eval` never assigns an array that overlaps one it has read

    @abc.abstractmethod
    def init(self, context: DelegateContext, params: DelegateParams) -> None:
        """Take over the nodes of `params`; called once."""

    @abc.abstractmethod
    def prepare(self, context: DelegateContext, node: DelegateParams) -> None:
        """Get ready for the shapes that `context` now has; called before the first `eval`."""

    @abc.abstractmethod
    def eval(self, context: DelegateContext, node: DelegateParams) -> None:
        """Read `node.inputs` from the context, compute, and assign `node.outputs`."""

    def input_buffer(self, shape: Shape, dtype: np.dtype) -> np.ndarray | None:  # noqa: ARG002
        """Zeros in host memory that its device reads quickest; None: no memory is better."""
        return None

    def shortcut(self) -> Shortcut | None:
        """A quicker `eval` for a host whose plan is this partition alone; None: not now."""
        return None

    def described(self, error: Exception) -> str:
        """The message for an error of the device, in `eval` or when results are read."""
        return str(error) or type(error).__name__


class SimpleDelegate(abc.ABC):
    """A delegate in Python; give an instance to `experimental_delegates`."""

    name: str = "SimpleDelegate"
    options: SimpleDelegateOptions | DelegateOptions = SimpleDelegateOptions()
    device_name: str = ""  # where it runs, for the report; empty: its own name
    transfer_cost: TransferCost = (
        TransferCost()
    )  # what a call of a partition costs; nothing: all can gain
    is_in_host_memory = True  # its kernels' tensors count to the host's memory
    last_error: str | None = None  # the last one reported to a stock interpreter

    def __init__(self) -> None:
        """Create a delegate without reports."""
        self._reports: dict[int, DelegationReport] = {}

    @classmethod
    def from_strings(cls, options: Mapping[str, str]) -> Self:
        """An instance from `load_delegate`'s options; by default its keyword arguments."""
        return cls(**options)

    @property
    def rebatches(self) -> bool:
        """Whether its kernels support `DelegateParams.slices`."""
        return False

    @property
    def pads_batch(self) -> bool:
        """Whether its kernels support `DelegateParams.padded_to`."""
        return False

    @abc.abstractmethod
    def is_node_supported(self, node: Node) -> bool:
        """Whether the delegate can run this node."""

    @abc.abstractmethod
    def create_kernel(self) -> SimpleDelegateKernel:
        """A fresh kernel for one partition."""

    def initialize(self, context: DelegateContext) -> None:  # noqa: B027 (optional to override)
        """Look at the graph before its nodes are asked about one by one."""

    def why_not(self, node: Node) -> str | None:
        """Why a node stays on the host, for the report; None if it is supported."""
        return None if self.is_node_supported(node) else f"not supported by {self.name}"

    def reasons(self, context: DelegateContext, nodes: Sequence[Node]) -> Sequence[str | None]:
        """Why each of these nodes stays on the host; None where it is supported.

        What hosts call, once for each plan of a graph.
        """
        self.initialize(context)
        return [self.why_not(node) for node in nodes]

    def on_partitioned(self, report: DelegationReport) -> None:
        """Receive the report of the partitioning; raising here rejects the graph."""
        self._reports[report.subgraph] = report

    def on_fallback(self, subgraph: int, nodes: Sequence[Node], error: JaxDelegateError) -> None:
        """Receive the error of a partition that therefore runs on the host: `fallback_on_error`.

        Args:
            subgraph: the index of the subgraph.
            nodes: the partition's.
            error: what preparing it raised.
        """
        _LOGGER.warning("%s: %s; the partition runs on the CPU", self.name, error)
        if subgraph in self._reports:
            reason = f"its partition failed: {str(error).partition(chr(10))[0]}"
            left = self._reports[subgraph].without({node.index for node in nodes}, reason)
            self.on_partitioned(left)

    def report(self, subgraph_index: int = 0) -> DelegationReport:
        """Where each node of a subgraph runs since its last partitioning, and why.

        Raises:
            LookupError: no interpreter has applied the delegate to that subgraph yet.
        """
        if subgraph_index not in self._reports:
            raise LookupError(f"{self.name} was not applied to subgraph {subgraph_index} yet")
        return self._reports[subgraph_index]

    def __iter__(self) -> NoReturn:
        """Raise: a delegate is not a list of delegates, which interpreters expect.

        Raises:
            TypeError: always.
        """
        raise TypeError(
            "experimental_delegates: expected a list of delegates, got one; "
            f"write [{self.name}(...)]"
        )

    def _get_native_delegate_pointer(self) -> int:
        """What stock interpreters ask of a delegate: the address of a TfLiteDelegate.

        Raises:
            InterpreterError: this process has a stock interpreter that is not supported.
        """
        return int(REGISTERED["native_pointer"](self))
