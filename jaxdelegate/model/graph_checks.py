"""Checks of whole graphs: every tensor is written before it is read, and calls terminate."""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NoReturn, Protocol

Fail = Callable[[str, str, object], NoReturn]  # (field, rule, got)

_MAX_CALL_DEPTH = 64
# The planning work of called subgraphs, counted for each call: a few subgraphs can have billions.
# 1 for each tensor, and for each of an operator's inputs and outputs.
_MAX_CALLED_SIZE = 1_000_000
OPERATOR_SIZE = 10


class _Operator(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def custom(self) -> bool: ...
    @property
    def inputs(self) -> tuple[int, ...]: ...
    @property
    def outputs(self) -> tuple[int, ...]: ...


def check_order(
    operators: Sequence[_Operator],
    fixed: Collection[int],
    variables: Collection[int],
    outputs: Iterable[int],
    fail: Callable[[int | None], Fail],
) -> None:
    """Check that operators are in execution order and that each tensor has one writer.

    No operator may write `fixed` tensors, inputs and constants; one may write each of `variables`,
    which keep their value between invokes. `fail` returns the function that raises for an
    operator's position, or (None) the subgraph.
    """
    values = {*fixed, *variables}
    writers: dict[int, int] = {}
    for position, operator in enumerate(operators):
        for i, tensor in enumerate(operator.inputs):
            if tensor >= 0 and tensor not in values and not _is_shape_only(operator, i):
                _fail_unwritten(fail(position), tensor, operators)
        for tensor in operator.outputs:
            if tensor < 0:
                continue
            if tensor in fixed:
                fail(position)("outputs", "must not be an input or hold data, tensor", tensor)
            if tensor in writers:
                rule = f"a tensor must have one writer, operators[{writers[tensor]}] also writes"
                fail(position)("outputs", rule, tensor)
            writers[tensor] = position
            values.add(tensor)
        _check_overlap(operator, fail(position))
    for tensor in outputs:
        if tensor not in values:
            fail(None)("outputs", "must be written by an operator, or hold data", tensor)


def _check_overlap(operator: _Operator, fail: Fail) -> None:
    """Only custom operators may write their inputs (CheckInputAndOutputForOverlap)."""
    both = set() if operator.custom else {*operator.inputs}.intersection(operator.outputs) - {-1}
    for tensor in sorted(both):
        fail("outputs", "must not be among the operator's own inputs, tensor", tensor)


def _is_shape_only(operator: _Operator, position: int) -> bool:
    """RESHAPE's second input needs no data, since it has options (core/subgraph.cc, Invoke)."""
    return operator.name == "RESHAPE" and position == 1


def _fail_unwritten(fail: Fail, tensor: int, operators: Sequence[_Operator]) -> NoReturn:
    writer = next((i for i, op in enumerate(operators) if tensor in op.outputs), None)
    if writer is None:
        fail("inputs", "must hold data, or be an input or an earlier operator's output", tensor)
    fail("inputs", f"operators[{writer}], which writes the tensor, must come first", tensor)


def check_calls(
    calls: Sequence[Collection[int]], sizes: Sequence[int], fail: Callable[[int], Fail]
) -> None:
    """Check that no subgraph calls itself, and limit the depth and the number of calls.

    `calls` has, for each subgraph, those that its operators call, once for each call. `sizes` is
    the planning work of each: `OPERATOR_SIZE` for each operator, 1 for each tensor and for each
    input and output of an operator.
    """
    callers: list[list[int]] = [[] for _ in calls]
    for caller, below in enumerate(calls):
        for callee in below:
            callers[callee].append(caller)
    pending = [len(below) for below in calls]
    depth = [1] * len(calls)
    called = [0] * len(calls)
    done = [subgraph for subgraph, count in enumerate(pending) if count == 0]
    for subgraph in done:  # grows: a caller is added once all that it calls are done
        for caller in callers[subgraph]:
            depth[caller] = max(depth[caller], depth[subgraph] + 1)
            called[caller] += sizes[subgraph] + called[subgraph]
            pending[caller] -= 1
            if pending[caller] == 0:
                done.append(caller)
    if len(done) < len(calls):
        cycle = _cycle(calls, {subgraph for subgraph, count in enumerate(pending) if count})
        fail(cycle[0])("operators", "a subgraph must not call itself", " -> ".join(map(str, cycle)))
    if max(depth, default=0) > _MAX_CALL_DEPTH:
        deepest = depth.index(max(depth))
        rule = f"calls of subgraphs must not be nested more than {_MAX_CALL_DEPTH} levels deep"
        fail(deepest)("operators", rule, depth[deepest])
    if max(called, default=0) > _MAX_CALLED_SIZE:
        largest = called.index(max(called))
        rule = (
            f"calls may lead to {_MAX_CALLED_SIZE} tensors, inputs and outputs of operators, and "
            "a tenth as many operators, counted for each call"
        )
        fail(largest)("operators", rule, called[largest])


def _cycle(calls: Sequence[Collection[int]], stuck: Collection[int]) -> list[int]:
    """A cycle among `stuck`, which call each other; its first subgraph is repeated at the end."""
    path: dict[int, None] = {}
    at = min(stuck)
    while at not in path:
        path[at] = None
        at = next(callee for callee in calls[at] if callee in stuck)
    order = list(path)
    return [*order[order.index(at) :], at]
