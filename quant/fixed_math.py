"""exp, log, logistic, tanh, 1/x and 1/sqrt(x) of fixed-point numbers. Twin: jax_fixed_math.py.

Arguments are int32 or int16 raw values (see fixed_point.py), results have the same dtype. Bit for
bit what gemmlowp's fixedpoint.h and kernels/internal/common.h compute: polynomials and Newton
steps, each product and rescaling rounded.
"""

import numpy as np

from jaxdelegate.quant.fixed_point import (
    Integers,
    count_leading_zeros,
    dtype_of,
    rescale,
    rounding_divide_by_pot,
    rounding_half_sum,
    saturating_add,
    saturating_multiply_by_pot,
    saturating_sub,
    wide,
    wrap,
)
from jaxdelegate.quant.fixed_point import saturating_rounding_doubling_high_mul as mul

# Q0.31 constants, unless another Qm is named
EXP_MINUS_1_8, ONE_THIRD = 1895147668, 715827883
# exp(-(2**k)) by k
EXP_MINUS_POT = {
    -2: 1672461947,
    -1: 1302514674,
    0: 790015084,
    1: 290630308,
    2: 39332535,
    3: 720401,
    4: 242,
}
F2_48_17, F2_MINUS_32_17 = 1515870810, -1010580540  # Q2: 48/17 and -32/17
ONE_HALF = 1 << 30
LOG_2, SQRT_SQRT_HALF, SQRT_HALF, ONE_QUARTER = 1488522236, 1805811301, 1518500250, 536870912
LOG_ALPHA_N = 117049297  # 11/240 * 2**(1/4)
LOG_ALPHA_D = 127690142  # 1/20 * 2**(1/4)
LOG_ALPHA_I = 1057819769  # 2 / 2**(1/4) - 2**(1/4)
LOG_ALPHA_F = 638450708  # 1/4 * 2**(1/4)


def constant(value: int, dtype: np.dtype) -> int:
    """A constant given for int32, as a raw value of this dtype."""
    return int(rounding_divide_by_pot(value, 32 - 8 * dtype.itemsize))


def _add(a: Integers, b: Integers) -> np.ndarray:
    return wrap(wide(a) + wide(b), dtype_of(a))


def _sub(a: Integers, b: Integers) -> np.ndarray:
    return wrap(wide(a) - wide(b), dtype_of(a))


# ---- exp


def exp_on_negative_values(a: np.ndarray, integer_bits: int) -> np.ndarray:
    """exp(a) of a Qm number a <= 0, as Q0; 1 is the largest raw value."""
    bits = 8 * a.dtype.itemsize
    fractional_bits = bits - 1 - integer_bits
    quarter = 1 << (fractional_bits - 2)
    in_quarter = _sub(a & np.asarray(quarter - 1, a.dtype), quarter)  # in [-1/4, 0)
    y = _exp_in_last_quarter(rescale(in_quarter, integer_bits, 0))
    remainder = wide(_sub(in_quarter, a))  # whole quarters, bit by bit a factor
    for k, factor in EXP_MINUS_POT.items():
        if integer_bits > k:
            is_set = remainder & (1 << (fractional_bits + k)) != 0
            y = np.where(is_set, mul(y, constant(factor, a.dtype)), y)
    if integer_bits > 5:
        lowest = constant(-(1 << (36 - integer_bits)), a.dtype)  # -32
        y = np.where(a < lowest, np.zeros((), a.dtype), y)
    return np.where(a == 0, np.asarray(np.iinfo(a.dtype).max, a.dtype), y)


