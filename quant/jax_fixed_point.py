"""The jax counterpart of fixed_point.py: the same functions on traced arrays, equal bit for bit.

Needs 64-bit types: on a CPU int32 is multiplied in int64. Everywhere else int32 is enough. GPUs and
TPUs have no 64-bit multiplier, and fuse what has 32 bits into more of their kernels.

Multipliers, shifts and exponents are integers, numpy arrays or traced ones; an array must have the
rank of the data, as jax's strict rank promotion demands.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

xp = jnp  # for functions that serve numpy and jax
Integers = jax.Array | np.ndarray | int

_INT16, _INT32 = np.dtype(np.int16), np.dtype(np.int32)
_LEAST, _MOST = -(1 << 31), (1 << 31) - 1


def wide(x: Integers) -> jax.Array:
    """int64; with 64-bit types off, products would lose their high halves."""
    if jax.dtypes.canonicalize_dtype(np.int64) != np.int64:
        raise RuntimeError("fixed-point arithmetic needs 64-bit types: jax.enable_x64(True)")
    return jnp.asarray(x).astype(np.int64)


def dtype_of(x: Integers) -> np.dtype:
    return _INT32 if isinstance(x, int) else np.dtype(x.dtype)


def wrap(x: jax.Array, dtype: np.dtype) -> jax.Array:
    return x.astype(dtype)


def saturate(x: jax.Array, dtype: np.dtype) -> jax.Array:
    """Integers clamped to the range of a dtype of numpy that is not longer than theirs."""
    info = np.iinfo(dtype)
    low, high = (np.asarray(end, x.dtype) for end in (info.min, info.max))
    return lax.clamp(low, x, high).astype(dtype)


def _doubled(x: Integers, dtype: np.dtype) -> jax.Array:
    return jnp.asarray(x).astype(_INT32) if dtype == _INT16 else wide(x)


def _of(x: Integers, dtype: np.dtype) -> jax.Array:
    return jnp.asarray(x).astype(dtype)


def _is_zero(x: Integers) -> bool:
    """Whether `x` is known at trace time and all zeros, so that a step can be skipped."""
    return not isinstance(x, jax.Array) and not np.any(x)


def _is_between(x: Integers, low: int, high: int) -> bool:
    """Whether `x` is known at trace time and in [low, high]."""
    return not isinstance(x, jax.Array) and bool(
        np.all((low <= np.asarray(x)) & (np.asarray(x) <= high))
    )


def _number(x: Integers) -> Integers:
    """int64, in numpy if known at trace time: its arithmetic then stays out of the program."""
    return wide(x) if isinstance(x, jax.Array) else np.asarray(x, np.int64)


def _positive_part(x: Integers) -> Integers:
    return jnp.maximum(x, 0) if isinstance(x, jax.Array) else np.maximum(x, 0)


# ---- Accumulators by a real factor; multiplier and shift as multiplier.quantize_multiplier's


def multiply_by_quantized_multiplier(
    x: Integers, multiplier: Integers, shift: Integers
) -> jax.Array:
    left, right = _positive_part(shift), _positive_part(-shift)
    x = jnp.asarray(x).astype(_INT32)
    if not _is_zero(left):
        x = x << jnp.asarray(left).astype(_INT32)
    product = saturating_rounding_doubling_high_mul(x, multiplier)
    return product if _is_zero(right) else rounding_divide_by_pot(product, right)


def multiply_in_halves(x: jax.Array, multiplier: jax.Array, shift: jax.Array) -> jax.Array:
    """multiply_by_quantized_multiplier in int32 only, for a device's own kernels.

    `multiplier` is not negative, `shift` from -31 to 30; both are int32, broadcast to `x`, and
    may be traced.
    """
    left, right = jnp.maximum(shift, 0), jnp.maximum(-shift, 0)
    product = high_mul_in_halves(x << left, multiplier)
    return _divided_by_pot(product, right, (1 << right) - 1)


def multiply_by_quantized_multiplier_64(
    x: Integers, multiplier: Integers, shift: Integers
) -> jax.Array:
    multiplier = _number(multiplier)
    numpy: Any = jnp if isinstance(multiplier, jax.Array) else np
    reduced = numpy.where(multiplier < 0x7FFF0000, (multiplier + (1 << 15)) >> 16, 0x7FFF)
    right = 15 - _number(shift)
    return wrap((wide(x) * reduced + (np.int64(1) << (right - 1))) >> right, _INT32)


# ---- Products of fixed-point numbers


def saturating_rounding_doubling_high_mul(a: Integers, b: Integers) -> jax.Array:
    if dtype_of(a) == _INT16:
        return _doubled_high_mul(a, b)
    result: jax.Array
    if isinstance(b, jax.Array):
        result = _high_mul_of_traced(jnp.asarray(a), b)
        return result
    result = lax.platform_dependent(
        jnp.asarray(a),
        cpu=functools.partial(_doubled_high_mul, b=b),
        default=functools.partial(_saturated_in_halves, b=b),
    )
    return result


@functools.partial(jax.jit, inline=True)  # traced once for each shape: Newton's steps are equal
def _high_mul_of_traced(a: jax.Array, b: jax.Array) -> jax.Array:
    result: jax.Array = lax.platform_dependent(
        a, b, cpu=_doubled_high_mul, default=_saturated_in_halves
    )
    return result


def _doubled_high_mul(a: Integers, b: Integers) -> jax.Array:
    dtype = dtype_of(a)
    value_bits = 8 * dtype.itemsize - 1
    product = _doubled(a, dtype) * (_doubled(b, dtype) if dtype == _INT16 else _number(b))
    product = (product + (1 << (value_bits - 1))) >> value_bits
    least, largest = -1 << value_bits, (1 << value_bits) - 1
    if _is_between(b, least + 1, largest):  # only the square of the least value is beyond
        return wrap(product, dtype)
    return wrap(jnp.minimum(product, largest), dtype)


def _saturated_in_halves(a: jax.Array, b: Integers) -> jax.Array:
    product = high_mul_in_halves(a, b)
    if _is_between(b, _LEAST + 1, _MOST):
        return product
    # Only the square of the least value wraps around to the least value.
    return jnp.where(product == _LEAST, np.int32(_MOST), product)


def high_mul_in_halves(a: jax.Array, b: Integers) -> jax.Array:
    """saturating_rounding_doubling_high_mul of int32 without 64-bit integers; it wraps around."""
    result: jax.Array = _high_mul_in_halves(a, jnp.asarray(b, _INT32))
    return result


@functools.partial(jax.jit, inline=True)  # traced once for each shape
def _high_mul_in_halves(a: jax.Array, b: jax.Array) -> jax.Array:
    """The product, by the halves of its factors.

    With a = a1 * 2**16 + a0 and b likewise, a1 and b1 signed, the product is high * 2**32 + low *
    2**16 + a rest of 16 bits, which the rounding at bit 30 does not see. Only a0 * b0 exceeds
    int32; its bits are read as unsigned.
    """
    a1, a0, b1, b0 = a >> 16, a & 0xFFFF, b >> 16, b & 0xFFFF
    outer, inner = a1 * b0, a0 * b1
    low = (outer & 0xFFFF) + (inner & 0xFFFF) + _upper_half(a0 * b0)
    high = a1 * b1 + (outer >> 16) + (inner >> 16) + (low >> 16)
    return 2 * high + ((((low & 0xFFFF) >> 14) + 1) >> 1)


def _upper_half(x: jax.Array) -> jax.Array:
    return lax.shift_right_logical(x, jnp.full_like(x, 16))


def unsigned_high_mul(a: jax.Array, b: jax.Array) -> jax.Array:
    """The upper 32 bits of products of uint32, without 64-bit integers."""
    a1, a0, b1, b0 = a >> 16, a & 0xFFFF, b >> 16, b & 0xFFFF
    outer = a1 * b0 + (a0 * b0 >> 16)  # neither sum exceeds uint32
    inner = a0 * b1 + (outer & 0xFFFF)
    return a1 * b1 + (outer >> 16) + (inner >> 16)


def saturating_doubling_high_mul(a: Integers, b: Integers) -> jax.Array:
    dtype = dtype_of(a)
    value_bits = 8 * dtype.itemsize - 1
    product = _doubled(a, dtype) * _doubled(b, dtype)
    magnitude = jnp.abs(product) >> value_bits
    signed = jnp.where(product < 0, -magnitude, magnitude)
    return wrap(jnp.minimum(signed, (1 << value_bits) - 1), dtype)


# ---- Powers of two


def rounding_divide_by_pot(x: Integers, exponent: Integers) -> jax.Array:
    """See fixed_point.rounding_divide_by_pot; a traced exponent is 31 at most."""
    dtype = dtype_of(x)
    # 1 << 31 wraps around, and minus one it is the largest value again.
    ones: jax.Array | np.ndarray
    if isinstance(exponent, jax.Array):
        exponent = exponent.astype(_INT32)
        ones = (jnp.int32(1) << exponent) - 1
    else:
        ones = (np.int64(1) << np.asarray(exponent, np.int64)) - 1
        exponent = np.minimum(exponent, 31)
    mask = ones.astype(dtype).astype(_INT32)
    return _divided_by_pot(_of(x, _INT32), _of(exponent, _INT32), _of(mask, _INT32)).astype(dtype)


def _divided_by_pot(x: jax.Array, exponent: jax.Array, mask: jax.Array) -> jax.Array:
    threshold = (mask >> 1) + (x < 0).astype(np.int32)
    quotient = lax.shift_right_arithmetic(*jnp.broadcast_arrays(x, exponent))
    return quotient + ((x & mask) > threshold).astype(np.int32)


def saturating_left_shift(x: Integers, amount: Integers) -> jax.Array:
    dtype = dtype_of(x)
    numpy: Any = jnp if isinstance(amount, jax.Array) else np
    bits = _of(numpy.minimum(amount, 8 * dtype.itemsize - 1), _INT32)
    x = _of(x, _INT32)  # larger shifts than `bits` give the same: 0, or a bound
    shifted = x << bits
    if dtype == _INT16:
        return saturate(shifted, dtype)
    return jnp.where(shifted >> bits == x, shifted, _end(x))


def _end(x: jax.Array) -> jax.Array:
    """int32's bound on the side of `x`."""
    return (x >> 31) ^ _MOST


