"""Quantization with trained scales: the float view's arithmetic with a traced scale.

A scale has the gradient of LSQ (Esser et al., Learned Step Size Quantization, 2020): rounding has
slope one, and values outside the range follow the end of the range. The gradient is divided by
sqrt(n * q), where n is the number of values of one image that share the scale, and q the largest
number of steps from zero. So an optimizer changes scales about as much, relative to their size, as
weights.

Values are bit for bit those of a constant scale: XLA multiplies by the inverse of a constant
divisor, and so does this module.
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

TINY = np.finfo(np.float32).tiny  # what a scale near zero counts as


def simulate(value: jax.Array, spec: TensorSpec, scale: Any) -> jax.Array:
    """Round float32 of any shape to the grid with this scale; see fake_quantization.simulate.

    `scale` is float32 [1]; the zero point of `spec` does not change.
    """
    low, high = bounds(spec)
    used = positive(scale, damping(value, low, high)).reshape(())
    result: jax.Array = _on_grid(value, used, low, high)
    return result


def dequantize(q: jax.Array, spec: TensorSpec, scale: Any) -> jax.Array:
    """Integer inputs of a program as float32."""
    low, high = bounds(spec)
    used = positive(scale, damping(q, low, high)).reshape(())
    steps = q.astype(np.int32) - jnp.asarray(_zero_point(spec))
    return jnp.multiply(used, steps.astype(np.float32))


def quantize(value: jax.Array, spec: TensorSpec, scale: Any) -> jax.Array:
    """float32 as integers of the tensor's dtype."""
    used = positive(scale, 1.0).reshape(())
    return jax_affine.quantize_by(value, used, _zero_point(spec), spec.dtype)


def bounds(spec: TensorSpec) -> tuple[np.float32, np.float32]:
    """The integers' bounds minus their zero point."""
    low, high = (np.float32(q - _zero_point(spec)) for q in affine.integer_range(spec.dtype))
    return low, high


def _zero_point(spec: TensorSpec) -> np.ndarray:
    assert spec.quantization is not None  # only quantized tensors have trained scales
    return affine.along(spec.quantization, 0)[1].reshape(())


def damping(value: jax.Array, low: np.float32, high: np.float32) -> float:
    """LSQ's factor of a scale's gradient: 1 / sqrt(n * q)."""
    per_image = value.size // value.shape[0] if value.ndim > 1 and value.shape[0] else value.size
    return lsq_damping(per_image, float(low), float(high))


def lsq_damping(count: int, low: float, high: float) -> float:
    """1 / sqrt(n * q), where q is that of the symmetric range: 127 for int8."""
    most = max(high, -low - 1, 1.0)
    return float(1 / np.sqrt(max(count, 1) * most))


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def positive(scale: jax.Array, factor: float) -> jax.Array:
    """The scale's absolute value, at least TINY; its gradient is multiplied by `factor`.

    A step of an optimizer may take a scale below zero. Clamped at zero, the network's outputs would
    be constant and no gradient would bring it back; the absolute value goes on training.
    """
    del factor
    return jnp.maximum(jnp.abs(jnp.asarray(scale, np.float32)), TINY)


@positive.defjvp
@with_64_bits
def _damped(factor: float, primals: Any, tangents: Any) -> tuple[Any, Any]:
    sign = jnp.where(primals[0] < 0, np.float32(-1), np.float32(1))
    return positive(primals[0], factor), tangents[0] * sign * np.float32(factor)


@jax.custom_jvp
@jax.jit  # traced and lowered once for each shape
def _on_grid(value: jax.Array, scale: jax.Array, low: jax.Array, high: jax.Array) -> jax.Array:
    return _steps(value, scale, low, high) * scale


def _steps(value: jax.Array, scale: jax.Array, low: jax.Array, high: jax.Array) -> jax.Array:
    first, last = _product(scale, low), _product(scale, high)
    inside = jnp.minimum(jnp.where(value > first, value, first), last)
    inverse = jnp.float32(1) / scale
    return lax.round((inside - first) * inverse, lax.RoundingMethod.AWAY_FROM_ZERO) + low


def _product(x: jax.Array, y: Any) -> jax.Array:
    """A product that no compiler fuses with a sum, so that it is rounded on its own."""
    return lax.min(x * y, np.float32(2.0**127))


@_on_grid.defjvp
@with_64_bits
def _lsq(primals: tuple[jax.Array, ...], tangents: tuple[jax.Array, ...]) -> tuple[Any, Any]:
    value, scale, low, high = primals
    first, last = scale * low, scale * high
    is_inside = (value >= first) & (value <= last)
    result = _on_grid(*primals)
    # Inside the range: the rounding error in steps. Outside: the end of the range, in steps.
    slope = jnp.where(is_inside, (result - value) / scale, jnp.where(value > last, high, low))
    moved = jnp.where(is_inside, tangents[0], 0) + slope * tangents[1]
    return result, moved
