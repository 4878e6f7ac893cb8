"""The jax counterpart of fixed_math.py: the same functions on traced arrays, equal bit for bit."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxdelegate.quant import fixed_math
from jaxdelegate.quant.fixed_math import constant
from jaxdelegate.quant.jax_fixed_point import (
    Integers,
    count_leading_zeros,
    rescale,
    rounding_divide_by_pot,
    rounding_half_sum,
    saturating_add,
    saturating_multiply_by_pot,
    saturating_sub,
)
from jaxdelegate.quant.jax_fixed_point import saturating_rounding_doubling_high_mul as mul


def _add(a: jax.Array, b: Integers) -> jax.Array:
    return a + jnp.asarray(b, a.dtype)


def _sub(a: jax.Array, b: Integers) -> jax.Array:
    return a - jnp.asarray(b, a.dtype)


def _largest(a: jax.Array) -> int:
    return int(np.iinfo(a.dtype).max)


# ---- exp


def exp_on_negative_values(a: jax.Array, integer_bits: int) -> jax.Array:
    """exp(a) of a Qm number a <= 0, as Q0; see fixed_math.exp_on_negative_values."""
    fractional_bits = 8 * a.dtype.itemsize - 1 - integer_bits
    quarter = 1 << (fractional_bits - 2)
    in_quarter = _sub(a & jnp.asarray(quarter - 1, a.dtype), quarter)
    y = _exp_in_last_quarter(rescale(in_quarter, integer_bits, 0))
    remainder = _sub(in_quarter, a)
    for k, factor in fixed_math.EXP_MINUS_POT.items():
        if integer_bits > k:
            is_set = remainder & jnp.asarray(1 << (fractional_bits + k), a.dtype) != 0
            y = jnp.where(is_set, mul(y, constant(factor, a.dtype)), y)
    if integer_bits > 5:
        lowest = constant(-(1 << (36 - integer_bits)), a.dtype)  # -32
        y = jnp.where(a < lowest, jnp.zeros_like(a), y)
    return jnp.where(a == 0, jnp.full_like(a, _largest(a)), y)


def _exp_in_last_quarter(a: jax.Array) -> jax.Array:
    bits = 8 * a.dtype.itemsize
    center = constant(fixed_math.EXP_MINUS_1_8, a.dtype)
    x = _add(a, 1 << (bits - 4))
    x2 = mul(x, x)
    x3, x4 = mul(x2, x), mul(x2, x2)
    x4_4 = rounding_divide_by_pot(x4, 2)
    third_and_fourth = mul(_add(x4_4, x3), constant(fixed_math.ONE_THIRD, a.dtype))
    tail = rounding_divide_by_pot(_add(third_and_fourth, x2), 1)
    product = mul(_add(x, tail), center)
    return saturating_add(product, center) if bits == 16 else _add(product, center)


# ---- Divisions by Newton's method


def _reciprocal_of_half_sum(a: jax.Array) -> jax.Array:
    """2 / (1 + a) of a Q0 number in [0, 1], as Q2."""
    half_denominator = rounding_half_sum(a, _largest(a))
    one = jnp.full_like(a, 1 << (8 * a.dtype.itemsize - 3))
    slope, start = (constant(c, a.dtype) for c in (fixed_math.F2_MINUS_32_17, fixed_math.F2_48_17))
    x = _add(mul(half_denominator, slope), start)
    for _ in range(3):
        error = _sub(one, mul(half_denominator, x))
        x = _add(x, rescale(mul(x, error), 4, 2))
    return x


def one_over_one_plus_x(a: jax.Array) -> jax.Array:
    """1 / (1 + a) of a Q0 number in [0, 1], as Q0."""
    return rescale(_reciprocal_of_half_sum(a), 1, 0)


def one_minus_x_over_one_plus_x(a: jax.Array) -> jax.Array:
    """(1 - a) / (1 + a) of a Q0 number in [0, 1], as Q0."""
    return rescale(_sub(_reciprocal_of_half_sum(a), 1 << (8 * a.dtype.itemsize - 3)), 2, 0)


# ---- Sigmoids


def logistic(a: jax.Array, integer_bits: int) -> jax.Array:
    """1 / (1 + exp(-a)) of a Qm number, as Q0."""
    minus_magnitude = jnp.where(a > 0, -a, a)
    of_magnitude = one_over_one_plus_x(exp_on_negative_values(minus_magnitude, integer_bits))
    one = jnp.full_like(a, _largest(a))
    y = jnp.where(a > 0, of_magnitude, _sub(one, of_magnitude))
    return jnp.where(a == 0, jnp.full_like(a, constant(fixed_math.ONE_HALF, a.dtype)), y)


def tanh(a: jax.Array, integer_bits: int) -> jax.Array:
    """The tanh of a Qm number, as Q0."""
    minus_magnitude = jnp.where(a < 0, a, -a)
    y = one_minus_x_over_one_plus_x(exp_on_negative_values(minus_magnitude, integer_bits + 1))
    return jnp.where(a == 0, jnp.zeros_like(a), jnp.where(a < 0, -y, y))


# ---- log


def log_at_least_one(a: jax.Array, input_integer_bits: int, output_integer_bits: int) -> jax.Array:
    """log(a) of a Qm number a >= 1, int32; see fixed_math.log_at_least_one."""
    accumulator_bits = output_integer_bits + 1
    r, power = _significand_and_power(a, input_integer_bits, accumulator_bits)
    p = rounding_half_sum(r, fixed_math.SQRT_SQRT_HALF)
    q = _sub(r, fixed_math.SQRT_SQRT_HALF)
    q = _add(q, q)
    q2 = mul(q, q)
    numerator = _add(mul(q, r), mul(mul(q, q2), fixed_math.LOG_ALPHA_N))
    factor = _add(_add(mul(q2, fixed_math.LOG_ALPHA_D), q), fixed_math.LOG_ALPHA_I)
    denominator = _add(mul(p, factor), mul(q, fixed_math.LOG_ALPHA_F))
    fraction = mul(rescale(numerator, 0, accumulator_bits), one_over_one_plus_x(denominator))
    total = _add(mul(power, fixed_math.LOG_2), fraction)
    return rescale(total, accumulator_bits, output_integer_bits)


def _significand_and_power(
    a: jax.Array, input_integer_bits: int, accumulator_bits: int
) -> tuple[jax.Array, jax.Array]:
    fractional_bits = 31 - accumulator_bits
    quarter = rescale(fixed_math.ONE_QUARTER, 0, accumulator_bits)
    zeros_a = count_leading_zeros(a)
    r_a = mul(saturating_multiply_by_pot(a, zeros_a - 1), fixed_math.SQRT_HALF)
    r_a = saturating_multiply_by_pot(r_a, 1)
    power_a = saturating_multiply_by_pot(input_integer_bits - zeros_a, fractional_bits)
    headroom_b = count_leading_zeros(mul(a, fixed_math.SQRT_HALF)) - 1
    r_b = saturating_multiply_by_pot(a, headroom_b)
    power_b = saturating_multiply_by_pot(input_integer_bits - headroom_b, fractional_bits)
    power = jnp.maximum(saturating_add(power_a, quarter), saturating_sub(power_b, quarter))
    return jnp.minimum(r_a, r_b), power


# ---- Of integers, with exponents of their own


def reciprocal(x: jax.Array, integer_bits: int) -> tuple[jax.Array, jax.Array]:
    """1/x of positive int32 Qm numbers as Q0 and exponent; see fixed_math.reciprocal."""
    headroom = count_leading_zeros(x)
    significand = (x << headroom) ^ np.int32(-(1 << 31))  # without its highest bit, which is set
    return one_over_one_plus_x(significand), integer_bits - headroom


def inverse_sqrt(x: jax.Array, reverse_shift: int = -1) -> tuple[jax.Array, jax.Array]:
    """1/sqrt(x) of integers as multiplier and shift, both int32; see fixed_math.inverse_sqrt."""
    x = x.astype(np.int32)
    large, trivial = x >= 1 << 29, x <= 1
    reduced = jnp.where(large, x >> 2, x)
    pairs = (count_leading_zeros(reduced) - 1) // 2 - 1
    shift = 11 + large.astype(np.int32) - pairs
    significand = reduced << jnp.maximum(2 * pairs, 0)
    y = mul(_newton_inverse_sqrt(significand >> 1), fixed_math.SQRT_HALF)
    y = y << jnp.maximum(-shift, 0)
    shift = jnp.maximum(shift, 0) * reverse_shift
    y = jnp.where(trivial, jnp.full_like(y, _largest(x)), y)
    return y, jnp.where(trivial, jnp.zeros_like(shift), shift)


def _newton_inverse_sqrt(x: jax.Array) -> jax.Array:
    half_x, half_three = rounding_divide_by_pot(x, 1), (1 << 28) + (1 << 27)
    y = jnp.full_like(x, 1 << 28)
    for _ in range(5):
        y3 = rescale(mul(mul(y, y), y), 9, 3)
        y = rescale(_sub(mul(y, half_three), mul(half_x, y3)), 6, 3)
    return y
