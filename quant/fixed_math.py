"""exp, log, logistic, tanh, 1/x and 1/sqrt(x) of fixed-point numbers, of numpy and of jax.

Arguments are int32 or int16 raw values (see fixed_point.py); results have their dtype. `fixed` is
the module that does the arithmetic: fixed_point, or jax_fixed_point for traced arrays. Results
equal those of gemmlowp's fixedpoint.h and kernels/internal/common.h bit for bit: polynomials and
Newton steps, each product and rescaling rounded.
"""

from types import ModuleType
from typing import Any

import numpy as np

from jaxdelegate.quant import fixed_point

Array = Any  # numpy's or jax's

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


def _constant(value: int, dtype: np.dtype) -> int:
    """A raw value of int32 as one of this dtype."""
    return int(fixed_point.rounding_divide_by_pot(value, 32 - 8 * dtype.itemsize))


def _largest(a: Array) -> int:
    return int(np.iinfo(a.dtype).max)


# ---- exp


def exp_on_negative_values(a: Array, integer_bits: int, fixed: ModuleType = fixed_point) -> Array:
    """exp(a) of a Qm number a <= 0, as Q0; 1 is the largest raw value."""
    xp, mul = fixed.xp, fixed.saturating_rounding_doubling_high_mul
    fractional_bits = 8 * a.dtype.itemsize - 1 - integer_bits
    quarter = 1 << (fractional_bits - 2)
    in_quarter = fixed.wrapping_sub(a & xp.asarray(quarter - 1, a.dtype), quarter)  # in [-1/4, 0)
    y = _exp_in_last_quarter(fixed.rescale(in_quarter, integer_bits, 0), fixed)
    remainder = fixed.wrapping_sub(in_quarter, a)  # whole quarters, bit by bit a factor
    for k, factor in EXP_MINUS_POT.items():
        if integer_bits > k:
            is_set = remainder & xp.asarray(1 << (fractional_bits + k), a.dtype) != 0
            y = xp.where(is_set, mul(y, _constant(factor, a.dtype)), y)
    if integer_bits > 5:
        lowest = _constant(-(1 << (36 - integer_bits)), a.dtype)  # -32
        y = xp.where(a < lowest, xp.zeros_like(a), y)
    return xp.where(a == 0, xp.full_like(a, _largest(a)), y)


def _exp_in_last_quarter(a: Array, fixed: ModuleType) -> Array:
    """exp(a) of a Q0 number in [-1/4, 0): Taylor's series around -1/8, to the fourth power."""
    add, mul = fixed.wrapping_add, fixed.saturating_rounding_doubling_high_mul
    bits = 8 * a.dtype.itemsize
    center = _constant(EXP_MINUS_1_8, a.dtype)
    x = add(a, 1 << (bits - 4))
    x2 = mul(x, x)
    x3, x4 = mul(x2, x), mul(x2, x2)
    x4_4 = fixed.rounding_divide_by_pot(x4, 2)
    third_and_fourth = mul(add(x4_4, x3), _constant(ONE_THIRD, a.dtype))
    tail = fixed.rounding_divide_by_pot(add(third_and_fourth, x2), 1)
    product = mul(add(x, tail), center)
    return fixed.saturating_add(product, center) if bits == 16 else add(product, center)


# ---- Divisions by Newton's method


def _reciprocal_of_half_sum(a: Array, fixed: ModuleType) -> Array:
    """2 / (1 + a) of a Q0 number in [0, 1], as Q2."""
    add, mul = fixed.wrapping_add, fixed.saturating_rounding_doubling_high_mul
    half_denominator = fixed.rounding_half_sum(a, _largest(a))
    one = fixed.xp.full_like(a, 1 << (8 * a.dtype.itemsize - 3))
    slope, start = (_constant(c, a.dtype) for c in (F2_MINUS_32_17, F2_48_17))
    x = add(mul(half_denominator, slope), start)
    for _ in range(3):
        error = fixed.wrapping_sub(one, mul(half_denominator, x))
        x = add(x, fixed.rescale(mul(x, error), 4, 2))
    return x


def one_over_one_plus_x(a: Array, fixed: ModuleType = fixed_point) -> Array:
    """1 / (1 + a) of a Q0 number in [0, 1], as Q0 (one_over_one_plus_x_for_x_in_0_1)."""
    half_sum = _reciprocal_of_half_sum(a, fixed)
    return fixed.rescale(half_sum, 1, 0)  # the raw value of Q2, halved, is one of Q1


def one_minus_x_over_one_plus_x(a: Array, fixed: ModuleType = fixed_point) -> Array:
    """(1 - a) / (1 + a) of a Q0 number in [0, 1], as Q0."""
    one = 1 << (8 * a.dtype.itemsize - 3)
    return fixed.rescale(fixed.wrapping_sub(_reciprocal_of_half_sum(a, fixed), one), 2, 0)


# ---- Sigmoids


def logistic(a: Array, integer_bits: int, fixed: ModuleType = fixed_point) -> Array:
    """1 / (1 + exp(-a)) of a Qm number, as Q0."""
    xp = fixed.xp
    minus_magnitude = xp.where(a > 0, -a, a)
    exponential = exp_on_negative_values(minus_magnitude, integer_bits, fixed)
    of_magnitude = one_over_one_plus_x(exponential, fixed)
    one = xp.full_like(a, _largest(a))
    y = xp.where(a > 0, of_magnitude, fixed.wrapping_sub(one, of_magnitude))
    return xp.where(a == 0, xp.full_like(a, _constant(ONE_HALF, a.dtype)), y)


