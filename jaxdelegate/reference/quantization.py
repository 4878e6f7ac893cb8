"""Scales and zero points of tensors, and what integer kernels require of them."""

from typing import Any

import numpy as np

from jaxdelegate.op_lowering.records.enums import ActivationFunctionType
from jaxdelegate.op_lowering.spec import TensorSpec
from jaxdelegate.quant.params import Quantization, activation_range, tensor_scale, tensor_zero_point
from jaxdelegate.reference.kernel import Array


def _scaled(spec: TensorSpec) -> Quantization:
    if spec.quantization is None or not spec.is_quantized:
        raise ValueError(f"{spec.name!r} is {spec.dtype} without a scale")
    return spec.quantization


def scale_of(spec: TensorSpec) -> np.float32:
    return np.float32(tensor_scale(_scaled(spec)))


def zero_point_of(spec: TensorSpec) -> int:
    return tensor_zero_point(_scaled(spec))


def range_of(
    spec: TensorSpec, activation: ActivationFunctionType = ActivationFunctionType.NONE
) -> tuple[int, int]:
    """The range of an output's integers under a fused activation."""
    return activation_range(activation, _scaled(spec), spec.dtype)


def steps_of(q: Array, spec: TensorSpec) -> Array:
    """Integers minus their zero point, int32: reals / scale."""
    return q.astype(np.int32) - np.int32(zero_point_of(spec))


def quantization_of(operator: str, spec: TensorSpec, *dtypes: Any) -> Quantization:
    if spec.dtype not in [np.dtype(dtype) for dtype in dtypes]:
        raise TypeError(f"{operator}: no kernel for quantized {spec.dtype} {spec.name!r}")
    if spec.quantization is None or not spec.is_quantized:
        raise TypeError(f"{operator}: {spec.dtype} {spec.name!r} has no scale")
    if spec.quantization.blockwise is not None:
        raise TypeError(f"{operator}: no kernel for {spec.dtype} {spec.name!r}, scaled in blocks")
    return spec.quantization


def require_symmetric(operator: str, *specs: TensorSpec) -> None:
    """The kernels refuse an int16 tensor that has a zero point."""
    for spec in specs:
        if spec.dtype != np.int16 or spec.quantization is None:
            continue
        zero_point = tensor_zero_point(spec.quantization)
        if zero_point:
            raise ValueError(
                f"{operator}: the zero point of int16 {spec.name!r} is {zero_point}, not 0"
            )


def require_quantization(
    operator: str, spec: TensorSpec, scale: float, zero_point: int, tolerance: float = 0.0
) -> None:
    q = spec.quantization
    right = (
        q is not None
        and abs(float(q.scale[0]) - scale) <= tolerance * scale
        and tensor_zero_point(q) == zero_point
    )
    if not right:
        raise ValueError(
            f"{operator}: {spec.dtype} {spec.name!r} must have scale {scale} and zero point "
            f"{zero_point}"
        )
