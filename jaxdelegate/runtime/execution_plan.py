"""Running the steps of a plan: operators by numpy kernels, partitions by delegates' kernels."""

import dataclasses
import functools
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from jaxdelegate.device_errors import device_error
from jaxdelegate.errors import InterpreterError, JaxDelegateError, UnassignedError
from jaxdelegate.model.records import Subgraph
from jaxdelegate.op_lowering.control_flow.reference import once_key
from jaxdelegate.op_lowering.options import FLEX, as_read, record_of
from jaxdelegate.op_lowering.spec import Specs, TensorSpec
from jaxdelegate.passes.propagation import check_dtypes, kernel_errors, known_shapes, with_shape
from jaxdelegate.plan import steps as plan
from jaxdelegate.quant.packing import is_packed
from jaxdelegate.reference.kernel import Services
from jaxdelegate.reference.registry import KERNELS
from jaxdelegate.simple_delegate import DelegateContext, SimpleDelegateKernel
from jaxdelegate.text import printable

_WITHOUT_FLEX = (
    "Convert the model without tf.lite.OpsSet.SELECT_TF_OPS, or run it with tf.lite of TensorFlow "
    "2.17 or older, whose pip package has Flex."
)

# Custom operators that hold a program for one processor, and the tool that makes them.
_COMPILED = {"edgetpu-custom-op": "edgetpu_compiler", "ethos-u": "Arm's Vela"}


class OperatorHost(DelegateContext, Protocol):
    """What steps need of their host."""

    @property
    def services(self) -> Services:
        """What kernels may ask for besides their arrays."""
        ...

    def check_room(self, specs: Iterable[tuple[int, TensorSpec]]) -> None:
        """Refuse tensors whose shapes only data told, if they take too much."""
        ...


@dataclasses.dataclass(frozen=True, eq=False)
class OperatorStep(plan.PlannedOperator):
    """An operator on the host, by its reference kernel."""

    def check(self) -> None:
        operator = self.node.operator
        if operator.name in KERNELS or self.node.is_constant:
            return
        kind = "custom op" if operator.custom else "builtin op"
        remedy = ""
        if operator.name.startswith(FLEX):
            remedy = _without_flex(operator.name, self.node.subgraphs)
        elif operator.name in _COMPILED:
            tool = _COMPILED[operator.name]
            remedy = f" It holds a program for one processor: use the file from before {tool}."
        elif operator.custom:
            remedy = " jaxdelegate.register_operator adds a custom operator."
        raise InterpreterError(
            f"Encountered unresolved {kind}: {printable(operator.name)}. "
            f"Node number {operator.index} ({printable(operator.name)}) failed to prepare.{remedy}"
        )

    @functools.cached_property
    def runs_once(self) -> Hashable | None:
        """What resources hold when it has run and need not run again; None: it always runs."""
        operator = self.node.operator
        return once_key(operator.options) if operator.name == "CALL_ONCE" else None  # type: ignore[arg-type]

    def run(self, host: OperatorHost) -> None:
        """Call the kernel on host arrays; keep its outputs and new states."""
        if self.node.is_constant:
            return
        operator = self.node.operator
        try:
            arrays = [self._argument(host, i) for i in operator.inputs]
            inputs, outputs = self._planned_specs or self._current_specs(host, arrays)
            kernel = KERNELS[operator.name]
            run = functools.partial(kernel.run, host.services) if kernel.calls else kernel.run
            if kernel.takes_intermediates:
                run = functools.partial(run, intermediates=self.node.intermediates)
            results = run(operator.options, inputs, outputs, *arrays)
            check_dtypes(outputs, results)
        except kernel_errors(operator) as error:
            is_read = operator.name == "READ_VARIABLE" and isinstance(error, LookupError)
            is_unassigned = is_read or isinstance(error, UnassignedError)
            raise (UnassignedError if is_unassigned else InterpreterError)(
                f"Node number {operator.index} ({printable(operator.name)}) failed to invoke: "
                f"{error}"
            ) from error
        states = [i for i in operator.inputs if i in self.variables]
        for index, result in zip((*operator.outputs, *states), results, strict=False):
            if index >= 0:
                host.assign(index, result)

    def _argument(self, host: OperatorHost, index: int) -> np.ndarray | None:
        """An input's array; None if it is absent, or a variable without a value yet."""
        if index < 0 or (index in self.variables and host.value(index) is None):
            return None
        if KERNELS[self.node.name].takes_packed:
            value: np.ndarray = host.value(index)
            if is_packed(value):
                return value
        return host.array(index)

    @functools.cached_property
    def _planned_specs(self) -> tuple[Specs, Specs] | None:
        """The specs as the kernel reads them; None if a shape depends on data."""
        inputs, outputs = self.node.inputs, self.node.outputs
        if any(spec is not None and spec.is_dynamic for spec in (*inputs, *outputs)):
            return None
        return as_read(record_of(self.node.operator.name), inputs, outputs)

    def _current_specs(
        self, host: OperatorHost, arrays: list[np.ndarray | None]
    ) -> tuple[Specs, Specs]:
        """The specs of the actual arrays, as the kernel reads them."""
        node = self.node
        inputs = tuple(map(_spec_of, node.inputs, arrays))
        kernel = KERNELS[node.name]
        shapes = known_shapes(kernel, node.operator.options, inputs, node.outputs, node.subgraphs)  # type: ignore[arg-type]
        outputs = tuple(
            with_shape(s, shape) for s, shape in zip(node.outputs, shapes, strict=False)
        )
        pairs = zip(node.operator.outputs, outputs, strict=False)
        host.check_room((i, spec) for i, spec in pairs if spec is not None)
        return as_read(record_of(node.operator.name), inputs, outputs)  # type: ignore[arg-type]


