"""Common parts of integer and dynamic range convolutions and matrix products."""

import numpy as np

from jaxdelegate.op_lowering.records.enums import ActivationFunctionType, TensorType
from jaxdelegate.op_lowering.spec import TensorSpec
from jaxdelegate.quant.affine import asymmetric_quantize, symmetric_quantize
from jaxdelegate.quant.params import Quantization, activation_range, tensor_zero_point
from jaxdelegate.quant.requantize import add_bias, requantize_accumulator
from jaxdelegate.reference.kernel import Array


def centered(q: Array, zero_point: int) -> Array:
    """Integers minus their zero point, as float64: their sums are exact below 2**53."""
    return q.astype(np.float64) - zero_point


def accumulated(total: Array, x: TensorSpec, bias_type: TensorType, b: Array | None) -> Array:
    """Exact sums [..., O] in the kernel's accumulator, with the bias added.

    The accumulator is int32, which wraps around; int64 for int16 activations, unless the bias type
    is int32.
    """
    wide = x.dtype == np.int16 and bias_type is not TensorType.INT32
    accumulator = total.astype(np.int64).astype(np.int64 if wide else np.int32)
    return add_bias(accumulator, None if b is None else b.reshape(-1))


def requantized(
    accumulator: Array,
    multiplier: int | Array,
    shift: int | Array,
    target: Quantization,
    activation: ActivationFunctionType,
    dtype: np.dtype,
) -> Array:
    """The output's integers: scaled in fixed point, clamped to the fused activation's range."""
    bounds = activation_range(activation, target, dtype)
    return requantize_accumulator(
        accumulator, multiplier, shift, tensor_zero_point(target), bounds, dtype
    )


# ---- dynamic range: float32 rows, integer filters

Rows = tuple[Array, Array, Array]


def quantize_rows(x: Array, *, asymmetric: bool) -> Rows:
    """Quantize float32 rows [..., n] on the fly; scales and zero points are [...]."""
    if asymmetric:
        return asymmetric_quantize(x)
    q, scale = symmetric_quantize(x)
    return q, scale, np.zeros(scale.shape, np.int32)


def signed(w: Array) -> Array:
    """A stored filter as int8; the kernels read uint8 as signed bytes."""
    return w.view(np.int8) if w.dtype == np.uint8 else w.astype(np.int8)
