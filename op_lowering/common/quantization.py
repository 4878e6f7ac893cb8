"""Scales and zero points as integer kernels read them, and their requirements on tensors."""

from collections.abc import Callable, Container

import numpy as np

from jaxdelegate.op_lowering.records.enums import ActivationFunctionType
from jaxdelegate.op_lowering.rule import first_reason
from jaxdelegate.op_lowering.spec import TensorSpec
from jaxdelegate.quant.params import (
    Quantization,
    activation_range,
    integer_range,
    tensor_scale,
    tensor_zero_point,
)

_INT16 = np.dtype(np.int16)


def quantization_of(spec: TensorSpec) -> Quantization:
    """Raises a ValueError if the tensor is not quantized."""
    if spec.quantization is None:
        raise ValueError(f"{spec.name!r} is {spec.dtype} without a scale")
    return spec.quantization


def scale_of(spec: TensorSpec) -> float:
    """The only scale, a float32 value."""
    return tensor_scale(quantization_of(spec))


def zero_point_of(spec: TensorSpec) -> int:
    return tensor_zero_point(quantization_of(spec))


def why_not_scales(spec: TensorSpec) -> str | None:
    """A reason unless the tensor has one scale and zero point, or one for each channel."""
    q = spec.quantization
    if q is None or q.blockwise is not None:
        return None
    axis, scales, points = q.quantized_dimension, q.scale.size, q.zero_point.size
    unfit = scales > 1 and not (0 <= axis < len(spec.shape) and spec.shape[axis] == scales)
    if unfit:
        return f"{spec.name!r} has {scales} scales for axis {axis} of {list(spec.shape)}"
    if points in (0, 1, scales):
        return None
    return f"{spec.name!r} has {scales} scales and {points} zero points"


def why_not_one_scale(spec: TensorSpec, *, or_zero: bool = False) -> str | None:
    """A reason unless the tensor has one scale above 0 and a zero point of its dtype.

    `or_zero`: the scale may be 0, which the converter writes for constants that are all 0.
    """
    q = spec.quantization
    if spec.blocks is not None:
        return f"{spec.name!r} has blockwise scales; the kernel takes one scale"
    if q is None or not spec.is_quantized:
        return f"{spec.name!r} is {spec.dtype} without a scale"
    if q.is_per_channel or q.zero_point.size > 1:
        return f"{spec.name!r} has {q.scale.size} scales; the kernel takes one scale"
    if not (0 < tensor_scale(q) < np.inf or (or_zero and tensor_scale(q) == 0)):
        return f"the scale of {spec.name!r} is {tensor_scale(q)}"
    low, high = integer_range(spec.dtype)
    if not low <= tensor_zero_point(q) <= high:
        return f"the zero point of {spec.name!r} is {tensor_zero_point(q)}, not of {spec.dtype}"
    return None


def why_not_symmetric(spec: TensorSpec) -> str | None:
    if spec.dtype != _INT16 or spec.quantization is None or zero_point_of(spec) == 0:
        return None
    return f"the zero point of int16 {spec.name!r} is {zero_point_of(spec)}; the kernel expects 0"


def why_not_per_tensor(spec: TensorSpec, dtypes: frozenset[np.dtype]) -> str | None:
    return why_not_kernel(spec, dtypes) or why_not_one_scale(spec)


def why_not_kernel(spec: TensorSpec, dtypes: Container[np.dtype]) -> str | None:
    if spec.dtype in dtypes:
        return None
    return f"{spec.name!r} is quantized {spec.dtype}, which this operator has no kernel for"


def why_not_same(x: TensorSpec, y: TensorSpec, dtypes: frozenset[np.dtype]) -> str | None:
    """A reason unless `x` and `y` have the same one of these dtypes, each with its scale."""
    same = f"{x.name!r} is {x.dtype} and {y.name!r} {y.dtype}" if x.dtype != y.dtype else None
    return first_reason(why_not_per_tensor(x, dtypes), why_not_per_tensor(y, dtypes), same)


def why_not_zero_point(spec: TensorSpec, wanted: int) -> str | None:
    point = zero_point_of(spec)
    if point == wanted:
        return None
    return (
        f"the zero point of {spec.name!r} is {point}, and the {spec.dtype} kernel expects {wanted}"
    )


def why_not_activation_range(activation: ActivationFunctionType, y: TensorSpec) -> str | None:
    """A reason if a bound of the fused activation is not an integer of the output's scale."""
    return why_not_raised(lambda: activation_range(activation, quantization_of(y), y.dtype))


def why_not_raised(compute: Callable[[], object]) -> str | None:
    """The message of a ValueError that `compute` raises, as it does for unsupported scales."""
    try:
        compute()
    except ValueError as error:
        return str(error)
    return None
