"""Integer SOFTMAX, LOG_SOFTMAX and L2_NORMALIZATION along the last axis.

Semantics: LiteRT's reference kernels, kernels/activations.cc, kernels/l2norm.cc and, in
kernels/internal/reference, softmax.h, log_softmax.h, l2normalization.h and integer_ops/.

An 8-bit value is at most 255 below the largest of its row, so the kernels' functions of that
difference, `below`, are tables.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from jaxdelegate.op_lowering.common.pointwise import INT8, INT16, UINT8
from jaxdelegate.op_lowering.common.quantization import (
    scale_of,
    why_not_per_tensor,
    why_not_raised,
    why_not_same,
    why_not_zero_point,
    zero_point_of,
)
from jaxdelegate.op_lowering.normalization.options import SoftmaxOptions
from jaxdelegate.op_lowering.rule import first_reason
from jaxdelegate.op_lowering.spec import TensorSpec
from jaxdelegate.quant import fixed_math, fixed_point, jax_fixed_point, lookup, multiplier
from jaxdelegate.quant import jax_fixed_point as fixed
from jaxdelegate.quant.fixed_math import inverse_sqrt, log_at_least_one, reciprocal
from jaxdelegate.quant.jax_requantize import add_and_clamp, clamp
from jaxdelegate.quant.lookup import lut_lookup
from jaxdelegate.quant.params import integer_range

_Integers = Callable[[jax.Array], jax.Array]  # stored integers -> stored integers

_INT32 = np.dtype(np.int32)
_BYTES = frozenset([INT8, UINT8])
_RESULTS = {  # SOFTMAX's, by input
    INT8: frozenset([INT8, INT16]),
    UINT8: frozenset([UINT8, INT16]),
    INT16: frozenset([INT16]),
}
_INPUT_BITS, _SUM_BITS, _OUTPUT_BITS = 5, 12, 4  # integer bits of exponents, sums, log outputs
_INT16_SPAN = 65535


def _why_not_scale(spec: TensorSpec, wanted: float, tolerance: float = 0.0) -> str | None:
    scale = scale_of(spec)
    if abs(scale - wanted) <= tolerance * wanted:
        return None
    return f"the scale of {spec.name!r} is {scale}, and the {spec.dtype} kernel expects {wanted}"


# ---- SOFTMAX


def why_not_softmax(options: SoftmaxOptions, x: TensorSpec, y: TensorSpec) -> str | None:
    reason = first_reason(
        why_not_per_tensor(x, frozenset(_RESULTS)),
        why_not_per_tensor(y, _RESULTS.get(x.dtype, frozenset())),
    )
    if reason is not None:
        return reason
    if x.dtype != INT16:
        return first_reason(_why_not_exponents(options.beta, x), *_why_not_probabilities(x, y))
    finite = bool(np.isfinite(_int16_step(options.beta, x)))
    return first_reason(
        why_not_zero_point(x, 0),
        *_why_not_probabilities(x, y),
        None if finite else f"steps of {x.name!r} times beta {options.beta} are not finite",
    )


def _why_not_probabilities(x: TensorSpec, y: TensorSpec) -> tuple[str | None, str | None]:
    """[0, 1] must be the output's whole range, or for int16 inputs the positive half of it."""
    low, high = (0, 32767) if x.dtype == INT16 else integer_range(y.dtype)
    return why_not_zero_point(y, low), _why_not_scale(y, 1 / (high - low + 1), 1e-3)


def _why_not_exponents(beta: float, x: TensorSpec) -> str | None:
    factors = _float32(beta), scale_of(x), _INPUT_BITS
    reason = why_not_raised(lambda: multiplier.softmax_multiplier(*factors))
    return None if reason is None else f"steps of {x.name!r} times beta {beta}: {reason}"


def _float32(value: float) -> float:
    return float(np.float32(value))


