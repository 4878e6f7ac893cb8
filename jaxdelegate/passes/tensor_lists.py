"""Gives tensor lists static shapes: where one element is written, and where a list is reserved.

TensorFlow's converter writes `list[i] = element` as CONCATENATION(list[:i], element, list[i + 1:])
(lower_static_tensor_list.cc). The sizes of both slices are computed at run time, although the
result always has the list's length. With DYNAMIC_UPDATE_SLICE instead, the body of a Keras GRU or
LSTM has static shapes throughout and runs inside the compiled loop.

Whether a CONCATENATION is such a write depends on the shapes of the list and the element for the
current inputs: a file may declare every dimension of a list as unknown.

A list of TensorFlow's own operators, FlexTensorListReserve and so on, is one array in a file that
declares the list's dtype. The shape of its elements may be open until a loop writes them: until
then its spec is dynamic, with the shape [length, -1].
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from ai_edge_litert.schema_py_generated import BuiltinOperator

from jaxdelegate.model.operator_tables import called_subgraphs
from jaxdelegate.model.records import Operator, Subgraph
from jaxdelegate.op_lowering.options import ConcatenationOptions, NoOptions, why_not_alike
from jaxdelegate.op_lowering.spec import Shape, Specs, TensorSpec

_EMPTY, _RESERVE = "FlexEmptyTensorList", "FlexTensorListReserve"
# Operators that write to a list: the input that is written, and how many dimensions of it come
# before those of an element.
_WRITING = {
    "FlexTensorListPushBack": (1, 0),
    "FlexTensorListScatterIntoExistingList": (1, 1),
    "FlexTensorListSetItem": (2, 0),
}
# Their last input is an element's shape.
_SHAPED = tuple(f"FlexTensorList{name}" for name in ("Gather", "GetItem", "PopBack", "Stack"))
# Operators without side effects that compute the original's slices.
_SLICING = frozenset(("SLICE", "CONCATENATION", "RESHAPE", "EXPAND_DIMS"))


def with_list_updates(subgraph: Subgraph, specs: Sequence[TensorSpec]) -> Subgraph:
    """The subgraph with DYNAMIC_UPDATE_SLICE for each such write; unchanged without writes.

    The specs, propagated from the current inputs, are valid for the result too, which has the same
    tensors. An index outside the list, which is an error at run time in the original, writes the
    nearest element.
    """
    producers = {i: o for o in subgraph.operators for i in o.outputs if i >= 0}
    updates = {
        operator.index: update
        for operator in subgraph.operators
        if (update := list_update(operator, producers, specs)) is not None
    }
    if not updates:
        return subgraph
    operators = tuple(updates.get(o.index, o) for o in subgraph.operators)
    return dataclasses.replace(subgraph, operators=_needed(operators, subgraph.outputs))


def list_update(
    operator: Operator, producers: Mapping[int, Operator], specs: Sequence[TensorSpec]
) -> Operator | None:
    """The DYNAMIC_UPDATE_SLICE that is equivalent to a list write's CONCATENATION.

    `producers` are the operators before it, by the tensors that they compute; `specs` are
    propagated up to it. None if the operator is not a list write, or has static shapes already. A
    ValueError if the list holds elements of another shape.
    """
    o = operator.options
    if not isinstance(o, ConcatenationOptions) or len(operator.inputs) != 3 or o.axis != 0:
        return None
    before, element, after = operator.inputs
    head, tail = producers.get(before), producers.get(after)
    if head is None or tail is None or not (specs[before].is_dynamic and specs[after].is_dynamic):
        return None
    if not _are_around_one(head, tail, producers, specs):
        return None
    items, _, size = head.inputs
    if not _may_hold(specs[items], specs[element]):
        return None
    if specs[items].shape[1:] != specs[element].shape[1:]:
        held, written = specs[items].shape[1:], specs[element].shape[1:]
        raise ValueError(f"a list of tensors {list(held)} cannot hold {list(written)}")
    # [i, -1, ...]: the operator clamps negative starts to zero.
    return dataclasses.replace(
        operator,
        name="DYNAMIC_UPDATE_SLICE",
        builtin_code=int(BuiltinOperator.DYNAMIC_UPDATE_SLICE),
        version=1,
        inputs=(items, element, size),
        options=NoOptions(),
    )


def with_length(operator: Operator, inputs: Specs, outputs: Specs) -> Specs:
    """An operator's outputs; a list that it reserves for elements of an open shape is an open one.

    Source: core/kernels/list_kernels.h, TensorListReserve.
    """
    if operator.name not in (_EMPTY, _RESERVE) or not outputs[0].is_dynamic:
        return outputs
    number = np.int32(0) if operator.name == _EMPTY else inputs[1].const
    if number is None:
        return outputs
    length = max(int(np.asarray(number).reshape(-1)[0]), 0)
    return (dataclasses.replace(outputs[0], shape=(length, -1)),)


def settled_lists(
    operator: Operator, inputs: Specs, callee_inputs: Callable[[int, Specs], Specs]
) -> dict[int, TensorSpec]:
    """By tensor, the open lists among an operator's inputs whose shape the operator tells.

    `callee_inputs(subgraph, inputs)` are the specs of a called subgraph's inputs, whose lists its
    own operators may have settled.
    """
    lists = {p: s for p, s in enumerate(inputs) if s is not None and _is_open(s)}
    if not lists:
        return {}
    specs = dict(enumerate(inputs))
    written, n_before = _WRITING.get(operator.name, (0, 0))
    if written and not inputs[written].is_dynamic:
        specs[0] = _with_elements(inputs[0], inputs[written].shape[n_before:])
    elif operator.name in _SHAPED and inputs[-1].const is not None:
        specs[0] = _with_elements(inputs[0], tuple(np.asarray(inputs[-1].const).reshape(-1)))
    unknown = tuple(spec and dataclasses.replace(spec, const=None) for spec in inputs)
    for _, index in called_subgraphs(operator.options):
        for p, spec in enumerate(reversed(callee_inputs(index, unknown)), 1):
            specs[len(inputs) - p] = _settled(specs[len(inputs) - p], spec)
    return {
        operator.inputs[p]: _settled(spec, specs[p])
        for p, spec in lists.items()
        if not specs[p].is_dynamic
    }


def _is_open(spec: TensorSpec) -> bool:
    return spec.is_dynamic and len(spec.shape) == 2 and spec.shape[1] == -1


def _settled(spec: TensorSpec, settled: TensorSpec) -> TensorSpec:
    is_settled = _is_open(spec) and not settled.is_dynamic and settled.shape[:1] == spec.shape[:1]
    return _with_elements(spec, settled.shape[1:]) if is_settled else spec


def _with_elements(spec: TensorSpec, shape: Shape) -> TensorSpec:
    """The list of elements of a shape, which is known if no dimension is negative."""
    if not _is_open(spec) or min(shape, default=0) < 0:
        return spec
    return dataclasses.replace(spec, shape=(spec.shape[0], *map(int, shape)), is_dynamic=False)


def _may_hold(items: TensorSpec, element: TensorSpec) -> bool:
    return (
        not (items.is_dynamic or element.is_dynamic)
        and len(items.shape) == len(element.shape)
        and element.shape[:1] == (1,)
        and items.dtype == element.dtype
        and why_not_alike(items, element) is None
    )


def _are_around_one(
    head: Operator,
    tail: Operator,
    producers: Mapping[int, Operator],
    specs: Sequence[TensorSpec],
) -> bool:
    if {head.name, tail.name} != {"SLICE"} or head.inputs[0] != tail.inputs[0]:
        return False
    (_, start, size), (_, next_start, rest) = head.inputs, tail.inputs
    index, following = _vector(producers, size), _vector(producers, next_start)
    if index is None or following is None:
        return False
    constants = [(start, 0), (rest, -1), *((i, -1) for i in index[1:])]
    constants += ((i, 0) for i in following[1:])
    if not all(_holds(specs[tensor], value) for tensor, value in constants):
        return False
    return _follows(specs, producers, index[0], following[0])


def _holds(spec: TensorSpec, value: int) -> bool:
    return spec.const is not None and bool(np.all(spec.const == value))


def _vector(producers: Mapping[int, Operator], tensor: int) -> tuple[int, ...] | None:
    """(first size, the others) of a computed vector; (first size,) of a vector of one element."""
    producer = producers.get(tensor)
    if producer is None:
        return None
    if isinstance(producer.options, ConcatenationOptions):
        return producer.inputs if len(producer.inputs) == 2 else None
    return (tensor,) if _scalar(producers, tensor) != tensor else None


def _follows(
    specs: Sequence[TensorSpec], producers: Mapping[int, Operator], index: int, following: int
) -> bool:
    """Whether the second size is computed as the first one plus one."""
    i, j = _scalar(producers, index), _scalar(producers, following)
    producer = producers.get(j)
    if producer is None or producer.name != "ADD" or i not in producer.inputs:
        return False
    (other,) = (t for t in producer.inputs if t != i) if len(set(producer.inputs)) == 2 else (i,)
    return _holds(specs[other], 1)


def _scalar(producers: Mapping[int, Operator], tensor: int) -> int:
    """The scalar from which a vector of one element is made; other tensors themselves."""
    producer = producers.get(tensor)
    is_view = producer is not None and producer.name in ("RESHAPE", "EXPAND_DIMS")
    return producer.inputs[0] if producer is not None and is_view else tensor


def _needed(operators: tuple[Operator, ...], outputs: tuple[int, ...]) -> tuple[Operator, ...]:
    """The operators without those that only computed the original's slices."""
    wanted, kept = set(outputs), []
    for operator in reversed(operators):
        if operator.name not in _SLICING or wanted & set(operator.outputs):
            wanted.update(operator.inputs)
            kept.append(operator)
    return tuple(reversed(kept))
