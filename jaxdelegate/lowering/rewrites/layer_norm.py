"""Fuses layer, instance and root-mean-square normalization into one operator.

(x - mean) / sqrt(variance + epsilon) * scale + offset, in any equivalent form.
"""

import dataclasses
import math
from collections.abc import Iterable

import numpy as np

from jaxdelegate.lowering.rewrites.algebra import (
    Expansion,
    before_reshapes,
    expanded_result,
    following,
    is_plain,
    scalar,
)
from jaxdelegate.lowering.rewrites.pattern_rewriter import PatternRewriter
from jaxdelegate.model.records import Operator
from jaxdelegate.op_lowering.options import ActivationFunctionType, LayerNormOptions
from jaxdelegate.op_lowering.spec import Shape

_ABSENT = -1


@dataclasses.dataclass(frozen=True)
class _Mean:
    """The mean of a tensor over axes, computed by `parts`."""

    source: int
    axes: tuple[int, ...]
    parts: frozenset[int]


@dataclasses.dataclass(frozen=True)
class _Deviation:
    """sqrt(mean((x - mean)^2) + epsilon); sqrt(mean(x^2) + epsilon) without a mean."""

    x: int
    mean: int | None
    axes: tuple[int, ...]
    parts: frozenset[int]
    epsilon: float = 0.0


def fuse_layer_norm(rewriter: PatternRewriter, operator: Operator) -> bool:
    """Fuse the root of a variance with the arithmetic before and after it."""
    inverse = _inverse(rewriter, operator)
    deviation = None if inverse is None else _deviation(rewriter, operator)
    if inverse is None or deviation is None:
        return False
    roots = following(rewriter, operator.outputs[0])
    return any(_fuse(rewriter, root, deviation, inverse) for root in roots)


def _inverse(rewriter: PatternRewriter, operator: Operator) -> int | None:
    """One over the deviation as an index in a Monomial: ~output of a root, output of an inverse."""
    if not is_plain(rewriter, operator) or not operator.outputs:
        return None
    if operator.name == "POW":
        exponent = scalar(rewriter, operator.inputs[1])
        return {-0.5: operator.outputs[0], 0.5: ~operator.outputs[0]}.get(exponent or 0)
    return {"RSQRT": operator.outputs[0], "SQRT": ~operator.outputs[0]}.get(operator.name)


def _fuse(rewriter: PatternRewriter, root: Operator, deviation: _Deviation, inverse: int) -> bool:
    x, mean = deviation.x, deviation.mean
    atoms = {x, x if mean is None else mean, inverse if inverse >= 0 else ~inverse}
    result = expanded_result(rewriter, root, atoms)
    operands = None if result is None else _scale_and_offset(result, deviation, inverse)
    if result is None or operands is None:
        return False
    if not all(_fits(rewriter, i, x) for i in operands) or not _has_shape(
        rewriter, root, (x, *operands)
    ):
        return False
    none = ActivationFunctionType.NONE
    options = LayerNormOptions(
        deviation.axes,
        deviation.epsilon,
        mean is not None,
        getattr(root.options, "fused_activation_function", none),
    )
    parts = deviation.parts | result.parts
    return rewriter.fuse("fused_layer_norm", options, (x, *operands), root, parts)


def _scale_and_offset(
    result: Expansion, deviation: _Deviation, inverse: int
) -> tuple[int, int] | None:
    """Scale and offset, or _ABSENT, with which `result` is the normalized x; None if it is not."""
    normalized = [m for m in result.terms if inverse in m and deviation.x in m]
    offsets = [m for m in result.terms if inverse not in m]
    if len(normalized) != 1 or len(offsets) > 1:
        return None
    scale = list(normalized[0])
    scale.remove(inverse)
    scale.remove(deviation.x)
    wanted = dict.fromkeys((*normalized, *offsets), 1.0)
    if deviation.mean is not None:
        wanted[tuple(sorted((*scale, inverse, deviation.mean)))] = -1.0
    if not result.is_close(wanted) or len(scale) > 1 or any(len(m) != 1 for m in offsets):
        return None
    offset = [i for monomial in offsets for i in monomial]
    if any(i < 0 for i in (*scale, *offset)):  # divided by
        return None
    return (*scale, _ABSENT)[0], (*offset, _ABSENT)[0]


def _fits(rewriter: PatternRewriter, tensor: int, x: int) -> bool:
    """Whether it can be a scale or an offset: a constant, or smaller than the normalized tensor."""
    if tensor == _ABSENT:
        return True
    spec, normalized = rewriter.spec(tensor), rewriter.spec(x)
    is_small = math.prod(spec.shape) < math.prod(normalized.shape)
    return spec.dtype == normalized.dtype and (is_small or spec.const is not None)