def saturating_multiply_by_pot(x: Integers, exponent: Integers) -> jax.Array:
    up, down = _positive_part(exponent), _positive_part(-exponent)
    if _is_zero(down):
        return saturating_left_shift(x, up)
    if _is_zero(up):
        return rounding_divide_by_pot(x, down)
    shifted, divided = saturating_left_shift(x, up), rounding_divide_by_pot(x, down)
    return jnp.where(wide(exponent) >= 0, shifted, divided)


def rescale(x: Integers, from_integer_bits: int, to_integer_bits: int) -> jax.Array:
    return saturating_multiply_by_pot(x, from_integer_bits - to_integer_bits)


# ---- Sums


def wrapping_add(a: jax.Array, b: Integers) -> jax.Array:
    return a + jnp.asarray(b, a.dtype)


def wrapping_sub(a: jax.Array, b: Integers) -> jax.Array:
    return a - jnp.asarray(b, a.dtype)


def saturating_add(a: Integers, b: Integers) -> jax.Array:
    dtype = dtype_of(a)
    a, b = _of(a, _INT32), _of(b, _INT32)
    total = a + b
    if dtype == _INT16:
        return saturate(total, dtype)
    return jnp.where((a ^ total) & (b ^ total) < 0, _end(a), total)


def saturating_sub(a: Integers, b: Integers) -> jax.Array:
    dtype = dtype_of(a)
    a, b = _of(a, _INT32), _of(b, _INT32)
    total = a - b
    if dtype == _INT16:
        return saturate(total, dtype)
    return jnp.where((a ^ b) & (a ^ total) < 0, _end(a), total)


def rounding_half_sum(a: Integers, b: Integers) -> jax.Array:
    dtype = dtype_of(a)
    a, b = _of(a, dtype), _of(b, dtype)
    differing = a ^ b
    floor = (a & b) + (differing >> 1)  # no sum that would exceed the dtype
    return floor + jnp.where(floor >= 0, differing & 1, jnp.zeros_like(floor))


# ---- Bits


def count_leading_zeros(x: Integers) -> jax.Array:
    return lax.clz(jnp.asarray(x, dtype_of(x))).astype(np.int32)


def count_leading_sign_bits(x: Integers) -> jax.Array:
    x = jnp.asarray(x, dtype_of(x))
    return count_leading_zeros(jnp.where(x >= 0, x, ~x)) - 1