def _without_flex(name: str, subgraphs: Iterable[Subgraph]) -> str:
    """What to do about an operator of TensorFlow, and how many of the model do not run."""
    names = (operator.name for subgraph in subgraphs for operator in subgraph.operators)
    left = Counter(n for n in names if n.startswith(FLEX) and n not in KERNELS)
    counts = ", ".join(f"{printable(n)} ({count})" for n, count in sorted(left.items()))
    return (
        f" It is TensorFlow's {printable(name.removeprefix(FLEX))}. jaxdelegate runs many of "
        f"TensorFlow's operators (docs/operators.md), but not {counts}. {_WITHOUT_FLEX}"
    )


def _spec_of(spec: TensorSpec | None, array: np.ndarray | None) -> TensorSpec | None:
    if spec is None or array is None:
        return None
    return dataclasses.replace(spec, shape=array.shape, is_dynamic=False, const=array)


@dataclasses.dataclass(frozen=True, eq=False)
class PartitionStep(plan.PlannedPartition):
    """A partition, by its delegate's kernel."""

    kernel: SimpleDelegateKernel

    def run(self, host: OperatorHost) -> None:
        try:
            self.kernel.eval(host, self.params)
        except JaxDelegateError:
            raise
        except (RuntimeError, MemoryError) as error:
            raise self.failed(error) from error

    def failed(self, error: Exception, others: str = "") -> JaxDelegateError:
        """The exception for an error of the delegate's device; `others` may have failed too."""
        first, last = self.params.nodes[0], self.params.nodes[-1]
        begin, end = (f"{node.index} ({printable(node.name)})" for node in (first, last))
        nodes = f"Node number {begin}" if last is first else f"Nodes number {begin} to {end}"
        device = self.delegate.device_name or self.delegate.name
        said = self.kernel.described(error)
        return device_error(error, f"{nodes}{others} failed to invoke on {device}: {said}")


Step = OperatorStep | PartitionStep


def failed_run(
    error: Exception, steps: Sequence[Step], values: Mapping[int, Any]
) -> JaxDelegateError:
    """The exception for an error while waiting for a result; names the first partition that failed.

    Results computed from its results fail with them. Whether partitions failed whose results were
    released cannot be determined: `values` has those that are still there, by tensor.
    """
    released = ""
    for step in steps:
        if isinstance(step, PartitionStep):
            held = [values[i] for i in (*step.params.outputs, *step.variables) if i in values]
            if any(map(_has_failed, held)):
                return step.failed(error, released)
            released = released if held else " or a partition before it"
    return device_error(error, str(error))


def _has_failed(value: Any) -> bool:
    try:
        getattr(value, "block_until_ready", bool)()
    except RuntimeError:
        return True
    return False


def must_wait(asked: bool | None, inputs: Iterable[Any]) -> bool:
    """Whether `invoke` waits for results; `asked` is the caller's choice, None: no choice.

    It does, as in stock interpreters, unless every input is a device array: such callers work on
    the device and wait when they read results.
    """
    if asked is not None:
        return asked
    has_none = True
    for value in inputs:
        if isinstance(value, np.ndarray):
            return True
        has_none = False
    return has_none
