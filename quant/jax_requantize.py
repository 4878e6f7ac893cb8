"""The jax counterpart of requantize.py: the same functions on traced arrays, equal bit for bit."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdelegate.quant.jax_fixed_point import (
    Integers,
    multiply_by_quantized_multiplier,
    multiply_by_quantized_multiplier_64,
    wide,
)
from jaxdelegate.quant.params import Quantization, along_axis, integer_range, tensor_zero_point
from jaxdelegate.quant.requantize import rescale_multiplier

_INT32 = np.dtype(np.int32)


def clamp(x: Integers, low: int, high: int, dtype: np.dtype) -> jax.Array:
    """`x` in [low, high], as integers of `dtype`."""
    whole = np.iinfo(np.int32)
    if isinstance(x, jax.Array) and x.dtype == _INT32 and whole.min <= low and high <= whole.max:
        return lax.clamp(np.int32(low), x, np.int32(high)).astype(dtype)
    return lax.clamp(np.int64(low), wide(x), np.int64(high)).astype(dtype)


def add_bias(accumulator: jax.Array, bias: jax.Array | np.ndarray | None) -> jax.Array:
    """The sum accumulator [..., channels] + bias [channels]; see requantize.add_bias."""
    if bias is None:
        return accumulator
    values = jnp.asarray(bias).astype(accumulator.dtype)
    return accumulator + jnp.broadcast_to(values, accumulator.shape)


def requantize(
    q: jax.Array, source: Quantization, target: Quantization, dtype: np.dtype
) -> jax.Array:
    """Integers of the source's scale as integers of the target's; see requantize.requantize."""
    multiplier, shift = rescale_multiplier(source, target)
    steps = jnp.asarray(q).astype(_INT32) - np.int32(tensor_zero_point(source))
    bounds = integer_range(dtype)
    return requantize_accumulator(
        steps, multiplier, shift, tensor_zero_point(target), bounds, dtype
    )


def requantize_accumulator(
    accumulator: jax.Array,
    multiplier: int | np.ndarray,
    shift: int | np.ndarray,
    zero_point: int,
    bounds: tuple[int, int],
    dtype: np.dtype,
) -> jax.Array:
    """Scale, add the zero point, clamp; see requantize.requantize_accumulator."""
    multiply = (
        multiply_by_quantized_multiplier_64
        if accumulator.dtype == np.int64
        else multiply_by_quantized_multiplier
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
    """The same in float64; see requantize.requantize_accumulator_by_real."""
    real = jnp.asarray(_for_last_axis(scale, accumulator.ndim), np.float64)
    product = wide(accumulator).astype(np.float64) * real
    steps = lax.round(product, lax.RoundingMethod.AWAY_FROM_ZERO)
    low, high = map(np.float64, bounds)
    return lax.clamp(low, steps + zero_point, high).astype(dtype)


def _for_last_axis(values: float | np.ndarray, rank: int) -> Any:
    return along_axis(values, rank, -1) if isinstance(values, np.ndarray) and rank else values
