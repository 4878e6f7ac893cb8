"""Integer pools of averages and maxima, on int8, uint8 and int16.

Input and output share a scale, so a pool reduces the stored integers; only the fused activation
depends on the scale. Semantics: kernels/pooling.cc, pooling3d.cc, and pooling.h and
integer_ops/pooling.h of kernels/internal/reference.
"""

from collections.abc import Callable

import jax
import numpy as np

from jaxdelegate.op_lowering.common import basics
from jaxdelegate.op_lowering.common.quantization import (
    quantization_of,
    scale_of,
    why_not_activation_range,
    why_not_same,
    zero_point_of,
)
from jaxdelegate.op_lowering.records.enums import ActivationFunctionType
from jaxdelegate.op_lowering.rule import why_not_dtype, why_not_result
from jaxdelegate.op_lowering.spec import TensorSpec
from jaxdelegate.quant.params import activation_range, integer_range

_INTEGERS = frozenset(np.dtype(t) for t in (np.int8, np.uint8, np.int16))
_SCALE_TOLERANCE = 1e-6  # kernels/pooling.cc


def why_not_pooled(
    x: TensorSpec, y: TensorSpec, dtypes: frozenset[np.dtype], activation: ActivationFunctionType
) -> str | None:
    """`dtypes` are the operator's inputs."""
    if not x.is_quantized:
        return why_not_dtype(x, dtypes) or why_not_result(y, x.dtype)
    return (
        why_not_same(x, y, dtypes & _INTEGERS)
        or _why_not_one_scale(x, y)
        or why_not_activation_range(activation, y)
    )


def _why_not_one_scale(x: TensorSpec, y: TensorSpec) -> str | None:
    apart = abs(scale_of(x) - scale_of(y))
    if apart <= _SCALE_TOLERANCE and zero_point_of(x) == zero_point_of(y):
        return None
    return f"{x.name!r} and {y.name!r} are quantized differently; pools do not requantize"


def fused_activation(
    activation: ActivationFunctionType, y: TensorSpec
) -> Callable[[jax.Array], jax.Array]:
    if not y.is_quantized:
        return basics.fused_activation(activation)
    low, high = activation_range(activation, quantization_of(y), y.dtype)
    if (low, high) == integer_range(y.dtype):
        return lambda pooled: pooled
    return lambda pooled: basics.clamp(pooled, low, high)
