"""Quantization whose scale is trained: the float view's arithmetic with a traced scale.

A scale has the gradient of LSQ (Esser et al., Learned Step Size Quantization, 2020): rounding has
the slope of what it rounds, and a value beyond the range moves with the range's end. The gradient
is divided by sqrt(n * q), n: the values that share the scale, of one image; q: the most steps from
zero. So steps of an optimizer are about as large, relative to the scale, as those of the weights.

Values are equal to the bit to those of a constant scale: XLA multiplies by the inverse of a
constant divisor, and so does this.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdelegate.op_lowering.common.derivatives import with_64_bits
from jaxdelegate.op_lowering.spec import TensorSpec
from jaxdelegate.quant import affine, jax_affine

TINY = np.finfo(np.float32).tiny  # scales stay positive: a smaller one counts as this one


def simulate(value: jax.Array, spec: TensorSpec, scale: Any) -> jax.Array:
    """float32 on the grid with this scale; see fake_quantization.simulate.

    Args:
        value: float32, any shape.
        spec: of a tensor with one scale; its zero point stays.
        scale: float32 [1].
    """
    low, high = bounds(spec)
    used = positive(scale, damping(value, low, high)).reshape(())
    result: jax.Array = _on_grid(value, used, low, high)
    return result


def dequantize(q: jax.Array, spec: TensorSpec, scale: Any) -> jax.Array:
    """float32 reals of integers that come from outside."""
    low, high = bounds(spec)
    used = positive(scale, damping(q, low, high)).reshape(())
    steps = q.astype(np.int32) - jnp.asarray(_zero_point(spec))
    return jnp.multiply(used, steps.astype(np.float32))


def quantize(value: jax.Array, spec: TensorSpec, scale: Any) -> jax.Array:
    """Integers of the tensor's dtype."""
    used = positive(scale, 1.0).reshape(())
    return jax_affine.quantize_by(value, used, _zero_point(spec), spec.dtype)


def bounds(spec: TensorSpec) -> tuple[np.float32, np.float32]:
    """The integers' bounds less their zero point."""
    low, high = (np.float32(q - _zero_point(spec)) for q in affine.integer_range(spec.dtype))
    return low, high


def _zero_point(spec: TensorSpec) -> np.ndarray:
    assert spec.quantization is not None  # it has a scale
    return affine.along(spec.quantization, 0)[1].reshape(())


def damping(value: jax.Array, low: np.float32, high: np.float32) -> float:
    """What LSQ multiplies a scale's gradient by: 1 / sqrt(n * q)."""
    per_image = value.size // value.shape[0] if value.ndim > 1 and value.shape[0] else value.size
    return lsq_damping(per_image, float(low), float(high))


def lsq_damping(count: int, low: float, high: float) -> float:
    """1 / sqrt(n * q), q as of the symmetric range: 127 of int8."""
    most = max(high, -low - 1, 1.0)
    return float(1 / np.sqrt(max(count, 1) * most))


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def positive(scale: jax.Array, factor: float) -> jax.Array:
    """The scale, TINY at least; its gradient is multiplied, and passes where it is clamped."""
    del factor
    return jnp.maximum(jnp.asarray(scale, np.float32), TINY)


@positive.defjvp
@with_64_bits
def _damped(factor: float, primals: Any, tangents: Any) -> tuple[Any, Any]:
    return positive(primals[0], factor), tangents[0] * np.float32(factor)


@jax.custom_jvp
@jax.jit  # traced and lowered once for each shape
def _on_grid(value: jax.Array, scale: jax.Array, low: jax.Array, high: jax.Array) -> jax.Array:
    return _steps(value, scale, low, high) * scale


def _steps(value: jax.Array, scale: jax.Array, low: jax.Array, high: jax.Array) -> jax.Array:
    """As in fake_quantization: whole steps from the range's first value."""
    first, last = _product(scale, low), _product(scale, high)
    inside = jnp.minimum(jnp.where(value > first, value, first), last)
    inverse = jnp.float32(1) / scale
    return lax.round((inside - first) * inverse, lax.RoundingMethod.AWAY_FROM_ZERO) + low


def _product(x: jax.Array, y: Any) -> jax.Array:
    """Rounded by itself: no compiler fuses it with a sum."""
    return lax.min(x * y, np.float32(2.0**127))


@_on_grid.defjvp
@with_64_bits
def _lsq(primals: tuple[jax.Array, ...], tangents: tuple[jax.Array, ...]) -> tuple[Any, Any]:
    value, scale, low, high = primals
    first, last = scale * low, scale * high
    is_inside = (value >= first) & (value <= last)
    result = _on_grid(*primals)
    # Inside: the rounding error in steps. Beyond: the end, in steps.
    slope = jnp.where(is_inside, (result - value) / scale, jnp.where(value > last, high, low))
    moved = jnp.where(is_inside, tangents[0], 0) + slope * tangents[1]
    return result, moved