def lower_softmax(options: SoftmaxOptions, x: TensorSpec, y: TensorSpec) -> _Integers:
    if 0 in x.shape:
        return lambda _q: jnp.zeros(y.shape, y.dtype)
    beta = options.beta
    return _softmax_int16(beta, x) if x.dtype == INT16 else _softmax_bytes(beta, x, y)


def _below_largest(q: jax.Array) -> jax.Array:
    row = q.astype(np.int32)
    return jnp.max(row, axis=-1, keepdims=True) - row


def _tables(multiplier_: int, shift: int) -> tuple[np.ndarray, np.ndarray]:
    """Exponents (Q5) and exponentials (Q0) by `below`, int32 [256]; 0 where e^-x counts as 0."""
    below = np.arange(256, dtype=np.int32)
    exponents = fixed_point.multiply_by_quantized_multiplier(-below, multiplier_, shift)
    exponentials = fixed_math.exp_on_negative_values(exponents, _INPUT_BITS)
    counted = below <= multiplier.input_radius(_INPUT_BITS, shift)
    return exponents, np.where(counted, exponentials, 0)


def _sum_exponentials(exponentials: np.ndarray, below: jax.Array) -> jax.Array:
    """The row's sum in Q12, int32 [..., 1]; it saturates where LiteRT's kernels overflow."""
    table = fixed_point.rescale(exponentials, 0, _SUM_BITS)
    most = int(table.max()) * below.shape[-1]
    total = np.int32 if most <= np.iinfo(np.int32).max else np.int64
    return fixed.saturate(jnp.sum(_at(table, below), axis=-1, keepdims=True, dtype=total), _INT32)


def _at(table: np.ndarray, below: jax.Array) -> jax.Array:
    return jnp.take(jnp.asarray(table), below, mode="clip")


def _softmax_bytes(beta: float, x: TensorSpec, y: TensorSpec) -> _Integers:
    factor, shift = multiplier.softmax_multiplier(_float32(beta), scale_of(x), _INPUT_BITS)
    _, exponentials = _tables(factor, shift)
    low, high = integer_range(y.dtype)

    def softmax(q: jax.Array) -> jax.Array:
        below = _below_largest(q)
        total = _sum_exponentials(exponentials, below)
        over_total, exponent = reciprocal(total, _SUM_BITS, jax_fixed_point)
        product = fixed.saturating_rounding_doubling_high_mul(over_total, _at(exponentials, below))
        exponent = exponent + (31 - 8 * y.dtype.itemsize)
        steps = fixed.rounding_divide_by_pot(product, jnp.minimum(exponent, 31))
        # With sums of at least 512 no value reaches half a step; the reference kernel aborts there.
        steps = jnp.where(exponent > 31, jnp.zeros_like(steps), steps)
        return add_and_clamp(steps, low, low, high, y.dtype)

    return softmax


def _int16_step(beta: float, x: TensorSpec) -> float:
    with np.errstate(over="ignore"):
        return float(np.float32(scale_of(x)) * np.float32(beta))


def _softmax_int16(beta: float, x: TensorSpec) -> _Integers:
    """Exponents in [-10, 0] and the reciprocal of the sum come from interpolated tables."""
    span, low, high = _INT16_SPAN, -32768, 32767
    unit, real = 2 / span, np.float64
    exp = lookup.lookup_table(lookup.exp, 10 / span, high, unit, 0, INT16, real=real)
    inverse = lookup.lookup_table(
        lookup.one_over_one_plus, 1 / span, low, unit, 0, INT16, real=real
    )
    factor, shift = multiplier.quantize_multiplier(_int16_step(beta, x) / (10 / span))

    def softmax(q: jax.Array) -> jax.Array:
        exponents = fixed.multiply_by_quantized_multiplier(-_below_largest(q), factor, shift)
        positions = add_and_clamp(exponents, high, low, high, INT16)
        exps = lut_lookup(positions, exp, jnp).astype(np.int32)
        total = jnp.sum(exps, axis=-1, keepdims=True, dtype=np.int32)
        zeros = fixed.count_leading_zeros(total)
        scaled = (total << (zeros - 1)).astype(np.uint32)
        fraction = (scaled + (1 << 13) >> 14).astype(np.int32)  # in [1, 2], 2**16 is 1
        position = clamp(fraction - (1 << 16) - (1 << 15), low, high, INT16)
        over_total = lut_lookup(position, inverse, jnp)
        half = jnp.int32(1) << (30 - zeros)
        product = (exps * over_total.astype(np.int32) + half) >> (31 - zeros)  # below 2**31
        return clamp(product, 0, high, INT16)

    return softmax