def _exp_in_last_quarter(a: np.ndarray) -> np.ndarray:
    """exp(a) of a Q0 number in [-1/4, 0): Taylor's series around -1/8, to the fourth power."""
    bits = 8 * a.dtype.itemsize
    center = constant(EXP_MINUS_1_8, a.dtype)
    x = _add(a, 1 << (bits - 4))
    x2 = mul(x, x)
    x3, x4 = mul(x2, x), mul(x2, x2)
    x4_4 = rounding_divide_by_pot(x4, 2)
    third_and_fourth = mul(_add(x4_4, x3), constant(ONE_THIRD, a.dtype))
    tail = rounding_divide_by_pot(_add(third_and_fourth, x2), 1)
    product = mul(np.full_like(a, center), _add(x, tail))
    return saturating_add(product, center) if bits == 16 else _add(product, center)


# ---- Divisions by Newton's method


def _reciprocal_of_half_sum(a: np.ndarray) -> np.ndarray:
    """2 / (1 + a) of a Q0 number in [0, 1], as Q2."""
    dtype = a.dtype
    half_denominator = rounding_half_sum(a, np.iinfo(dtype).max)
    one = 1 << (8 * dtype.itemsize - 3)
    x = _add(mul(half_denominator, constant(F2_MINUS_32_17, dtype)), constant(F2_48_17, dtype))
    for _ in range(3):
        error = _sub(np.full_like(a, one), mul(half_denominator, x))
        x = _add(x, rescale(mul(x, error), 4, 2))
    return x


def one_over_one_plus_x(a: np.ndarray) -> np.ndarray:
    """1 / (1 + a) of a Q0 number in [0, 1], as Q0 (one_over_one_plus_x_for_x_in_0_1)."""
    return rescale(_reciprocal_of_half_sum(a), 1, 0)  # the raw value of Q2, halved, is one of Q1


def one_minus_x_over_one_plus_x(a: np.ndarray) -> np.ndarray:
    """(1 - a) / (1 + a) of a Q0 number in [0, 1], as Q0."""
    return rescale(_sub(_reciprocal_of_half_sum(a), 1 << (8 * a.dtype.itemsize - 3)), 2, 0)


# ---- Sigmoids


def logistic(a: np.ndarray, integer_bits: int) -> np.ndarray:
    """1 / (1 + exp(-a)) of a Qm number, as Q0."""
    minus_magnitude = np.where(a > 0, _sub(np.zeros_like(a), a), a)
    of_magnitude = one_over_one_plus_x(exp_on_negative_values(minus_magnitude, integer_bits))
    one = np.asarray(np.iinfo(a.dtype).max, a.dtype)
    y = np.where(a > 0, of_magnitude, _sub(one, of_magnitude))
    return np.where(a == 0, np.asarray(constant(ONE_HALF, a.dtype), a.dtype), y)


def tanh(a: np.ndarray, integer_bits: int) -> np.ndarray:
    """The tanh of a Qm number, as Q0."""
    minus_magnitude = np.where(a < 0, a, _sub(np.zeros_like(a), a))
    # The raw value of Qm, doubled, is one of Q(m + 1).
    y = one_minus_x_over_one_plus_x(exp_on_negative_values(minus_magnitude, integer_bits + 1))
    y = np.where(a < 0, _sub(np.zeros_like(y), y), y)
    return np.where(a == 0, np.zeros((), a.dtype), y)


# ---- log


def log_at_least_one(
    a: np.ndarray, input_integer_bits: int, output_integer_bits: int
) -> np.ndarray:
    """log(a) of a Qm number a >= 1 (down to 1 / the largest), int32, with other integer bits.

    Source: log_x_for_x_greater_than_or_equal_to_1 of common.h: a is brought next to 2**(-1/4) by
    a power of two; of the two ways, with and without a factor of sqrt(1/2), the nearer one counts.
    """
    accumulator_bits = output_integer_bits + 1
    r, power = _significand_and_power(a, input_integer_bits, accumulator_bits)
    p = rounding_half_sum(r, SQRT_SQRT_HALF)
    q = _sub(r, SQRT_SQRT_HALF)
    q = _add(q, q)
    q2 = mul(q, q)
    numerator = _add(mul(q, r), mul(mul(q, q2), LOG_ALPHA_N))
    factor = _add(_add(mul(q2, LOG_ALPHA_D), q), LOG_ALPHA_I)
    denominator = _add(mul(p, factor), mul(q, LOG_ALPHA_F))  # minus one
    fraction = mul(rescale(numerator, 0, accumulator_bits), one_over_one_plus_x(denominator))
    return rescale(_add(mul(power, LOG_2), fraction), accumulator_bits, output_integer_bits)


