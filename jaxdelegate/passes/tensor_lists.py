"""Loop bodies that write one element of a tensor list, without shapes that depend on data.

TensorFlow's converter writes `list[i] = element` as CONCATENATION(list[:i], element, list[i + 1:]),
where the sizes of both slices are computed at run time, although the result is always as long as
the list (lower_static_tensor_list.cc). As DYNAMIC_UPDATE_SLICE, the body of a Keras GRU or LSTM has
static shapes throughout and runs inside the compiled loop.

Whether a CONCATENATION is such a write depends on the shapes of the list and the element for the
current inputs: a file may declare every dimension of a list as unknown.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
from ai_edge_litert.schema_py_generated import BuiltinOperator

from jaxdelegate.model.records import Operator, Subgraph
from jaxdelegate.op_lowering.options import (
    ConcatenationOptions,
    DynamicUpdateSliceOptions,
    why_not_alike,
)
from jaxdelegate.op_lowering.spec import TensorSpec

# What computes the slices of the original, and has no effect but its output.
_SERVANTS = frozenset(("SLICE", "CONCATENATION", "RESHAPE", "EXPAND_DIMS"))


def with_list_updates(subgraph: Subgraph, specs: Sequence[TensorSpec]) -> Subgraph:
    """The subgraph with such writes as DYNAMIC_UPDATE_SLICE; itself if there are none.

    The result has the same tensors, so that the specs hold for it too. An index outside of the
    list, which the original refuses at run time, writes the nearest element.

    Args:
        subgraph: a graph as the file has it.
        specs: of its tensors, propagated from the current inputs.
    """
    makers = {i: o for o in subgraph.operators for i in o.outputs if i >= 0}
    updates = {
        operator.index: update
        for operator in subgraph.operators
        if (update := list_update(operator, makers, specs)) is not None
    }
    if not updates:
        return subgraph
    operators = tuple(updates.get(o.index, o) for o in subgraph.operators)
    return dataclasses.replace(subgraph, operators=_needed(operators, subgraph.outputs))


def list_update(
    operator: Operator, makers: Mapping[int, Operator], specs: Sequence[TensorSpec]
) -> Operator | None:
    """The DYNAMIC_UPDATE_SLICE that does what a list write's CONCATENATION does.

    None: the operator does something else, or its shapes are static as it is.

    Args:
        operator: any operator.
        makers: the operators before it, by the tensors that they compute.
        specs: propagated up to this operator.

    Raises:
        ValueError: the list holds elements of another shape.
    """
    o = operator.options
    if not isinstance(o, ConcatenationOptions) or len(operator.inputs) != 3 or o.axis != 0:
        return None
    before, element, after = operator.inputs
    head, tail = makers.get(before), makers.get(after)
    if head is None or tail is None or not (specs[before].is_dynamic and specs[after].is_dynamic):
        return None
    if not _are_around_one(head, tail, makers, specs):
        return None
    items, _, size = head.inputs
    if not _may_hold(specs[items], specs[element]):
        return None
    if specs[items].shape[1:] != specs[element].shape[1:]:
        held, given = specs[items].shape[1:], specs[element].shape[1:]
        raise ValueError(f"a list of tensors {list(held)} cannot hold {list(given)}")
    # [i, -1, ...]: the operator takes a start below zero as zero.
    return dataclasses.replace(
        operator,
        name="DYNAMIC_UPDATE_SLICE",
        builtin_code=int(BuiltinOperator.DYNAMIC_UPDATE_SLICE),
        version=1,
        inputs=(items, element, size),
        options=DynamicUpdateSliceOptions(),
    )


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
    makers: Mapping[int, Operator],
    specs: Sequence[TensorSpec],
) -> bool:
    """Whether two operators are list[:i] and list[i + 1:]."""
    if {head.name, tail.name} != {"SLICE"} or head.inputs[0] != tail.inputs[0]:
        return False
    (_, start, size), (_, next_start, rest) = head.inputs, tail.inputs
    index, following = _vector(makers, size), _vector(makers, next_start)
    if index is None or following is None:
        return False
    constants = [(start, 0), (rest, -1), *((i, -1) for i in index[1:])]
    constants += ((i, 0) for i in following[1:])
    if not all(_holds(specs[tensor], value) for tensor, value in constants):
        return False
    return _follows(specs, makers, index[0], following[0])


def _holds(spec: TensorSpec, value: int) -> bool:
    """Whether a constant holds nothing but `value`."""
    return spec.const is not None and bool(np.all(spec.const == value))


def _vector(makers: Mapping[int, Operator], tensor: int) -> tuple[int, ...] | None:
    """(first size, the others) of a computed vector; (first size,) of a vector of one."""
    maker = makers.get(tensor)
    if maker is None:
        return None
    if isinstance(maker.options, ConcatenationOptions):
        return maker.inputs if len(maker.inputs) == 2 else None
    return (tensor,) if _scalar(makers, tensor) != tensor else None


def _follows(
    specs: Sequence[TensorSpec], makers: Mapping[int, Operator], index: int, following: int
) -> bool:
    """Whether the second size is the first one plus one."""
    i, j = _scalar(makers, index), _scalar(makers, following)
    maker = makers.get(j)
    if maker is None or maker.name != "ADD" or i not in maker.inputs:
        return False
    (other,) = (t for t in maker.inputs if t != i) if len(set(maker.inputs)) == 2 else (i,)
    return _holds(specs[other], 1)


def _scalar(makers: Mapping[int, Operator], tensor: int) -> int:
    """The scalar that a vector of one holds."""
    maker = makers.get(tensor)
    is_view = maker is not None and maker.name in ("RESHAPE", "EXPAND_DIMS")
    return maker.inputs[0] if maker is not None and is_view else tensor


def _needed(operators: tuple[Operator, ...], outputs: tuple[int, ...]) -> tuple[Operator, ...]:
    """The operators without those that only computed the slices of the original."""
    wanted, kept = set(outputs), []
    for operator in reversed(operators):
        if operator.name not in _SERVANTS or wanted & set(operator.outputs):
            wanted.update(operator.inputs)
            kept.append(operator)
    return tuple(reversed(kept))
