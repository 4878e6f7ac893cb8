"""Fixed-point arithmetic on int32 and int16 arrays of numpy; for jax: jax_fixed_point.py.

A raw value r of Qm, m integer bits, is the number r * 2**(m - 31), or r * 2**(m - 15) for int16.
Arguments are arrays or Python integers; intermediate values fit int64, and results have the dtype
of the first argument (int32 for a Python integer). Where C++ would overflow a signed integer, they
wrap around, as its compilers do on x86-64.

Sources: kernels/internal/common.h and common.cc, gemmlowp's fixedpoint.h.
"""

import numpy as np

xp = np  # for functions that serve numpy and jax
Integers = np.ndarray | int


def wide(x: Integers) -> np.ndarray:
    return np.asarray(x, np.int64)


def dtype_of(x: Integers) -> np.dtype:
    return x.dtype if isinstance(x, np.ndarray | np.generic) else np.dtype(np.int32)


def wrap(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """int64 values modulo 2**bits, as a C++ conversion on x86-64."""
    return np.asarray(x).astype(dtype)


def saturate(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    info = np.iinfo(dtype)
    return np.asarray(np.clip(x, int(info.min), int(info.max)), dtype)


# ---- Accumulators by a real factor; multiplier and shift as multiplier.quantize_multiplier's


def multiply_by_quantized_multiplier(
    x: Integers, multiplier: Integers, shift: Integers
) -> np.ndarray:
    """int32: x * multiplier * 2**(shift - 31), rounded; `x` is int32, shifts are -31 to 31.

    Rounds twice, as ai-edge-litert's x86-64 wheels (2.3.0 was tried): first to the high half of
    the product (ties upwards), then in the right shift (ties away from zero). The left shift
    comes before the product and wraps around. Source: MultiplyByQuantizedMultiplier(int32),
    common.cc, without TFLITE_SINGLE_ROUNDING.
    """
    left, right = np.maximum(wide(shift), 0), np.maximum(-wide(shift), 0)
    shifted = wrap(wide(x) << left, np.dtype(np.int32))
    return rounding_divide_by_pot(saturating_rounding_doubling_high_mul(shifted, multiplier), right)


def multiply_by_quantized_multiplier_64(
    x: Integers, multiplier: Integers, shift: Integers
) -> np.ndarray:
    """int32: int64 accumulators times a multiplier of 16 bits, rounded once.

    The kernels of int16 activations accumulate in int64, whether they have a bias or not,
    unless their options' quantized_bias_type is INT32. `x` is in [-2**47, 2**47), `multiplier`
    int32 and not negative, `shift` -31 to 7. Builds of either rounding compute the same.
    Source: MultiplyByQuantizedMultiplier(int64), common.cc.
    """
    multiplier = wide(multiplier)
    reduced = np.where(multiplier < 0x7FFF0000, (multiplier + (1 << 15)) >> 16, 0x7FFF)
    right = 15 - wide(shift)
    return wrap((wide(x) * reduced + (np.int64(1) << (right - 1))) >> right, np.dtype(np.int32))


# ---- Products of fixed-point numbers


def saturating_rounding_doubling_high_mul(a: Integers, b: Integers) -> np.ndarray:
    """The product a * b / 2**(bits - 1), ties upwards; its one overflow saturates.

    That is the lowest value squared. The product of Qm and Qn is one of Q(m + n). gemmlowp adds
    half, or half less one step to a negative product, and truncates, which is this rounding.
    """
    dtype = dtype_of(a)
    bits = 8 * dtype.itemsize
    product = (wide(a) * wide(b) + (1 << (bits - 2))) >> (bits - 1)
    return wrap(np.minimum(product, (1 << (bits - 1)) - 1), dtype)


def saturating_doubling_high_mul(a: Integers, b: Integers) -> np.ndarray:
    """The product a * b / 2**(bits - 1), towards zero.

    Source: SaturatingDoublingHighMul of reference/hard_swish.h.
    """
    dtype = dtype_of(a)
    bits = 8 * dtype.itemsize
    product = wide(a) * wide(b)
    towards_zero = (product + np.where(product < 0, (1 << (bits - 1)) - 1, 0)) >> (bits - 1)
    return wrap(np.minimum(towards_zero, (1 << (bits - 1)) - 1), dtype)


# ---- Powers of two


def rounding_divide_by_pot(x: Integers, exponent: Integers) -> np.ndarray:
    """The quotient x / 2**exponent, ties away from zero (gemmlowp's RoundingDivideByPOT).

    Exponents beyond the dtype's value bits (which gemmlowp excludes, and HARD_SWISH on int16 can
    meet) give what its arithmetic gives: the mask of the remainder wraps around.
    """
    dtype, x, exponent = dtype_of(x), wide(x), wide(exponent)
    mask = wide(wrap((np.int64(1) << exponent) - 1, dtype))
    threshold = (mask >> 1) + (x < 0)
    return wrap((x >> exponent) + ((x & mask) > threshold), dtype)


def saturating_left_shift(x: Integers, amount: Integers) -> np.ndarray:
    """The product x * 2**amount.

    Source: gemmlowp's ShiftLeft, SaturatingLeftShift of reference/hard_swish.h.
    """
    return saturate(wide(x) << np.minimum(wide(amount), 32), dtype_of(x))


def saturating_multiply_by_pot(x: Integers, exponent: Integers) -> np.ndarray:
    """The product x * 2**exponent, saturated, or rounded where the exponent is negative.

    Source: SaturatingRoundingMultiplyByPOT of gemmlowp, ...POTParam of common.h.
    """
    if isinstance(exponent, int):
        return (
            saturating_left_shift(x, exponent)
            if exponent >= 0
            else rounding_divide_by_pot(x, -exponent)
        )
    up = saturating_left_shift(x, np.maximum(exponent, 0))
    down = rounding_divide_by_pot(x, np.maximum(-wide(exponent), 0))
    return np.where(exponent >= 0, up, down)


def rescale(x: Integers, from_integer_bits: int, to_integer_bits: int) -> np.ndarray:
    """A number with other integer bits, saturated or rounded (gemmlowp's Rescale)."""
    return saturating_multiply_by_pot(x, from_integer_bits - to_integer_bits)


# ---- Sums


def wrapping_add(a: Integers, b: Integers) -> np.ndarray:
    return wrap(wide(a) + wide(b), dtype_of(a))


def wrapping_sub(a: Integers, b: Integers) -> np.ndarray:
    return wrap(wide(a) - wide(b), dtype_of(a))


def saturating_add(a: Integers, b: Integers) -> np.ndarray:
    """SaturatingAdd of gemmlowp; SaturatingAddNonGemmlowp of common.h."""
    return saturate(wide(a) + wide(b), dtype_of(a))


def saturating_sub(a: Integers, b: Integers) -> np.ndarray:
    """SaturatingSub of common.h."""
    return saturate(wide(a) - wide(b), dtype_of(a))


def rounding_half_sum(a: Integers, b: Integers) -> np.ndarray:
    """(a + b) / 2, ties away from zero (gemmlowp's RoundingHalfSum)."""
    total = wide(a) + wide(b)
    return wrap((total + (total >= 0)) >> 1, dtype_of(a))


# ---- Bits


def count_leading_zeros(x: Integers) -> np.ndarray:
    """int32: zeros above the highest set bit of the unsigned pattern (CountLeadingZeros)."""
    bits = 8 * dtype_of(x).itemsize
    pattern = wide(x) & ((1 << bits) - 1) if bits < 64 else wide(x)
    high, low = (pattern >> 32) & 0xFFFFFFFF, pattern & 0xFFFFFFFF
    used = np.where(high != 0, 32 + _bit_length(high), _bit_length(low))
    return np.asarray(bits - used, np.int32)


def _bit_length(x: np.ndarray) -> np.ndarray:
    """The integers are in [0, 2**32), which float64 holds exactly."""
    return np.asarray(np.frexp(x.astype(np.float64))[1])


def count_leading_sign_bits(x: Integers) -> np.ndarray:
    """int32: copies of the sign bit after it (CountLeadingSignBits of common.h)."""
    x = np.asarray(x, dtype_of(x))
    return np.asarray(count_leading_zeros(np.where(x >= 0, x, ~x)) - 1)
