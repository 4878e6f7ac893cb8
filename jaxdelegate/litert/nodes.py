"""Reads the execution plan of a stock interpreter's subgraph as operator records.

The functions of the TfLiteContext that this module calls exist only while a delegate prepares.
"""

import contextlib
import ctypes
import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Sequence

from ai_edge_litert.schema_py_generated import BuiltinOperator

from jaxdelegate.errors import InterpreterError
from jaxdelegate.litert import params
from jaxdelegate.litert.structures import (
    OK,
    Context,
    Delegate,
    DelegateParams,
    Node,
    Registration,
    Tensor,
    elements,
    int_array,
)
from jaxdelegate.model.operator_tables import called_subgraphs
from jaxdelegate.model.records import Operator
from jaxdelegate.op_lowering.options import NoOptions, Options, custom_options
from jaxdelegate.plan.node_subsets import Subset

CALL_ONCE = "CALL_ONCE"
_NAMES = {code: name for name, code in vars(BuiltinOperator).items() if isinstance(code, int)}


@dataclasses.dataclass(frozen=True)
class PlanRow:
    """One node of the plan: an operator, or those that a delegate's kernel has replaced."""

    node: int  # the interpreter's index
    operators: tuple[Operator, ...]
    delegate: str | None = None


class PlanReader:
    """Reads the plan of the subgraph that a delegate prepares for.

    `unreadable` has reasons, by node, why the options of operators could not be read.
    """

    def __init__(self, address: int) -> None:
        self._address = address
        self._context = Context.from_address(address)
        self.unreadable: dict[int, str] = {}

    def rows(self) -> tuple[PlanRow, ...]:
        plan = ctypes.c_void_p()
        self._check(self._context.GetExecutionPlan(self._address, plan), "GetExecutionPlan")
        return tuple(map(self._row, elements(plan.value)))  # later calls may replace the array

    def subgraph_index(self) -> int:
        """The index of this subgraph: the interpreter only maps indices to contexts."""
        index = 0
        while True:
            with self._subgraph(index) as found:
                if found == self._address:
                    return index
            index += 1

    def initializes(self, index: int) -> bool:
        """Whether a CALL_ONCE of another subgraph runs this one, which has that index."""
        others = (i for i in itertools.count() if i != index)
        with contextlib.suppress(InterpreterError):  # there is no such subgraph
            for other in others:
                with self._subgraph(other) as address:
                    rows = PlanReader(address or 0).rows()
                if any(_initializes(op, index) for row in rows for op in row.operators):
                    return True
        return False

    def partitions(self, rows: Sequence[PlanRow], chosen: Iterable[int]) -> list[Subset]:
        """The partitions that the interpreter would form if a delegate selected these rows."""
        positions = {row.node: position for position, row in enumerate(rows)}
        wanted = int_array(rows[position].node for position in sorted(chosen))
        found, count = ctypes.POINTER(DelegateParams)(), ctypes.c_int()
        status = self._context.PreviewDelegatePartitioning(
            self._address, ctypes.addressof(wanted), found, count
        )
        self._check(status, "PreviewDelegatePartitioning")
        nodes = [elements(found[i].nodes_to_replace) for i in range(count.value)]
        return [Subset(True, tuple(positions[n] for n in subset)) for subset in nodes]

    def _row(self, index: int) -> PlanRow:
        node, registration = self._node(index)
        if registration.builtin_code != BuiltinOperator.DELEGATE:
            return PlanRow(index, (self._operator(index, node, registration),))
        name = _text(registration.custom_name) or "another delegate"
        operators = (self._operator(i, *self._node(i)) for i in _replaced(node))
        return PlanRow(index, tuple(operators), name)

    def _operator(self, index: int, node: Node, registration: Registration) -> Operator:
        code, inputs = registration.builtin_code, tuple(elements(node.inputs))
        custom, data = code == BuiltinOperator.CUSTOM, b""
        name = _text(registration.custom_name) if custom else _NAMES.get(code, f"operator {code}")
        if node.custom_initial_data:
            data = ctypes.string_at(node.custom_initial_data, node.custom_initial_data_size)
        try:
            options: Options = (
                custom_options(name, data)
                if custom
                else params.decode(name, node.builtin_data, self._rank(inputs))
            )
        except ValueError as error:
            self.unreadable[index] = str(error)
            options = NoOptions()
        return Operator(
            index=index,
            name=name,
            builtin_code=code,
            custom=custom,
            version=registration.version,
            inputs=inputs,
            outputs=tuple(elements(node.outputs)),
            intermediates=tuple(elements(node.intermediates)),
            options=options,
            custom_options=data,
        )

    def _rank(self, inputs: Sequence[int]) -> int:
        if not inputs or inputs[0] < 0:
            return 0
        address = self._context.tensors + inputs[0] * ctypes.sizeof(Tensor)
        return len(elements(Tensor.from_address(address).dims))

    def _node(self, index: int) -> tuple[Node, Registration]:
        node, registration = ctypes.POINTER(Node)(), ctypes.POINTER(Registration)()
        status = self._context.GetNodeAndRegistration(self._address, index, node, registration)
        self._check(status, f"GetNodeAndRegistration({index})")
        return node.contents, registration.contents

    @contextlib.contextmanager
    def _subgraph(self, index: int) -> Iterator[int | None]:
        found = ctypes.c_void_p()
        status = self._context.AcquireSubgraphContext(self._address, index, found)
        self._check(status, f"AcquireSubgraphContext({index})")
        try:
            yield found.value
        finally:
            self._context.ReleaseSubgraphContext(self._address, index)

    def _check(self, status: int, call: str) -> None:
        if status != OK:
            raise InterpreterError(f"{call} of the stock interpreter failed with status {status}")


def _initializes(operator: Operator, subgraph: int) -> bool:
    called = (index for _, index in called_subgraphs(operator.options))
    return operator.name == CALL_ONCE and subgraph in called


def _replaced(node: Node) -> list[int]:
    """The nodes that another delegate's kernel replaces; empty if it does not expose them."""
    if not node.builtin_data or not node.delegate:
        return []
    if Delegate.from_address(node.delegate).opaque_delegate_builder:
        return []
    return elements(DelegateParams.from_address(node.builtin_data).nodes_to_replace)


def _text(name: bytes | None) -> str:
    return (name or b"").decode(errors="replace")
