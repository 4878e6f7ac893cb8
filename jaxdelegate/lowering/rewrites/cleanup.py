"""Operators that change nothing: XLA would remove them too, but only after it has compiled them."""

import math
from collections.abc import Callable

import numpy as np

from jaxdelegate.lowering.rewrites.pattern_rewriter import PatternRewriter
from jaxdelegate.model.records import Operator


def remove_no_op(rewriter: PatternRewriter, operator: Operator) -> bool:
    """Let the readers of a copy read the original."""
    test = _TESTS.get(operator.name)
    if test is None or len(operator.outputs) != 1 or rewriter.is_kept(operator.outputs[0]):
        return False
    source, target = rewriter.spec(operator.inputs[0]), rewriter.spec(operator.outputs[0])
    if source.const is not None or source.is_variable or source.dtype != target.dtype:
        return False
    if source.is_quantized or target.is_quantized:  # the readers' scale would be another
        return False
    if source.shape != target.shape or not test(rewriter, operator):
        return False
    rewriter.skip(operator, operator.inputs[0])
    return True


def _always(_rewriter: PatternRewriter, _operator: Operator) -> bool:
    return True


def _holds(value: int) -> Callable[[PatternRewriter, Operator], bool]:
    """Whether the second input is a constant that holds nothing but `value`."""

    def test(rewriter: PatternRewriter, operator: Operator) -> bool:
        array = rewriter.const(operator.inputs[1])
        return array is not None and bool(np.all(array == value))

    return test


def _keeps_order(rewriter: PatternRewriter, operator: Operator) -> bool:
    """Whether a permutation moves no dimension that has more than one element."""
    array = rewriter.const(operator.inputs[1])
    if array is None:
        return False
    shape = rewriter.shape(operator.inputs[0])
    order = [int(i) % max(len(shape), 1) for i in array.ravel()]
    moved = [i for i in order if shape[i] != 1]
    return moved == sorted(moved)


def _is_one(_rewriter: PatternRewriter, operator: Operator) -> bool:
    return len(operator.inputs) == 1


def _is_all(rewriter: PatternRewriter, operator: Operator) -> bool:
    """A slice as large as its input is its input."""
    return math.prod(rewriter.shape(operator.inputs[0])) > 0


# Those whose output, if it has the input's shape and dtype, is the input; under what condition.
_TESTS: dict[str, Callable[[PatternRewriter, Operator], bool]] = {
    "RESHAPE": _always,
    "SQUEEZE": _always,
    "CAST": _always,
    "BROADCAST_TO": _always,
    "TILE": _holds(1),
    "PAD": _holds(0),
    "PADV2": _holds(0),
    "TRANSPOSE": _keeps_order,
    "CONCATENATION": _is_one,
    "SLICE": _is_all,
}


REWRITES = {"remove_no_ops": remove_no_op}
