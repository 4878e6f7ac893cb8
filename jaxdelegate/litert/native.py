"""A SimpleDelegate as the TfLiteDelegate that stock interpreters use: structures and callbacks.

The interpreter calls the functions at the end of this file. ctypes ignores an exception that
leaves a callback, and the interpreter would see success: so each catches all exceptions, reports
one line of text and returns an error status.
"""

import ctypes
import dataclasses
import itertools
import logging
import weakref
from collections.abc import MutableMapping
from typing import Any

from jaxdelegate.errors import JaxDelegateError, OptionError
from jaxdelegate.litert import structures
from jaxdelegate.litert.context import PartitionContext, copy_resident
from jaxdelegate.litert.graph import Graph, TensorTable
from jaxdelegate.litert.nodes import PlanReader
from jaxdelegate.litert.partition import Partition
from jaxdelegate.litert.structures import Context, DelegateParams, Node, Registration, elements
from jaxdelegate.plan.gain import LITERT
from jaxdelegate.plan.partitioner import Offer, delegated_subsets
from jaxdelegate.simple_delegate import SimpleDelegate

_LOGGER = logging.getLogger("jaxdelegate")
_MOST_BYTES = 1023  # of a message; interpreters cut it there
_DROPPED = "the delegate was dropped while an interpreter used it"
_NO_REBATCH = (
    "rebatch: a stock interpreter refuses a batch that the graph does not accept, and delegates "
    "cannot change that; use jaxdelegate.Interpreter, or jaxdelegate.load(model).batched(n)"
)

_NO_PADDING = (
    "pad_batch: the tensors of a stock interpreter have the batch that is requested; use "
    "jaxdelegate.Interpreter, or resize the inputs to batches of 1, 2, 4, 8, ..."
)

Shared = MutableMapping[Any, Any]


@dataclasses.dataclass(frozen=True)
class _Application:
    """A delegate that is being applied to one subgraph."""

    graph: Graph
    shared: Shared


class NativeDelegate:
    """A SimpleDelegate's TfLiteDelegate; the SimpleDelegate owns it."""

    def __init__(self, delegate: SimpleDelegate) -> None:
        self.owner = weakref.ref(delegate)
        self._name = delegate.name.encode()
        # With this flag the interpreter neither refuses graphs with dynamic tensors nor delegates
        # again after each resize. In exchange the kernels must resize their outputs.
        flags = structures.ALLOW_DYNAMIC_TENSORS
        self._struct = structures.Delegate(
            Prepare=_PREPARE_DELEGATE,
            CopyFromBufferHandle=_COPY_FROM_HANDLE,
            FreeBufferHandle=_FREE_HANDLE,
            flags=flags,
        )
        self._registration = Registration(
            init=_INIT,
            free=_FREE,
            prepare=_PREPARE,
            invoke=_INVOKE,
            custom_name=self._name,
            version=1,
        )
        # While Python shuts down, this module is emptied before the last interpreters are freed.
        self._alive = (_FREE, _FREE_HANDLE, _COPY_FROM_HANDLE)
        self._applications: dict[int, _Application] = {}
        self.address = ctypes.addressof(self._struct)
        _NATIVES[self.address] = self

    @property
    def delegate(self) -> SimpleDelegate:
        delegate = self.owner()
        if delegate is None:
            raise ReferenceError(_DROPPED)
        return delegate

    def apply(self, address: int) -> int:
        """Let the delegate select nodes of a subgraph, and the interpreter replace them.

        `address` is the TfLiteContext's. Returns the interpreter's status.
        """
        delegate, reader, tensors = self.delegate, PlanReader(address), TensorTable(address)
        rows = reader.rows()
        graph = Graph(tensors, rows, reader.unreadable, reader.subgraph_index())
        shared = _SHARED.get((address, self.address), {})
        assigns = graph.index > 0 and any(not op.outputs for op in graph.operators)
        offer = Offer(
            PartitionContext(graph, shared),
            graph.plan(),
            group=lambda positions: reader.partitions(rows, positions),
            speed=LITERT,
            refused=graph.refused(),
            subgraph=graph.index,
            is_called=graph.index > 0,
            is_initialization=assigns and reader.initializes(graph.index),
        )
        subsets = delegated_subsets(delegate, offer)
        graph.link(subsets)
        nodes = [rows[i].node for subset in subsets for i in subset.items]
        summary = "%s delegate: %d nodes delegated out of %d nodes with %d partitions."
        _LOGGER.info(summary, delegate.name, len(nodes), len(rows), len(subsets))
        status = self._replace(address, nodes, _Application(graph, shared))
        if status == structures.OK:
            _GRAPHS[address, self.address] = graph
            self._keep(tensors, shared)
        return status

    def _replace(self, address: int, nodes: list[int], application: _Application) -> int:
        """Let the interpreter replace the nodes; it calls `partition` for each subset."""
        replaced = structures.int_array(nodes)
        self._applications[address] = application
        try:
            status = Context.from_address(address).ReplaceNodeSubsetsWithDelegateKernels(
                address, self._registration, ctypes.addressof(replaced), self.address
            )
        finally:
            del self._applications[address]
        return int(status)

    def partition(self, address: int, params: DelegateParams) -> Partition:
        application = self._applications[address]
        operators = {op.index: op for row in application.graph.rows for op in row.operators}
        return Partition(
            delegate=self.delegate,
            graph=application.graph,
            shared=application.shared,
            operators=[operators[i] for i in elements(params.nodes_to_replace)],
            inputs=elements(params.input_tensors),
            outputs=elements(params.output_tensors),
        )

    def _keep(self, tensors: TensorTable, shared: Shared) -> None:
        """Keep `shared` until the interpreter is deleted, even if a resize undoes all delegates.

        A buffer handle on one of our tensors signals the deletion: the interpreter frees it then.
        """
        key = (tensors.address, self.address)
        if key in _SHARED:
            return
        for index in range(len(tensors)):
            tensor = tensors[index]
            if tensor.delegate == self.address and tensor.buffer_handle == structures.NULL_HANDLE:
                tensor.buffer_handle = next(_NUMBERS)
                _SHARED[key] = shared
                return


