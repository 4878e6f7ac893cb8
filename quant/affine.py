"""real = scale * (q - zero_point), both ways, and fake quantization. Its twin is jax_affine.py."""

from typing import Any

import ml_dtypes
import numpy as np

from jaxdelegate.quant.params import Quantization


def integer_range(dtype: np.dtype) -> tuple[int, int]:
    """The smallest and the largest integer of a dtype, packed ones included."""
    info: Any = ml_dtypes.iinfo(dtype)  # type: ignore[no-untyped-call]
    return int(info.min), int(info.max)


def along(quantization: Quantization, rank: int) -> tuple[np.ndarray, np.ndarray]:
    """Scale (float32) and zero point (int32), shaped to broadcast with a tensor of this rank.

    Raises:
        ValueError: the scales are blockwise, which this arithmetic does not know.
    """
    if quantization.blockwise is not None:
        raise ValueError("blockwise scales are tensors of their own")
    scale = quantization.scale.astype(np.float32)
    zero_point = np.broadcast_to(
        quantization.zero_point.astype(np.int32) if quantization.zero_point.size else np.int32(0),
        scale.shape,
    )
    if not quantization.is_per_channel:
        return scale.reshape(()), zero_point.reshape(())
    shape = [1] * rank
    shape[quantization.quantized_dimension] = -1
    return scale.reshape(shape), zero_point.reshape(shape)


def dequantize(q: np.ndarray, quantization: Quantization) -> np.ndarray:
    """float32 reals. As kernels/internal/reference/dequantize.h: one rounding, in the product."""
    scale, zero_point = along(quantization, q.ndim)
    real: np.ndarray = scale * (q.astype(np.int32) - zero_point).astype(np.float32)
    return np.asarray(real)


def quantize(x: np.ndarray, quantization: Quantization, dtype: np.dtype) -> np.ndarray:
    """Integers of `dtype`, halves away from zero, saturated. Source: kernels/.../quantize.h.

    The kernel's float -> int32 conversion is undefined in C++ for NaN and beyond 2**31; here NaN
    gives the smallest integer (as that conversion on x86), and large values saturate (as on Arm
    and in XNNPACK).
    """
    scale, zero_point = along(quantization, x.ndim)
    low, high = integer_range(dtype)
    with np.errstate(all="ignore"):
        steps = _round_half_away(x.astype(np.float32) / scale)
        steps = np.where(steps > low - zero_point, steps, (low - zero_point).astype(np.float32))
        steps = np.minimum(steps, (high - zero_point).astype(np.float32))
    q: np.ndarray = steps.astype(np.int32) + zero_point
    return np.asarray(q, dtype)


def fake_quantize(
    x: np.ndarray, low: float, high: float, num_bits: int, *, narrow_range: bool
) -> np.ndarray:
    """float32 `x` on 2**num_bits levels over [low, high] (FakeQuantizeArray, quantization_util)."""
    first, last, step = nudged_range(low, high, num_bits, narrow_range=narrow_range)
    with np.errstate(all="ignore"):
        inverse = np.float32(1) / step
        inside = np.where(x > first, x, first)  # NaN becomes the first level
        inside = np.where(inside < last, inside, last)
        return _round_half_away((inside - first) * inverse) * step + first


def nudged_range(
    low: float, high: float, num_bits: int, *, narrow_range: bool
) -> tuple[np.float32, np.float32, np.float32]:
    """First level, last level, step (float32): [low, high] moved so that zero is a level.

    As NudgeQuantizationRange (quantization_util.cc). narrow_range leaves out level 0, as TensorFlow
    does.
    """
    first, last = np.float32(narrow_range), np.float32(2**num_bits - 1)
    with np.errstate(all="ignore"):
        step = (np.float32(high) - np.float32(low)) / (last - first)
        zero = first - np.float32(low) / step
        zero = np.float32(_round_half_away(np.clip(zero, first, last)))
        return (first - zero) * step, (last - zero) * step, step


def _round_half_away(x: np.ndarray | np.float32) -> np.ndarray:
    """std::round. Not trunc(x + 0.5): the sum rounds 0.49999997 up to 1."""
    whole = np.trunc(x)
    return np.asarray(np.where(np.abs(x - whole) >= 0.5, whole + np.sign(x), whole))