def tanh(a: Array, integer_bits: int, fixed: ModuleType = fixed_point) -> Array:
    """The tanh of a Qm number, as Q0."""
    xp = fixed.xp
    minus_magnitude = xp.where(a < 0, a, -a)
    # The raw value of Qm, doubled, is one of Q(m + 1).
    exponential = exp_on_negative_values(minus_magnitude, integer_bits + 1, fixed)
    y = one_minus_x_over_one_plus_x(exponential, fixed)
    return xp.where(a == 0, xp.zeros_like(a), xp.where(a < 0, -y, y))


# ---- log


def log_at_least_one(
    a: Array, input_integer_bits: int, output_integer_bits: int, fixed: ModuleType = fixed_point
) -> Array:
    """log(a) of a Qm number a >= 1 (down to 1 / the largest), int32, with other integer bits.

    Source: log_x_for_x_greater_than_or_equal_to_1 of common.h: a power of two brings a close to
    2**(-1/4); with and without a factor of sqrt(1/2), the closer result counts.
    """
    add, mul = fixed.wrapping_add, fixed.saturating_rounding_doubling_high_mul
    accumulator_bits = output_integer_bits + 1
    r, power = _significand_and_power(a, input_integer_bits, accumulator_bits, fixed)
    p = fixed.rounding_half_sum(r, SQRT_SQRT_HALF)
    q = fixed.wrapping_sub(r, SQRT_SQRT_HALF)
    q = add(q, q)
    q2 = mul(q, q)
    numerator = add(mul(q, r), mul(mul(q, q2), LOG_ALPHA_N))
    factor = add(add(mul(q2, LOG_ALPHA_D), q), LOG_ALPHA_I)
    denominator = add(mul(p, factor), mul(q, LOG_ALPHA_F))  # minus one
    quotient = one_over_one_plus_x(denominator, fixed)
    fraction = mul(fixed.rescale(numerator, 0, accumulator_bits), quotient)
    return fixed.rescale(add(mul(power, LOG_2), fraction), accumulator_bits, output_integer_bits)


def _significand_and_power(
    a: Array, input_integer_bits: int, accumulator_bits: int, fixed: ModuleType
) -> tuple[Array, Array]:
    """Significand r (Q0), power n (Q of the accumulator): a = r * 2**(n + 1/4)."""
    xp, mul = fixed.xp, fixed.saturating_rounding_doubling_high_mul
    fractional_bits = 31 - accumulator_bits
    quarter = fixed.rescale(ONE_QUARTER, 0, accumulator_bits)
    zeros_a = fixed.count_leading_zeros(a)
    r_a = mul(fixed.saturating_multiply_by_pot(a, zeros_a - 1), SQRT_HALF)
    r_a = fixed.saturating_multiply_by_pot(r_a, 1)
    power_a = fixed.saturating_multiply_by_pot(input_integer_bits - zeros_a, fractional_bits)
    headroom_b = fixed.count_leading_zeros(mul(a, SQRT_HALF)) - 1
    r_b = fixed.saturating_multiply_by_pot(a, headroom_b)
    power_b = fixed.saturating_multiply_by_pot(input_integer_bits - headroom_b, fractional_bits)
    power_a = fixed.saturating_add(power_a, quarter)
    power_b = fixed.saturating_sub(power_b, quarter)
    return xp.minimum(r_a, r_b), xp.maximum(power_a, power_b)


# ---- Functions of integers, whose results have an exponent


def reciprocal(x: Array, integer_bits: int, fixed: ModuleType = fixed_point) -> tuple[Array, Array]:
    """1/x of positive int32 Qm numbers: a Q0 number s and n (int32) with 1/x = s / 2**n.

    Source: GetReciprocal of common.h, whose second result is n.
    """
    headroom = fixed.count_leading_zeros(x)
    significand = (x << headroom) ^ np.int32(-(1 << 31))  # without its highest bit, which is set
    return one_over_one_plus_x(significand, fixed), integer_bits - headroom


def inverse_sqrt(x: Array, fixed: ModuleType = fixed_point) -> tuple[Array, Array]:
    """1/sqrt(x) of non-negative integers as multiplier and shift, both int32; 0 counts as 1.

    Source: GetInvSqrtQuantizedMultiplierExp of common.h, with a reversed shift. The pair goes to
    multiply_by_quantized_multiplier.
    """
    xp, mul = fixed.xp, fixed.saturating_rounding_doubling_high_mul
    x = xp.asarray(x, np.int32)
    large, trivial = x >= 1 << 29, x <= 1
    reduced = xp.where(large, x >> 2, x)
    pairs = (fixed.count_leading_zeros(reduced) - 1) // 2 - 1
    shift = 11 + large.astype(np.int32) - pairs
    significand = reduced << xp.maximum(2 * pairs, 0)
    y = mul(_newton_inverse_sqrt(significand >> 1, fixed), SQRT_HALF)
    y = y << xp.maximum(-shift, 0)
    shift = xp.maximum(shift, 0) * -1
    y = xp.where(trivial, xp.full_like(y, _largest(x)), y)
    return y, xp.where(trivial, xp.zeros_like(shift), shift)


def _newton_inverse_sqrt(x: Array, fixed: ModuleType) -> Array:
    """1/sqrt(x) of Q3 numbers in [1/4, 1), as Q3: five steps from 1."""
    mul = fixed.saturating_rounding_doubling_high_mul
    half_x, half_three = fixed.rounding_divide_by_pot(x, 1), (1 << 28) + (1 << 27)
    y = fixed.xp.full_like(x, 1 << 28)
    for _ in range(5):
        y3 = fixed.rescale(mul(mul(y, y), y), 9, 3)
        y = fixed.rescale(fixed.wrapping_sub(mul(y, half_three), mul(half_x, y3)), 6, 3)
    return y
