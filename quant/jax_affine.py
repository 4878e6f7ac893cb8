"""The jax counterpart of affine.py: the same functions on traced arrays, equal bit for bit.

Needs 64-bit types: float32 steps that XLA would merge or approximate are computed in float64, where
they are exact or round to the same float32. XLA's CPU code flushes denormal numbers to zero, which
affine.py does not.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdelegate.quant import affine
from jaxdelegate.quant.params import Blockwise, Quantization, integer_range

xp = jnp  # for functions that serve numpy and jax
_BEYOND = 2.0**127  # more than any product here
_Real = jax.Array | np.ndarray | np.floating


def round_half_away(x: jax.Array) -> jax.Array:
    return lax.round(x, lax.RoundingMethod.AWAY_FROM_ZERO)


def as_float32(x: jax.Array) -> jax.Array:
    """float64 rounded to float32's precision; XLA may remove a conversion to float32 and back."""
    result: jax.Array = lax.platform_dependent(x, tpu=_there_and_back, default=_reduced)
    return result


def _reduced(x: jax.Array) -> jax.Array:
    return lax.reduce_precision(x, exponent_bits=8, mantissa_bits=23)


def _there_and_back(x: jax.Array) -> jax.Array:
    """The conversion for XLA:TPU, which emulates float64 and has no reduce_precision for it."""
    kept: jax.Array = lax.optimization_barrier(x.astype(np.float32))  # type: ignore[no-untyped-call]
    return kept.astype(np.float64)


def quotient(x: _Real, y: _Real) -> jax.Array:
    """The float32 quotient of float32 values, in float64.

    XLA replaces x / constant by x * (1 / constant), and float32 division is approximate on some
    GPUs. In float64 either still rounds to the float32 quotient: a quotient of two float32 is at
    least 2**-49 away from the middle between two float32, and the error is below 2**-51.
    """
    return as_float32(jnp.asarray(x, np.float64) / jnp.asarray(y, np.float64))


def rounded(product: jax.Array) -> jax.Array:
    """A float32 product, rounded before it is added to another value or multiplied again.

    XLA lets LLVM fuse a product and a sum into one rounding, on CPU and GPU, and neither
    `lax.optimization_barrier` nor a conversion to float64 and back prevents that; a minimum with a
    number beyond all products does.
    """
    return jnp.minimum(product, jnp.asarray(_BEYOND, product.dtype))


def product(x: jax.Array, y: _Real) -> jax.Array:
    return rounded(x * y)


def dequantize(q: jax.Array, quantization: Quantization) -> jax.Array:
    if quantization.blockwise is not None:
        block_scale, points = affine.block_parameters(quantization.blockwise, q.shape)
        return dequantize_blocks(q, block_scale, points, quantization.blockwise)
    scale, zero_point = affine.along(quantization, q.ndim)
    if q.dtype.itemsize <= 2:  # exact in float32 up to the product
        steps = q.astype(np.int32) - jnp.asarray(zero_point)
        return jnp.asarray(scale) * steps.astype(np.float32)
    steps = q.astype(np.int64) - jnp.asarray(zero_point.astype(np.int64))
    return (jnp.asarray(scale.astype(np.float64)) * steps.astype(np.float64)).astype(np.float32)


def quantize(x: jax.Array, quantization: Quantization, dtype: np.dtype) -> jax.Array:
    return quantize_by(x, *affine.along(quantization, x.ndim), dtype)


def quantize_by(x: jax.Array, scale: _Real, zero_point: np.ndarray, dtype: np.dtype) -> jax.Array:
    """The scale may be traced; scale and zero point broadcast to `x`."""
    low, high = (
        jnp.asarray((bound - zero_point).astype(np.float32)) for bound in integer_range(dtype)
    )
    steps = round_half_away(quotient(x, scale).astype(np.float32))
    steps = jnp.minimum(jnp.where(steps > low, steps, low), high)
    return (steps.astype(np.int32) + jnp.asarray(zero_point)).astype(dtype)


# ---- Scales as tensors


def dequantize_blocks(
    q: jax.Array,
    scales: jax.Array | np.ndarray,
    zero_points: jax.Array | np.ndarray | None,
    blockwise: Blockwise,
) -> jax.Array:
    """See affine.dequantize_blocks; scales and zero points may be traced."""
    scale = _spread(jnp.asarray(scales), q.shape, blockwise).astype(np.float32)
    steps = q.astype(np.int32)
    if zero_points is not None:
        steps = steps - _spread(jnp.asarray(zero_points), q.shape, blockwise).astype(np.int32)
    return scale * steps.astype(np.float32)


def _spread(values: jax.Array, shape: tuple[int, ...], blockwise: Blockwise) -> jax.Array:
    positions = affine.block_scales(np.arange(values.size).reshape(values.shape), shape, blockwise)
    return spread(values.reshape(-1)[positions.reshape(-1)].reshape(positions.shape), shape)


def spread(values: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """One value for each block -> one for each element."""
    for axis, (n, count) in enumerate(zip(shape, values.shape, strict=True)):
        if count not in (1, n):
            values = jnp.repeat(values, n // count, axis, total_repeat_length=n)
    return jnp.broadcast_to(values, shape)


# ---- Floats on the fly, for dynamic range kernels


@jax.jit  # traced once for each shape
def symmetric_quantize(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    extent = jnp.max(jnp.abs(x), -1, keepdims=True, initial=0)
    empty = extent == 0
    divisor = jnp.where(empty, jnp.ones_like(extent), extent)
    inverse = quotient(np.float32(127), divisor)
    inside = jnp.where(empty, jnp.zeros_like(x), x)
    steps = round_half_away(product(inside, inverse.astype(np.float32)))
    scale = jnp.where(empty, jnp.ones_like(inverse), quotient(extent, np.float32(127)))
    return jnp.clip(steps, -127, 127).astype(np.int8), scale[..., 0].astype(np.float32)


@jax.jit
def asymmetric_quantize(x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    low, high = (f(x, -1, keepdims=True, initial=0).astype(np.float64) for f in (jnp.min, jnp.max))
    empty = low == high
    exact = jnp.where(empty, jnp.ones_like(low), _divided_by_255(as_float32(high - low)))
    offset = round_half_away(affine.nudged_offset(low / exact, high / exact, jnp))
    offset = jnp.where(empty, jnp.zeros_like(offset), offset)
    scale = as_float32(exact)
    inverse = quotient(np.float32(1), scale).astype(np.float32)
    steps = round_half_away(product(x, inverse)) + offset.astype(np.float32)
    q = jnp.clip(steps, -128, 127).astype(np.int8)
    return q, scale[..., 0].astype(np.float32), offset[..., 0].astype(np.int32)


def _divided_by_255(x: jax.Array) -> jax.Array:
    """The float64 quotient; XLA would replace a constant divisor by its rounded inverse."""
    divisor: jax.Array = lax.optimization_barrier(jnp.full_like(x, 255))  # type: ignore[no-untyped-call]
    return x / divisor


# ---- Floats on a grid


def fake_quantize(
    x: jax.Array, low: float, high: float, num_bits: int, *, narrow_range: bool
) -> jax.Array:
    first, last, step = affine.nudged_range(low, high, num_bits, narrow_range=narrow_range)
    with np.errstate(divide="ignore"):
        inverse = np.float32(1) / step
    steps = round_half_away((_clamp(x, first, last) - first) * inverse)
    return product(steps, step) + first


def _clamp(x: jax.Array, first: np.float32, last: np.float32) -> jax.Array:
    """NaN becomes `first`."""
    inside = jnp.where(x > first, x, first)
    return jnp.where(inside < last, inside, last)