def _significand_and_power(
    a: np.ndarray, input_integer_bits: int, accumulator_bits: int
) -> tuple[np.ndarray, np.ndarray]:
    """Significand r (Q0), power n (Q of the accumulator): a = r * 2**(n + 1/4)."""
    fractional_bits = 31 - accumulator_bits
    quarter = rescale(ONE_QUARTER, 0, accumulator_bits)
    zeros_a = count_leading_zeros(a)
    r_a = saturating_multiply_by_pot(mul(saturating_multiply_by_pot(a, zeros_a - 1), SQRT_HALF), 1)
    power_a = saturating_add(
        saturating_multiply_by_pot(input_integer_bits - zeros_a, fractional_bits), quarter
    )
    headroom_b = count_leading_zeros(mul(a, SQRT_HALF)) - 1
    r_b = saturating_multiply_by_pot(a, headroom_b)
    power_b = saturating_sub(
        saturating_multiply_by_pot(input_integer_bits - headroom_b, fractional_bits), quarter
    )
    return np.minimum(r_a, r_b), np.maximum(power_a, power_b)


# ---- Of integers, with exponents of their own


def reciprocal(x: np.ndarray, integer_bits: int) -> tuple[np.ndarray, np.ndarray]:
    """1/x of positive int32 Qm numbers: a Q0 number s and n (int32) with 1/x = s / 2**n.

    Source: GetReciprocal of common.h, whose second result is n.
    """
    headroom = count_leading_zeros(x)
    significand = ((wide(x) & 0xFFFFFFFF) << headroom) - (1 << 31)
    return one_over_one_plus_x(wrap(significand, np.dtype(np.int32))), integer_bits - headroom


def inverse_sqrt(x: np.ndarray, reverse_shift: int = -1) -> tuple[np.ndarray, np.ndarray]:
    """1/sqrt(x) of non-negative integers as multiplier and shift, both int32; 0 counts as 1.

    Source: GetInvSqrtQuantizedMultiplierExp of common.h. The shift is positive to the right, times
    `reverse_shift`: with -1 the pair goes to multiply_by_quantized_multiplier.
    """
    x = np.asarray(x, np.int32)
    large = x >= 1 << 29
    pairs = (count_leading_zeros(np.where(large, x >> 2, x)) - 1) // 2 - 1
    shift = 11 + large - pairs
    significand = wrap(wide(np.where(large, x >> 2, x)) << np.maximum(2 * pairs, 0), x.dtype)
    y = mul(_newton_inverse_sqrt(significand >> 1), SQRT_HALF)
    y = wrap(wide(y) << np.maximum(-shift, 0), x.dtype)
    shift = np.maximum(shift, 0) * reverse_shift
    trivial = x <= 1
    y = np.where(trivial, np.int32((1 << 31) - 1), y)
    return y, np.where(trivial, 0, shift).astype(np.int32)


def _newton_inverse_sqrt(x: np.ndarray) -> np.ndarray:
    """1/sqrt(x) of Q3 numbers in [1/4, 1), as Q3: five steps from 1."""
    half_x, half_three = rounding_divide_by_pot(x, 1), (1 << 28) + (1 << 27)
    y = np.full_like(x, 1 << 28)
    for _ in range(5):
        y3 = rescale(mul(mul(y, y), y), 9, 3)
        y = rescale(_sub(mul(y, half_three), mul(half_x, y3)), 6, 3)
    return y
