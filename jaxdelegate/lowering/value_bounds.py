"""Finds convolutions whose results may exceed float16's range, from bounds of their values.

On a GPU, cuDNN stores most convolutions in float16, where larger values become infinite. Clamping
would need another kernel for each. If RELU6 or a similar operator bounds a convolution's input, its
weights bound its result, and often that is enough to exclude an overflow.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxdelegate.lowering.computation import LoweredPartition
from jaxdelegate.model.records import Operator
from jaxdelegate.op_lowering.options import (
    ActivationFunctionType,
    Conv2DOptions,
    DepthwiseConv2DOptions,
    FusedConvolutionOptions,
    record_of,
)
from jaxdelegate.op_lowering.records.operator import Result
from jaxdelegate.op_lowering.spec import TensorSpec

_FLOAT16_MAX = 65504.0
_ENDS: dict[Any, float] = {
    ActivationFunctionType.RELU6: 6.0,
    ActivationFunctionType.RELU_N1_TO_1: 1.0,
}
_BOUNDED = {"RELU6": 6.0, "RELU_N1_TO_1": 1.0, "LOGISTIC": 1.0, "TANH": 1.0, "SOFTMAX": 1.0}
_AVERAGES = frozenset(["MEAN", "AVERAGE_POOL_2D"])


def overflowing(partition: LoweredPartition) -> list[Operator]:
    """The operators whose results may become infinite in float16, as far as bounds are known.

    The partition was lowered under its precision policy.
    """
    bounds: dict[int, float] = {}  # known bounds of magnitudes, by tensor
    unbounded = []
    for step in partition.operators:
        operator = step.operator
        bound = _bound(operator, partition.specs, bounds)
        if step.lowered.may_overflow and bound > _FLOAT16_MAX:
            unbounded.append(operator)
        bounds.update(dict.fromkeys(operator.outputs, bound))
    return unbounded


def _bound(
    operator: Operator, specs: Mapping[int, TensorSpec], bounds: Mapping[int, float]
) -> float:
    read = [_of_tensor(i, specs, bounds) for i in operator.inputs if i >= 0]
    options: Any = operator.options
    end = _ENDS.get(getattr(options, "fused_activation_function", None), math.inf)
    convolution = options.convolution if isinstance(options, FusedConvolutionOptions) else options
    if operator.name in _BOUNDED:
        return _BOUNDED[operator.name]
    if isinstance(convolution, Conv2DOptions | DepthwiseConv2DOptions):
        return min(end, _of_sums(convolution, operator, specs, bounds))
    if operator.name == "ADD":
        return min(end, sum(read))
    is_moved = (
        operator.name in _AVERAGES or record_of(operator.name).precision.result is Result.MOVED
    )
    return min(end, max(read, default=math.inf) if is_moved else math.inf)


def _of_tensor(index: int, specs: Mapping[int, TensorSpec], bounds: Mapping[int, float]) -> float:
    const = specs[index].const
    if const is None:
        return bounds.get(index, math.inf)
    return float(np.abs(const).max(initial=0)) if const.dtype.kind in "fiu" else math.inf


def _of_sums(
    o: Conv2DOptions | DepthwiseConv2DOptions,
    operator: Operator,
    specs: Mapping[int, TensorSpec],
    bounds: Mapping[int, float],
) -> float:
    """The bound of x times the largest sum of a filter's magnitudes, plus bias and residual."""
    x, w, *rest = operator.inputs
    filters = specs[w].const
    if filters is None:
        return math.inf
    axes = (0, 1, 2) if isinstance(o, DepthwiseConv2DOptions) else (1, 2, 3)
    magnitudes = np.abs(filters.astype(np.float64)).sum(axes).max(initial=0)
    added = (_of_tensor(i, specs, bounds) for i in rest if i >= 0)
    return float(magnitudes) * _of_tensor(x, specs, bounds) + sum(added)
