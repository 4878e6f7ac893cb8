"""Cuts a subgraph: keeps only the operators between given tensors."""

import dataclasses
from collections.abc import Collection, Sequence

from jaxdelegate.errors import TensorError
from jaxdelegate.model.operator_tables import called_subgraphs
from jaxdelegate.model.records import Operator, Subgraph
from jaxdelegate.op_lowering.dtypes import HANDLES
from jaxdelegate.passes.explicit_state import with_explicit_states

_ONCE = "CALL_ONCE"
_UNREAD = "_unread"  # at the end of the name of a result that a given tensor replaces


def cut(subgraph: Subgraph, inputs: Sequence[int] | None, outputs: Sequence[int]) -> Subgraph:
    """The operators that compute `outputs` from `inputs`, with their original indices.

    States change as in the whole graph: operators that update a state which the others read are
    kept, too. The operators that compute `inputs` are left out; None: those of the graph's inputs
    that the outputs depend on.
    """
    starts = subgraph.inputs if inputs is None else tuple(inputs)
    constant = [i for i in starts if subgraph.tensors[i].stored is not None]
    if constant:
        raise TensorError(
            f"tensor {constant[0]} {subgraph.tensors[constant[0]].name!r} is a constant of the "
            "file: it cannot be an input"
        )
    kept = _needed(subgraph, set(starts), outputs)
    read = {i for operator in kept for i in operator.inputs}.union(outputs)
    missing = read.intersection(subgraph.inputs).difference(starts)
    if missing:
        names = ", ".join(repr(subgraph.tensors[i].name) for i in sorted(missing))
        raise TensorError(
            f"the given tensors are not sufficient: the outputs also depend on the model's input "
            f"{names}; add it, or a tensor between it and the outputs"
        )
    used = starts if inputs is not None else tuple(i for i in starts if i in read)
    return _with_given(subgraph, kept, used, tuple(outputs))


def _needed(
    subgraph: Subgraph, starts: Collection[int], outputs: Sequence[int]
) -> tuple[Operator, ...]:
    """The operators that `outputs` depend on, and those that update the states these read."""
    explicit = with_explicit_states(subgraph).subgraph
    states = {t.index for t in explicit.tensors if t.is_variable}
    wanted, before = set(outputs).difference(starts), None
    while before != len(wanted):
        before, kept = len(wanted), set()
        for operator in reversed(explicit.operators):
            computed = set(operator.outputs).difference(starts)
            touched = states.intersection(operator.inputs)
            if (
                computed.isdisjoint(wanted)
                and touched.isdisjoint(wanted)
                and operator.name != _ONCE
            ):
                continue
            kept.add(operator.index)
            wanted.update(i for i in operator.inputs if i >= 0 and i not in starts)
    operators = [operator for operator in subgraph.operators if operator.index in kept]
    if not any(_may_use_resources(operator, subgraph) for operator in operators):
        operators = [operator for operator in operators if operator.name != _ONCE]
    return tuple(operators)


def _may_use_resources(operator: Operator, subgraph: Subgraph) -> bool:
    """Whether an operator, or one of a subgraph that it calls, may use what CALL_ONCE assigns."""
    if operator.name == _ONCE:
        return False
    touched = (subgraph.tensors[i] for i in (*operator.inputs, *operator.outputs) if i >= 0)
    return any(t.dtype in HANDLES for t in touched) or bool(called_subgraphs(operator.options))


def _with_given(
    subgraph: Subgraph,
    operators: Sequence[Operator],
    inputs: tuple[int, ...],
    outputs: tuple[int, ...],
) -> Subgraph:
    """Operators that are kept and also compute an input write to new tensors."""
    tensors = list(subgraph.tensors)

    def elsewhere(index: int) -> int:
        if index not in inputs:
            return index
        name = f"{tensors[index].name}{_UNREAD}"
        tensors.append(dataclasses.replace(tensors[index], index=len(tensors), name=name))
        return len(tensors) - 1

    moved = tuple(
        dataclasses.replace(operator, outputs=tuple(map(elsewhere, operator.outputs)))
        for operator in operators
    )
    return dataclasses.replace(
        subgraph, tensors=tuple(tensors), operators=moved, inputs=inputs, outputs=outputs
    )