# What interpreters refer to by an address or a number.
_NATIVES: weakref.WeakValueDictionary[int, NativeDelegate] = weakref.WeakValueDictionary()
_PARTITIONS: dict[int, Partition] = {}
_SHARED: dict[tuple[int, int], Shared] = {}
_GRAPHS: weakref.WeakValueDictionary[tuple[int, int], Graph] = weakref.WeakValueDictionary()
_NUMBERS = itertools.count(1)


def native_pointer(delegate: SimpleDelegate) -> int:
    """The address of a delegate's TfLiteDelegate, which the first call creates.

    Raises:
        InterpreterError: the stock interpreters of this process are not supported.
        OptionError: the option `rebatch` or `pad_batch`, which need our interpreter.
    """
    structures.check_host()
    if delegate.rebatches:
        raise OptionError(_NO_REBATCH)
    if delegate.pads_batch:
        raise OptionError(_NO_PADDING)
    fields = vars(delegate)
    if "_native" not in fields:
        fields.setdefault("_native", NativeDelegate(delegate))  # atomic: threads get the same one
    return int(fields["_native"].address)


def report_error(context: int, text: str) -> None:
    """Pass one line to the interpreter's ReportError, which reads it as a printf format."""
    line = text.encode().replace(b"\0", b"?")
    room = _MOST_BYTES - line.count(b"%")
    if len(line) > room:
        line = line[: room - 3].decode(errors="ignore").encode() + b"..."
    Context.from_address(context).ReportError(context, line.replace(b"%", b"%%"))


def _fail(context: int, delegate: SimpleDelegate | None, where: str, error: BaseException) -> None:
    """Report an error to the interpreter and store its text, which keeps no frames alive."""
    name = "delegate" if delegate is None else delegate.name
    text = f"{name}: {where}: {_described(error)}"
    if delegate is not None:
        delegate.last_error = text
    report_error(context, text)


def _described(error: BaseException) -> str:
    kind = type(error).__name__
    try:
        return f"{error}" if isinstance(error, JaxDelegateError) else f"{kind}: {error}"
    except Exception:  # raised by a custom __str__
        return kind


# ---- the callbacks. Default arguments outlive this module, which Python's shutdown empties.


def _prepare_delegate(context: int, address: int) -> int:
    try:
        return _native(address).apply(context)
    except BaseException as error:
        _fail(context, _owner(address), "selecting operators", error)
        return structures.DELEGATE_ERROR


def _init(context: int, buffer: int, _length: int) -> int | None:
    params, number = DelegateParams.from_address(buffer), next(_NUMBERS)
    try:
        _PARTITIONS[number] = _native(params.delegate).partition(context, params)
    except BaseException as error:
        _fail(context, _owner(params.delegate), "creating a kernel", error)
        return structures.INIT_FAILED
    return number


def _native(address: int) -> NativeDelegate:
    native = _NATIVES.get(address)
    if native is None:
        raise ReferenceError(_DROPPED)
    return native


def _owner(address: int) -> SimpleDelegate | None:
    native = _NATIVES.get(address)
    return None if native is None else native.owner()


def _free(_context: int, number: int, partitions: dict[int, Partition] = _PARTITIONS) -> None:
    partitions.pop(number, None)


def _free_handle(
    context: int, address: int, _handle: Any, shared: dict[tuple[int, int], Shared] = _SHARED
) -> None:
    shared.pop((context, address), None)


def _copy_from_handle(context: int, address: int, _handle: int, tensor: int) -> int:
    """Copy a value to host memory, for the interpreter or another delegate."""
    try:
        copy_resident(_GRAPHS[context, address], tensor)
    except BaseException as error:
        _fail(context, _owner(address), "copying a result from the device", error)
        return structures.ERROR
    return structures.OK


def _prepare(context: int, node: int) -> int:
    partition = None
    try:
        partition = _partition(node)
        partition.prepare()
    except BaseException as error:
        _fail_in(partition, context, "prepare", error)
        return structures.ERROR
    return structures.OK


def _invoke(context: int, node: int) -> int:
    partition = None
    try:
        partition = _partition(node)
        partition.run()
    except BaseException as error:
        _fail_in(partition, context, "eval", error)
        return structures.ERROR
    return structures.OK


_USER_DATA = Node.user_data.offset


def _partition(node: int) -> Partition:
    """The partition of a TfLiteNode; KeyError if its initialization failed."""
    return _PARTITIONS[ctypes.c_void_p.from_address(node + _USER_DATA).value or 0]


def _fail_in(partition: Partition | None, context: int, step: str, error: BaseException) -> None:
    if partition is None:
        _fail(context, None, f"{step} of a kernel that was not created", error)
    else:
        _fail(context, partition.delegate, f"{step} of {partition}", error)


_PREPARE_DELEGATE = structures.PREPARE(_prepare_delegate)
_INIT, _FREE = structures.INIT(_init), structures.FREE(_free)
_FREE_HANDLE = structures.FREE_HANDLE(_free_handle)
_COPY_FROM_HANDLE = structures.COPY_FROM_HANDLE(_copy_from_handle)
_PREPARE, _INVOKE = structures.RUN(_prepare), structures.RUN(_invoke)