# ---- LOG_SOFTMAX


def why_not_log_softmax(x: TensorSpec, y: TensorSpec) -> str | None:
    return (
        why_not_same(x, y, _BYTES)
        or first_reason(
            why_not_zero_point(y, integer_range(y.dtype)[1]), _why_not_scale(y, 16 / 256)
        )
        or _why_not_multipliers(x)
    )


def _why_not_multipliers(x: TensorSpec) -> str | None:
    factors = 1.0, scale_of(x), _INPUT_BITS
    reason = why_not_raised(lambda: multiplier.log_softmax_multipliers(*factors))
    return None if reason is None else f"steps of {x.name!r}: {reason}"


def lower_log_softmax(x: TensorSpec, y: TensorSpec) -> _Integers:
    if 0 in x.shape:
        return lambda _q: jnp.zeros(y.shape, y.dtype)
    factor, shift, inverse, inverse_shift = multiplier.log_softmax_multipliers(
        1.0, scale_of(x), _INPUT_BITS
    )
    exponents, exponentials = _tables(factor, shift)
    radius = multiplier.input_radius(_INPUT_BITS, shift)
    low, high = integer_range(y.dtype)

    def log_softmax(q: jax.Array) -> jax.Array:
        below = _below_largest(q)
        total = _sum_exponentials(exponentials, below)
        log_total = log_at_least_one(total, _SUM_BITS, _INPUT_BITS, jax_fixed_point)
        lowest = log_total + np.int32(-(2**31))  # the lowest result that Q5 can hold
        reach = fixed.multiply_by_quantized_multiplier(lowest, inverse, inverse_shift)
        is_in_range = -below > jnp.maximum(reach, -radius - 1)
        y_q5 = _at(exponents, below) - log_total
        steps = fixed.rounding_divide_by_pot(y_q5, 31 - _INPUT_BITS - _OUTPUT_BITS)
        return jnp.where(
            is_in_range, add_and_clamp(steps, high, low, high, y.dtype), np.asarray(low, y.dtype)
        )

    return log_softmax


# ---- L2_NORMALIZATION


def why_not_l2_normalization(x: TensorSpec, y: TensorSpec) -> str | None:
    return why_not_same(x, y, _BYTES) or first_reason(
        why_not_zero_point(y, 128 if y.dtype == UINT8 else 0), _why_not_scale(y, 1 / 128)
    )


def lower_l2_normalization(x: TensorSpec, y: TensorSpec) -> _Integers:
    """The output's scale is 1/128."""
    offset = np.int32(zero_point_of(x))
    zero_point = zero_point_of(y)
    # The kernel of int8 scales up in the multiplier's shift, that of uint8 before it.
    factor, more = (128, 0) if x.dtype == UINT8 else (1, 7)

    def l2_normalization(q: jax.Array) -> jax.Array:
        steps = q.astype(np.int32) - offset
        squares = jnp.sum(steps * steps, axis=-1, keepdims=True, dtype=np.int32)
        over_norm, shift = inverse_sqrt(squares, fixed=jax_fixed_point)
        scaled = fixed.multiply_by_quantized_multiplier(steps * factor, over_norm, shift + more)
        return add_and_clamp(scaled, zero_point, *integer_range(y.dtype), y.dtype)

    return l2_normalization
