"""Removes operators without effect. XLA would remove them too, but lowering them takes time."""

import math
from collections.abc import Callable

import numpy as np

from jaxdelegate.lowering.rewrites.pattern_rewriter import PatternRewriter
from jaxdelegate.model.records import Operator


def remove_no_op(rewriter: PatternRewriter, operator: Operator) -> bool:
    """Readers of the operator, which has no effect, read its input instead."""
    test = _TESTS.get(operator.name)
    if test is None or len(operator.outputs) != 1 or rewriter.is_kept(operator.outputs[0]):
        return False
    source, target = rewriter.spec(operator.inputs[0]), rewriter.spec(operator.outputs[0])
    if source.const is not None or source.is_variable or source.dtype != target.dtype:
        return False
    if source.is_quantized or target.is_quantized:  # the readers could see another scale
        return False
    if source.shape != target.shape or not test(rewriter, operator):
        return False
    rewriter.skip(operator, operator.inputs[0])
    return True


def _always(_rewriter: PatternRewriter, _operator: Operator) -> bool:
    return True


def _holds(value: int) -> Callable[[PatternRewriter, Operator], bool]:
    """A test whether all elements of the second input are the constant `value`."""

    def test(rewriter: PatternRewriter, operator: Operator) -> bool:
        array = rewriter.const(operator.inputs[1])
        return array is not None and bool(np.all(array == value))

    return test


def keeps_order(rewriter: PatternRewriter, operator: Operator) -> bool:
    """Whether a permutation keeps the order of all dimensions larger than one."""
    array = rewriter.const(operator.inputs[1])
    if array is None:
        return False
    shape = rewriter.shape(operator.inputs[0])
    order = [int(i) % max(len(shape), 1) for i in array.ravel()]
    moved = [i for i in order if shape[i] != 1]
    return moved == sorted(moved)


def _is_one(_rewriter: PatternRewriter, operator: Operator) -> bool:
    return len(operator.inputs) == 1


def _is_not_empty(rewriter: PatternRewriter, operator: Operator) -> bool:
    return math.prod(rewriter.shape(operator.inputs[0])) > 0


# Conditions under which an output with its input's shape and dtype is equal to the input.
_TESTS: dict[str, Callable[[PatternRewriter, Operator], bool]] = {
    "RESHAPE": _always,
    "SQUEEZE": _always,
    "CAST": _always,
    "BROADCAST_TO": _always,
    "TILE": _holds(1),
    "PAD": _holds(0),
    "PADV2": _holds(0),
    "TRANSPOSE": keeps_order,
    "CONCATENATION": _is_one,
    "SLICE": _is_not_empty,
}

REWRITES = {"remove_no_ops": remove_no_op}
