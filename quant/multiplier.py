"""A positive real as an int32 multiplier and a shift: real ~ multiplier * 2**(shift - 31).

Computed on float64 when a model is prepared. Source: kernels/internal/quantization_util.cc, which
aborts where these functions raise ValueError.
"""

import math

import numpy as np

_LEAST_ABOVE_ONE = 1 + 2.0**-30  # with a multiplier of 31 bits


def quantize_multipliers(reals: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Multipliers and shifts, both int32 of the shape of `reals` (QuantizeMultiplier).

    The multiplier is in [2**30, 2**31), or 0 for a real that is 0 or nearly so (its shift would
    be below -31). Negative reals give negative multipliers.
    """
    reals = np.asarray(reals, np.float64)
    if not np.isfinite(reals).all():
        raise ValueError(f"a multiplier must be finite, got {reals}")
    fraction, shift = np.frexp(reals)
    twice = np.trunc(np.abs(fraction) * 2.0**32).astype(np.int64)  # exact: a power of two
    multiplier = np.sign(reals).astype(np.int64) * ((twice + 1) >> 1)
    full = multiplier == 1 << 31
    multiplier = np.where(full, 1 << 30, multiplier)
    shift = shift.astype(np.int64) + full
    vanishes = shift < -31
    shift, multiplier = np.where(vanishes, 0, shift), np.where(vanishes, 0, multiplier)
    return multiplier.astype(np.int32), shift.astype(np.int32)


def quantize_multiplier(real: float) -> tuple[int, int]:
    multiplier, shift = quantize_multipliers(np.asarray(real))
    return int(multiplier), int(shift)


def quantize_multiplier_smaller_than_one(real: float) -> tuple[int, int]:
    """The shift is <= 0 (QuantizeMultiplierSmallerThanOneExp)."""
    if not 0 < real < 1:
        raise ValueError(f"a multiplier in (0, 1) is needed, got {real}")
    multiplier, shift = quantize_multiplier(real)
    if shift > 0:
        raise ValueError(f"a multiplier in (0, 1) is needed, {real} rounds to 1")
    return multiplier, shift


def quantize_multiplier_greater_than_one(real: float) -> tuple[int, int]:
    """The shift is > 0 (QuantizeMultiplierGreaterThanOne)."""
    if not real > 1:
        raise ValueError(f"a multiplier above 1 is needed, got {real}")
    return quantize_multiplier(real)


def downscale_multiplier(multiplier: int) -> int:
    """An int32 multiplier in int16, saturated (DownScaleInt32ToInt16Multiplier, common.h)."""
    if multiplier < 0:
        raise ValueError(f"a multiplier of at least 0 is needed, got {multiplier}")
    return min((multiplier + (1 << 15)) >> 16, (1 << 15) - 1)


def softmax_multiplier(beta: float, input_scale: float, input_integer_bits: int) -> tuple[int, int]:
    """Multiplier and shift from input steps to the exponent of a softmax, in Qm.31-m.

    Source: PreprocessSoftmaxScaling; SOFTMAX and LOG_SOFTMAX of 8 bits have 5 integer bits. The
    kernels abort where the multiplier is not above 1. It is then the least one above 1 here:
    255 such steps change an exponential by 4e-6, too little to show in 16 bits.
    """
    real = min(beta * input_scale * 2.0 ** (31 - input_integer_bits), 2.0**31 - 1)
    if 0 <= real < _LEAST_ABOVE_ONE:
        real = _LEAST_ABOVE_ONE
    return quantize_multiplier_greater_than_one(real)


def log_softmax_multipliers(
    beta: float, input_scale: float, input_integer_bits: int
) -> tuple[int, int, int, int]:
    """softmax_multiplier's pair, then that of the inverse, with a shift <= 0.

    Source: PreprocessLogSoftmaxScalingExp.
    """
    multiplier, shift = softmax_multiplier(beta, input_scale, input_integer_bits)
    back = quantize_multiplier_smaller_than_one(2.0 ** (31 - shift) / multiplier)
    return multiplier, shift, *back


def input_radius(input_integer_bits: int, left_shift: int) -> int:
    """The largest input step that fits Qm after the left shift (CalculateInputRadius)."""
    largest = float((1 << input_integer_bits) - 1)
    return math.floor(largest * 2.0 ** (31 - input_integer_bits) / 2.0**left_shift)


def checked_log2(x: float) -> tuple[int, bool]:
    """The integer nearest to log2(x), and whether log2(x) is within 1e-3 of it (CheckedLog2).

    Computed in float32, as in C++; the natural logarithm is rounded to float32 from float64.
    """
    one_over_log_2 = np.float32(1) / np.float32(math.log(2.0))
    log2 = np.float32(math.log(np.float32(x))) * one_over_log_2
    nearest = math.floor(abs(float(log2)) + 0.5) * (1 if log2 >= 0 else -1)
    return nearest, bool(abs(log2 - np.float32(nearest)) < np.float32(1e-3))
