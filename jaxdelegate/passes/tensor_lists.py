"""Loop bodies that write one element of a tensor list, without shapes that depend on data.

TensorFlow's converter writes `list[i] = element` as CONCATENATION(list[:i], element, list[i + 1:]),
where the sizes of both slices are computed at run time, although the result is always as long as
the list (lower_static_tensor_list.cc). Said as DYNAMIC_UPDATE_SLICE, the body of a Keras GRU or
LSTM has static shapes throughout and runs inside the compiled loop.
"""

import dataclasses

import numpy as np
from ai_edge_litert.schema_py_generated import BuiltinOperator

from jaxdelegate.model.records import Operator, Subgraph
from jaxdelegate.op_lowering.options import ConcatenationOptions, DynamicUpdateSliceOptions

# What computes the slices of the original, and has no effect but its output.
_SERVANTS = frozenset(("SLICE", "CONCATENATION", "RESHAPE", "EXPAND_DIMS"))


def with_list_updates(subgraph: Subgraph) -> Subgraph:
    """The subgraph with such writes as DYNAMIC_UPDATE_SLICE; itself if there are none.

    An index outside of the list, which the original refuses at run time, writes its nearest end.
    """
    writes = {c.index: w for c in subgraph.operators if (w := _write(subgraph, c)) is not None}
    if not writes:
        return subgraph
    operators = tuple(writes.get(o.index, o) for o in subgraph.operators)
    return dataclasses.replace(subgraph, operators=_read_ones(operators, subgraph.outputs))


def _write(subgraph: Subgraph, operator: Operator) -> Operator | None:
    """The list write that a CONCATENATION ends, if it does."""
    o = operator.options
    if not isinstance(o, ConcatenationOptions) or len(operator.inputs) != 3 or o.axis != 0:
        return None
    before, element, after = operator.inputs
    makers = {i: op for op in subgraph.operators for i in op.outputs}
    head, tail = makers.get(before), makers.get(after)
    if head is None or tail is None or {head.name, tail.name} != {"SLICE"}:
        return None
    (items, start, size), (same_items, next_start, rest) = head.inputs, tail.inputs
    index, following = _vector(makers.get(size)), _vector(makers.get(next_start))
    if index is None or following is None or items != same_items:
        return None
    constants = ((start, 0), (index[1], -1), (following[1], 0), (rest, -1))
    if not all(_holds(subgraph, tensor, value) for tensor, value in constants):
        return None
    if not _is_element(subgraph, items, element) or not _follows(
        subgraph, makers, index, following
    ):
        return None
    # [i, -1, ...]: the operator takes a start below zero as zero.
    return dataclasses.replace(
        operator,
        name="DYNAMIC_UPDATE_SLICE",
        builtin_code=int(BuiltinOperator.DYNAMIC_UPDATE_SLICE),
        version=1,
        inputs=(items, element, size),
        options=DynamicUpdateSliceOptions(),
    )


def _is_element(subgraph: Subgraph, items: int, element: int) -> bool:
    whole, one = subgraph.tensors[items], subgraph.tensors[element]
    return (
        whole.dtype == one.dtype
        and len(whole.shape) == len(one.shape) > 0
        and one.shape == (1, *whole.shape[1:])
        and whole.quantization == one.quantization
    )


def _holds(subgraph: Subgraph, tensor: int, value: int) -> bool:
    """Whether a constant holds nothing but `value`."""
    data = subgraph.tensors[tensor].data
    return data is not None and bool(np.all(data == value))


def _vector(operator: Operator | None) -> tuple[int, int] | None:
    """(first size, the others) of a vector that CONCATENATION puts together."""
    if operator is None or not isinstance(operator.options, ConcatenationOptions):
        return None
    return operator.inputs if len(operator.inputs) == 2 else None


def _follows(
    subgraph: Subgraph,
    makers: dict[int, Operator],
    index: tuple[int, int],
    following: tuple[int, int],
) -> bool:
    """Whether the second vector begins with the first one's index plus one."""
    i, j = (_scalar(makers, vector[0]) for vector in (index, following))
    maker = makers.get(j)
    if maker is None or maker.name != "ADD" or i not in maker.inputs:
        return False
    (other,) = (t for t in maker.inputs if t != i) if len(set(maker.inputs)) == 2 else (i,)
    return _holds(subgraph, other, 1)


def _scalar(makers: dict[int, Operator], tensor: int) -> int:
    """The scalar after a vector of one."""
    maker = makers.get(tensor)
    is_view = maker is not None and maker.name in ("RESHAPE", "EXPAND_DIMS")
    return maker.inputs[0] if maker is not None and is_view else tensor


def _read_ones(operators: tuple[Operator, ...], outputs: tuple[int, ...]) -> tuple[Operator, ...]:
    """The operators that the outputs need: those that only served the old form are gone."""
    wanted, kept = set(outputs), []
    for operator in reversed(operators):
        if operator.name not in _SERVANTS or wanted & set(operator.outputs):
            wanted.update(operator.inputs)
            kept.append(operator)
    return tuple(reversed(kept))