def _has_shape(rewriter: PatternRewriter, root: Operator, operands: Iterable[int]) -> bool:
    """Whether the operands broadcast to the normalized tensor, and the result has its shape."""
    shapes = [rewriter.shape(i) for i in operands if i != _ABSENT]
    try:
        whole = np.broadcast_shapes(*shapes)
    except ValueError:
        return False
    return whole == shapes[0] == rewriter.shape(root.outputs[0])


def _deviation(rewriter: PatternRewriter, operator: Operator) -> _Deviation | None:
    """The variance and epsilon whose root an operator computes; None if its input is not that."""
    tensor, parts = before_reshapes(rewriter, operator.inputs[0])
    add = rewriter.producer(tensor)
    if add is None or add.name != "ADD" or not is_plain(rewriter, add):
        return None
    for variance, constant in (add.inputs, add.inputs[::-1]):
        epsilon = scalar(rewriter, constant)
        square = None if epsilon is None else _mean(rewriter, variance)
        squares = None if square is None else _mean_of_squares(rewriter, square)
        if squares is not None and epsilon is not None and epsilon > 0:
            parts = parts | squares.parts | {add.index, operator.index}
            shape = _kept(rewriter, squares.x, squares.axes)
            if rewriter.shape(operator.outputs[0]) != shape:
                return None
            return dataclasses.replace(squares, epsilon=epsilon, parts=parts)
    return None


def _mean_of_squares(rewriter: PatternRewriter, square: _Mean) -> _Deviation | None:
    """The tensor whose squares are averaged: x minus its mean, or any tensor without a mean."""
    operator = rewriter.producer(square.source)
    if operator is None or not is_plain(rewriter, operator):
        return None
    parts = square.parts | {operator.index}
    if operator.name == "SQUARED_DIFFERENCE":
        pairs = (operator.inputs, operator.inputs[::-1])
        candidates = (_centered(rewriter, x, mean, square.axes) for x, mean in pairs)
        centered = next((c for c in candidates if c is not None), None)
        return centered and dataclasses.replace(centered, parts=centered.parts | parts)
    x = operator.inputs[0]
    if not _is_square(rewriter, operator, x):
        return None
    sub = rewriter.producer(x)
    if sub is not None and sub.name == "SUB" and is_plain(rewriter, sub):
        centered = _centered(rewriter, sub.inputs[0], sub.inputs[1], square.axes)
        if centered is not None:
            parts = parts | centered.parts | {sub.index}
            return dataclasses.replace(centered, parts=parts)
    return _Deviation(x, None, square.axes, parts)


def _is_square(rewriter: PatternRewriter, operator: Operator, x: int) -> bool:
    result = expanded_result(rewriter, operator, (x,))
    return result is not None and result.is_close({(x, x): 1.0})


def _centered(
    rewriter: PatternRewriter, x: int, mean: int, axes: tuple[int, ...]
) -> _Deviation | None:
    """The deviation of `x` if `mean` is its mean over the axes, kept as dimensions of one."""
    average = _mean(rewriter, mean)
    if average is None or (average.source, average.axes) != (x, axes):
        return None
    if rewriter.shape(mean) != _kept(rewriter, x, axes):
        return None
    return _Deviation(x, mean, axes, average.parts)


def _kept(rewriter: PatternRewriter, x: int, axes: tuple[int, ...]) -> Shape:
    return tuple(1 if i in axes else n for i, n in enumerate(rewriter.shape(x)))


def _mean(rewriter: PatternRewriter, tensor: int) -> _Mean | None:
    """A MEAN, or a SUM divided by the number of terms; reshapes may drop or restore the axes."""
    tensor, parts = before_reshapes(rewriter, tensor)
    operator = rewriter.producer(tensor)
    if operator is None or not is_plain(rewriter, operator):
        return None
    if operator.name == "MEAN":
        return _reduction(rewriter, operator, parts)
    total = next((i for i in operator.inputs if rewriter.const(i) is None), _ABSENT)
    share = expanded_result(rewriter, operator, (total,))
    tensor, reshapes = before_reshapes(rewriter, total)
    summed = rewriter.producer(tensor)
    if share is None or summed is None or summed.name != "SUM" or not is_plain(rewriter, summed):
        return None
    average = _reduction(rewriter, summed, parts | reshapes | share.parts)
    return (
        average if average and share.is_close({(total,): 1 / _count(rewriter, average)}) else None
    )


def _count(rewriter: PatternRewriter, mean: _Mean) -> int:
    shape = rewriter.shape(mean.source)
    return max(math.prod(shape[i] for i in mean.axes), 1)


def _reduction(
    rewriter: PatternRewriter, operator: Operator, parts: frozenset[int]
) -> _Mean | None:
    source, axes = operator.inputs[0], rewriter.const(operator.inputs[1])
    rank = len(rewriter.shape(source))
    if axes is None or rank == 0:
        return None
    over = tuple(sorted({int(i) % rank for i in axes.ravel()}))
    return _Mean(source, over, parts | {operator.index})


REWRITES = {"fuse_layer_norm": fuse_layer_norm}
