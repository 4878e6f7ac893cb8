"""The jax counterpart of requantize.py: its functions on traced arrays, equal bit for bit."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdelegate.quant import jax_fixed_point as fixed
from jaxdelegate.quant.jax_affine import round_half_away
from jaxdelegate.quant.params import Quantization, along_axis, integer_range, tensor_zero_point
from jaxdelegate.quant.requantize import rescale_multiplier
from jaxdelegate.quant.short_forms import short_product

_INT32 = np.dtype(np.int32)
_LEAST_RIGHT = 13  # a shift that leaves products of at least 2**16 with more than 16 bits


def clamp(x: fixed.Integers, low: int, high: int, dtype: np.dtype) -> jax.Array:
    whole = np.iinfo(np.int32)
    if isinstance(x, jax.Array) and x.dtype == _INT32 and whole.min <= low and high <= whole.max:
        return lax.clamp(np.int32(low), x, np.int32(high)).astype(dtype)
    return lax.clamp(np.int64(low), fixed.wide(x), np.int64(high)).astype(dtype)


def add_and_clamp(x: jax.Array, zero_point: int, low: int, high: int, dtype: np.dtype) -> jax.Array:
    """The sum of int32 and a zero point, clamped to [low, high] without wrapping around."""
    return (clamp(x, low - zero_point, high - zero_point, _INT32) + zero_point).astype(dtype)


def add_bias(accumulator: jax.Array, bias: jax.Array | np.ndarray | None) -> jax.Array:
    if bias is None:
        return accumulator
    values = jnp.asarray(bias).astype(accumulator.dtype)
    return accumulator + jnp.broadcast_to(values, accumulator.shape)


def requantize(
    q: jax.Array, source: Quantization, target: Quantization, dtype: np.dtype
) -> jax.Array:
    steps = jnp.asarray(q).astype(_INT32) - np.int32(tensor_zero_point(source))
    scaled = rescale_steps(steps, *rescale_multiplier(source, target), q.dtype)
    return clamp(scaled + np.int32(tensor_zero_point(target)), *integer_range(dtype), dtype)


def rescale_steps(steps: jax.Array, multiplier: int, shift: int, dtype: np.dtype) -> jax.Array:
    """multiply_by_quantized_multiplier of differences of a dtype's integers and a zero point."""
    form = short_product(multiplier, shift) if dtype.itemsize == 1 else None
    scaled: jax.Array = (
        fixed.multiply_by_quantized_multiplier(steps, multiplier, shift)
        if form is None
        else form(steps)
    )
    return scaled


def requantize_accumulator(
    accumulator: jax.Array,
    multiplier: int | np.ndarray,
    shift: int | np.ndarray,
    zero_point: int,
    bounds: tuple[int, int],
    dtype: np.dtype,
) -> jax.Array:
    multiply = (
        fixed.multiply_by_quantized_multiplier_64
        if accumulator.dtype == np.int64
        else fixed.multiply_by_quantized_multiplier
    )
    rank = accumulator.ndim
    scaled = multiply(accumulator, _for_last_axis(multiplier, rank), _for_last_axis(shift, rank))
    return clamp(scaled + np.int32(zero_point) if zero_point else scaled, *bounds, dtype)


def requantize_accumulator_by_real(
    accumulator: jax.Array,
    scale: float | np.ndarray,
    zero_point: int,
    bounds: tuple[int, int],
    dtype: np.dtype,
) -> jax.Array:
    real = np.asarray(_for_last_axis(scale, accumulator.ndim), np.float64)
    end = zero_point, bounds, dtype
    if accumulator.dtype != _INT32:
        return _by_real_in_float64(accumulator, real, *end)
    result: jax.Array = lax.platform_dependent(
        accumulator,
        cpu=lambda x: _by_real_in_float64(x, real, *end),
        default=lambda x: add_and_clamp(times_real_in_halves(x, real), zero_point, *bounds, dtype),
    )
    return result


def _by_real_in_float64(
    accumulator: jax.Array,
    scale: np.ndarray,
    zero_point: int,
    bounds: tuple[int, int],
    dtype: np.dtype,
) -> jax.Array:
    steps = round_half_away(fixed.wide(accumulator).astype(np.float64) * jnp.asarray(scale))
    low, high = map(np.float64, bounds)
    return lax.clamp(low, steps + zero_point, high).astype(dtype)


def times_real_in_halves(x: jax.Array, scale: np.ndarray) -> jax.Array:
    """int32 products rounded as in float64, then halves away from zero, in 32-bit arithmetic.

    Let u = |x| * 2**zeros fill 32 bits, and the scale be s * 2**(exponent - 64), where s fills
    64, the last 11 of them zeros. u * s has 95 or 96 bits, of which float64 keeps the upper 53.
    The rounded number reaches the half above an integer, which is an even number in float64, if
    and only if u * s plus half of the 53rd bit does. The upper 32 bits then determine the
    result: one that needs more of them exceeds 16 bits, and some number of at least 2**16 is
    returned for it.

    `x` is int32; `scale` is float64, not negative, known at trace time, and broadcasts to `x`.
    """
    fraction, exponent = np.frexp(scale)
    bits = (fraction * 2**53).astype(np.uint64) << np.uint64(11)
    high, low = (jnp.asarray(half.astype(np.uint32)) for half in (bits >> 32, bits & 0xFFFFFFFF))
    magnitude = jnp.abs(x).astype(np.uint32)
    zeros = lax.clz(magnitude)
    u = magnitude << zeros
    upper, carried = fixed.unsigned_high_mul(u, high), u * high
    middle = carried + fixed.unsigned_high_mul(u, low)
    upper = upper + (middle < carried).astype(np.uint32)
    half_of_last = jnp.where(upper >> 31 == 1, np.uint32(1 << 10), np.uint32(1 << 9))
    upper = upper + (middle + half_of_last < middle).astype(np.uint32)
    right = zeros.astype(np.int32) - jnp.asarray(exponent.astype(np.int32)) - 1  # and one more
    shifted = upper >> jnp.clip(right, _LEAST_RIGHT, 31).astype(np.uint32)
    steps = (jnp.where(right > 31, np.uint32(0), shifted) + 1 >> 1).astype(np.int32)
    return jnp.where(x < 0, -steps, steps)


def _for_last_axis(values: float | np.ndarray, rank: int) -> Any:
    return along_axis(values, rank, -1) if isinstance(values, np.ndarray) and rank else values
