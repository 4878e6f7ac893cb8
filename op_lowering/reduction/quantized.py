"""Integer MEAN, SUM and REDUCE_PROD. Semantics: kernels/reduce.cc, reference/reduce.h.

LiteRT's reference SUM reads int8 and int16 as if they were uint8: those two are summed as the
optimized kernel does it, in float32 (optimized/reduce.h).
"""

import dataclasses
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdelegate.op_lowering.common.pointwise import INT8, INT16, UINT8
from jaxdelegate.op_lowering.common.quantization import (
    quantization_of,
    scale_of,
    why_not_same,
    why_not_symmetric,
    zero_point_of,
)
from jaxdelegate.op_lowering.rule import first_reason
from jaxdelegate.op_lowering.spec import TensorSpec
from jaxdelegate.quant.jax_affine import round_half_away, rounded
from jaxdelegate.quant.jax_fixed_point import multiply_by_quantized_multiplier_64, wide
from jaxdelegate.quant.jax_requantize import add_and_clamp, requantize_accumulator
from jaxdelegate.quant.multiplier import quantize_multiplier
from jaxdelegate.quant.params import integer_range
from jaxdelegate.quant.requantize import rescale_multiplier

_Axes = tuple[int, ...]
_Integers = Callable[[jax.Array], jax.Array]
_Build = Callable[[TensorSpec, TensorSpec, _Axes], _Integers]
_INT32_LOW, _INT32_HIGH = np.float32(-(2.0**31)), np.float32(2.0**31 - 128)  # float32 values
_MOST_PROD_SHIFT = 7  # MultiplyByQuantizedMultiplier(int64) in kernels/internal/common.cc


@dataclasses.dataclass(frozen=True)
class IntegerReduction:
    """A reduction of quantized values.

    `build(x, y, axes)` makes the function from stored integers to stored integers; it drops the
    axes. `why_not_more(x, y, axes)` gives reasons that are specific to the operator.
    """

    dtypes: frozenset[np.dtype]
    build: _Build
    why_not_more: Callable[[TensorSpec, TensorSpec, _Axes], str | None] | None = None

    def why_not(self, x: TensorSpec, y: TensorSpec, axes: _Axes) -> str | None:
        reason = why_not_same(x, y, self.dtypes) or first_reason(
            why_not_symmetric(x), why_not_symmetric(y)
        )
        if reason is not None or self.why_not_more is None:
            return reason
        return self.why_not_more(x, y, axes)

    def lower(self, x: TensorSpec, y: TensorSpec, axes: _Axes) -> _Integers:
        """The function from `x` to values of `y`, without the axes; stored 0 if `x` is empty."""
        if 0 in x.shape:
            return lambda _x: jnp.zeros(y.shape, y.dtype)
        return self.build(x, y, axes)


def _count(x: TensorSpec, axes: _Axes) -> int:
    return math.prod(x.shape[axis] for axis in axes)


def _scaled_sum(
    x: TensorSpec, y: TensorSpec, axes: _Axes, multiplier: int, shift: int
) -> _Integers:
    """The sum of differences from the zero point, in int32, which wraps around, times a real."""
    offset = np.asarray(zero_point_of(x) * _count(x, axes), np.int64).astype(np.int32)

    def scaled_sum(q: jax.Array) -> jax.Array:
        total = jnp.sum(q.astype(np.int32), axis=axes, dtype=np.int32) - offset
        bounds = integer_range(y.dtype)
        return requantize_accumulator(total, multiplier, shift, zero_point_of(y), bounds, y.dtype)

    return scaled_sum


def _sum(x: TensorSpec, y: TensorSpec, axes: _Axes) -> _Integers:
    if x.dtype != UINT8:
        return _float_sum(x, y, axes)
    multiplier, shift = rescale_multiplier(quantization_of(x), quantization_of(y))
    return _scaled_sum(x, y, axes, multiplier, shift)


def _float_sum(x: TensorSpec, y: TensorSpec, axes: _Axes) -> _Integers:
    with np.errstate(all="ignore"):
        scale = np.float32(scale_of(x)) / np.float32(scale_of(y))
        bias = np.float32(-zero_point_of(x)) * scale * np.float32(_count(x, axes))

    def float_sum(q: jax.Array) -> jax.Array:
        total = jnp.sum(q.astype(np.int32), axis=axes, dtype=np.int32)
        steps = round_half_away(rounded(total.astype(np.float32) * scale) + bias)
        steps = jnp.clip(steps, _INT32_LOW, _INT32_HIGH).astype(np.int32)
        return add_and_clamp(steps, zero_point_of(y), *integer_range(y.dtype), y.dtype)

    return float_sum


def _mean(x: TensorSpec, y: TensorSpec, axes: _Axes) -> _Integers:
    # The division by the count is in the multiplier, at full precision.
    multiplier, shift = rescale_multiplier(quantization_of(x), quantization_of(y))
    count = _count(x, axes)
    headroom = min(count.bit_length() - 1, 32, 31 + shift)
    return _scaled_sum(x, y, axes, (multiplier << headroom) // count, shift - headroom)


def _prod_multiplier(x: TensorSpec, y: TensorSpec, axes: _Axes) -> tuple[int, int]:
    """Multiplier and shift of x scale / y scale^(1/n): every factor is rescaled by its part."""
    root = scale_of(y) ** (1 / _count(x, axes))
    return quantize_multiplier(scale_of(x) / root)


def _why_not_prod(x: TensorSpec, y: TensorSpec, axes: _Axes) -> str | None:
    if 0 in x.shape:
        return None if 0 in y.shape else f"{x.name!r} holds no values to multiply"
    _, shift = _prod_multiplier(x, y, axes)
    if shift <= _MOST_PROD_SHIFT:
        return None
    return f"a factor of {x.name!r} is 2**{shift} steps of {y.name!r}, more than the kernel scales"


def _prod(x: TensorSpec, y: TensorSpec, axes: _Axes) -> _Integers:
    """Factor by factor in row-major order, each product rounded to int32."""
    multiplier, shift = _prod_multiplier(x, y, axes)
    kept = [axis for axis in range(len(x.shape)) if axis not in axes]
    rows = (_count(x, axes), *(x.shape[axis] for axis in kept))

    def times(product: jax.Array, factor: jax.Array) -> tuple[jax.Array, None]:
        exact = wide(product) * wide(factor)
        return multiply_by_quantized_multiplier_64(exact, multiplier, shift), None

    def prod(q: jax.Array) -> jax.Array:
        factors = q.astype(np.int32) - np.int32(zero_point_of(x))
        factors = lax.transpose(factors, (*axes, *kept)).reshape(rows)
        product, _ = lax.scan(times, factors[0], factors[1:])
        bounds = integer_range(y.dtype)
        product = wide(product)
        return requantize_accumulator(product, multiplier, shift, zero_point_of(y), bounds, y.dtype)

    return prod


_SUMMED = frozenset([INT8, UINT8, INT16])
MEAN = IntegerReduction(_SUMMED, _mean)
SUM = IntegerReduction(_SUMMED, _sum)
REDUCE_PROD = IntegerReduction(_SUMMED - {UINT8}, _prod, _why_not_prod)
