"""What integer kernels ask of the tensors that they compute on."""

from typing import Any

import numpy as np

from jaxdelegate.op_lowering.spec import TensorSpec
from jaxdelegate.quant.params import Quantization, tensor_zero_point


def quantization_of(operator: str, spec: TensorSpec, *dtypes: Any) -> Quantization:
    """The scale and zero point of a tensor that must have one of these dtypes.

    Raises:
        TypeError: another dtype, no scale, or scales in blocks.
    """
    if spec.dtype not in [np.dtype(dtype) for dtype in dtypes]:
        raise TypeError(f"{operator}: no kernel for quantized {spec.dtype} {spec.name!r}")
    if spec.quantization is None or not spec.is_quantized:
        raise TypeError(f"{operator}: {spec.dtype} {spec.name!r} has no scale")
    if spec.quantization.blockwise is not None:
        raise TypeError(f"{operator}: no kernel for {spec.dtype} {spec.name!r}, scaled in blocks")
    return spec.quantization


def require_symmetric(operator: str, *specs: TensorSpec) -> None:
    """Check that int16 tensors have no zero point.

    Raises:
        ValueError: one has; the kernels refuse it.
    """
    for spec in specs:
        if spec.dtype == np.int16 and spec.quantization and tensor_zero_point(spec.quantization):
            raise ValueError(f"{operator}: the zero point of int16 {spec.name!r} must be 0")


def require_quantization(
    operator: str, spec: TensorSpec, scale: float, zero_point: int, tolerance: float = 0.0
) -> None:
    """Check that a tensor has the scale and zero point that its kernel takes for granted.

    Raises:
        ValueError: it has others.
    """
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
