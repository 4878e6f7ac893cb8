"""Rounds float weights to the grids of a file's integers, so that training sees the stored values.

Each value becomes the float of its nearest integer, exactly as affine.dequantize computes it from
the result of affine.quantize_weight. The gradient passes unchanged inside the range, and is zero
outside (straight-through estimator; Bengio et al. 2013).
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdelegate.lowering import learned_scales
from jaxdelegate.op_lowering.common.derivatives import with_64_bits
from jaxdelegate.quant import affine, jax_affine
from jaxdelegate.quant.params import Quantization

_MAX_BYTES = 2  # float32 represents the steps of integers up to this width


@dataclasses.dataclass(frozen=True, eq=False)
class WeightGrid:
    """The grid of one stored weight."""

    quantization: Quantization
    dtype: np.dtype
    is_narrow: bool  # whether the range excludes the dtype's lowest integer

    def put(self, value: Any, scale: Any = None) -> jax.Array:
        """Round float32 in the file's layout to the grid.

        `scale`, float32, replaces the file's scales, with as many values.
        """
        x, rank = jnp.asarray(value, np.float32), np.ndim(value)
        if self.quantization.blockwise is not None:
            return self._in_blocks(x)
        file_scale, zero_point = affine.along(self.quantization, rank)
        low, high = self._bounds(zero_point)
        used: Any = jnp.asarray(file_scale)
        if scale is not None:
            count = max(x.size // max(file_scale.size, 1), 1)
            factor = learned_scales.lsq_damping(count, float(low.min()), float(high.max()))
            used = learned_scales.positive(scale, factor).reshape(file_scale.shape)
        return _on_grid(x, used, low, high, self._is_wide)

    def put_by(self, value: Any, scales: Any) -> jax.Array:
        """Round to the grid with scales that have no gradient: one, or one for each channel."""
        x = jnp.asarray(value, np.float32)
        low, high = self._bounds(affine.along(self.quantization, x.ndim)[1])
        shape = [1] * x.ndim
        shape[self.quantization.quantized_dimension] = scales.size
        return _on_grid(x, lax.stop_gradient(scales).reshape(shape), low, high, self._is_wide)

    @property
    def _is_wide(self) -> bool:
        return self.dtype.itemsize > _MAX_BYTES

    def _bounds(self, zero_point: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The lowest and highest integer minus the zero point; float64 for wide integers."""
        ends = affine.integer_range(self.dtype, narrow=self.is_narrow)
        kind = np.float64 if self._is_wide else np.float32
        low, high = (np.asarray(end - zero_point.astype(np.float64), kind) for end in ends)
        return low, high

    def _in_blocks(self, x: jax.Array) -> jax.Array:
        assert self.quantization.blockwise is not None
        blocks = affine.block_parameters(self.quantization.blockwise, x.shape)
        scale, zero_point = (jax_affine.spread(jnp.asarray(v), x.shape) for v in blocks)
        ends = affine.integer_range(self.dtype, narrow=self.is_narrow)
        low, high = ((end - zero_point).astype(np.float32) for end in ends)
        return _on_grid(x, scale, low, high, False)


@functools.partial(jax.custom_jvp, nondiff_argnums=(4,))
def _on_grid(x: jax.Array, scale: jax.Array, low: Any, high: Any, is_wide: bool) -> jax.Array:
    """float32 `x`; the others broadcast to it."""
    if is_wide:
        wide = scale.astype(np.float64)
        return (_steps(x.astype(np.float64) / wide, low, high) * wide).astype(np.float32)
    steps = _steps(jax_affine.quotient(x, scale).astype(np.float32), low, high)
    return jax_affine.product(steps, scale)


def _steps(steps: jax.Array, low: Any, high: Any) -> jax.Array:
    whole = lax.round(steps, lax.RoundingMethod.AWAY_FROM_ZERO)
    return jnp.minimum(jnp.where(whole > low, whole, low), high)


@_on_grid.defjvp
@with_64_bits
def _straight_through(is_wide: bool, primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
    """The gradient of LSQ: see learned_scales."""
    x, scale, low, high = primals
    low32, high32 = (jnp.asarray(end).astype(np.float32) for end in (low, high))
    result = _on_grid(x, scale, low, high, is_wide)
    is_inside = (x >= scale * low32) & (x <= scale * high32)
    beyond = jnp.where(x > scale * high32, high32, low32)
    slope = jnp.where(is_inside, (result - x) / scale, beyond)
    return result, jnp.where(is_inside, tangents[0], 0) + slope * tangents[1]
