"""Elementwise arithmetic on quantized tensors, as LiteRT's integer kernels compute it.

Sources: kernels/{add,sub,mul,div,squared_difference,comparisons,elementwise,exp}.cc and the headers
of kernels/internal/reference that they name.
"""

import dataclasses
import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdelegate.op_lowering.common.pointwise import (
    BOOL,
    INT8,
    INT16,
    UINT8,
    Build,
    Elementwise,
    IntegerKernel,
)
from jaxdelegate.op_lowering.common.quantization import quantization_of, scale_of, zero_point_of
from jaxdelegate.op_lowering.elementwise.options import (
    AddOptions,
    DivOptions,
    MulOptions,
    SubOptions,
)
from jaxdelegate.op_lowering.records.enums import ActivationFunctionType as Act
from jaxdelegate.op_lowering.records.record import Options
from jaxdelegate.op_lowering.rule import Op
from jaxdelegate.op_lowering.spec import Specs, TensorSpec
from jaxdelegate.quant import (
    fixed_math,
    fixed_point,
    jax_fixed_point,
    jax_requantize,
    lookup,
    requantize,
)
from jaxdelegate.quant.jax_fixed_point import (
    count_leading_sign_bits,
    multiply_by_quantized_multiplier,
    rounding_divide_by_pot,
    saturating_add,
    saturating_rounding_doubling_high_mul,
    saturating_sub,
    wide,
)
from jaxdelegate.quant.jax_requantize import clamp, requantize_accumulator, rescale_steps
from jaxdelegate.quant.lookup import RealFunction, lookup_table, lut_lookup
from jaxdelegate.quant.multiplier import (
    checked_log2,
    quantize_multiplier,
    quantize_multiplier_smaller_than_one,
)
from jaxdelegate.quant.params import activation_range, integer_range
from jaxdelegate.quant.requantize import float32_product_multiplier, rescale_multiplier
from jaxdelegate.quant.short_forms import ShortProduct, ShortSum, short_products, short_sum

Multiplier = Callable[[float], tuple[int, int]]
DtypeRows = frozenset[tuple[np.dtype, ...]]

_INT32 = np.dtype(np.int32)
_MOST_CONSTANTS = 1 << 16  # short forms take three int32 for each


def alike(arity: int, *dtypes: np.dtype) -> DtypeRows:
    """All inputs and the output have the same one of these dtypes."""
    return frozenset((dtype,) * (arity + 1) for dtype in dtypes)


def steps_of(x: jax.Array, spec: TensorSpec) -> jax.Array:
    """int32: reals / scale."""
    return x.astype(np.int32) - np.int32(zero_point_of(spec))


def _all_steps(arrays: Sequence[jax.Array], specs: Specs) -> list[jax.Array]:
    return [steps_of(x, spec) for x, spec in zip(arrays, specs, strict=True)]


def stored(steps: jax.Array, y: TensorSpec, bounds: tuple[int, int]) -> jax.Array:
    """Integers of the output, from int32 reals / scale."""
    return clamp(steps + np.int32(zero_point_of(y)), *bounds, y.dtype)


def requantizer(
    y: TensorSpec, multiplier: int, shift: int, activation: Act = Act.NONE
) -> Callable[[jax.Array], jax.Array]:
    """int32 or int64 accumulators -> integers of the output."""
    zero_point, dtype = zero_point_of(y), y.dtype
    bounds = activation_range(activation, quantization_of(y), dtype)
    return lambda total: requantize_accumulator(total, multiplier, shift, zero_point, bounds, dtype)


# ---- ADD, SUB, SQUARED_DIFFERENCE: both inputs on one scale, twice the larger one


_Factors = tuple[tuple[int, int], ...]  # multiplier and shift of each input


def _common_scale(inputs: Specs) -> tuple[float, _Factors]:
    """Twice the larger scale; the factors of each input's scale / that one.

    An input with a scale of 0 is 0 (LiteRT's kernels abort).
    """
    common = 2 * max(scale_of(spec) for spec in inputs)
    return common, tuple(quantize_multiplier(scale_of(spec) / common) for spec in inputs)


def _on_common_scale(
    steps: Sequence[Any], factors: _Factors, left_shift: int, fixed: Any = jax_fixed_point
) -> list[Any]:
    """int32 multiples of (common scale / 2**left_shift), by the module of numpy or of jax."""
    return [
        fixed.multiply_by_quantized_multiplier(x << left_shift, *factor)
        for x, factor in zip(steps, factors, strict=True)
    ]


@dataclasses.dataclass(frozen=True)
class _Sum:
    """ADD or SUB (reference/{add,sub}.h)."""

    combine: Callable[[Any, Any], Any]  # of numbers on the common scale
    left_shift: int  # see `_on_common_scale`
    inputs: _Factors  # see `_common_scale`
    output: tuple[int, int]  # multiplier and shift of the total
    reals: tuple[float, ...]  # the scales of the inputs / the output's
    zero_points: tuple[int, ...]  # the inputs'
    zero_point: int  # the output's
    bounds: tuple[int, int]  # the output's range under the activation
    dtype: np.dtype  # the output's

    def of(self, steps: Sequence[Any], fixed: Any, rescaling: Any) -> Any:
        """The result for int32 steps, by the modules of numpy or of jax."""
        total = self.combine(*_on_common_scale(steps, self.inputs, self.left_shift, fixed))
        multiplier, shift = self.output
        if shift > 0:
            total = fixed.saturating_left_shift(total, shift)
        last = min(shift, 0), self.zero_point, self.bounds, self.dtype
        return rescaling.requantize_accumulator(total, multiplier, *last)

    @functools.lru_cache(256)  # noqa: B019 (of few numbers)
    def short(self) -> ShortSum | None:
        """A short form that has all its results, of 8-bit integers."""
        low, high = integer_range(self.dtype)
        every = np.arange(low, high + 1, dtype=np.int32)
        a, b = (every - zero_point for zero_point in self.zero_points)
        steps = a[:, None], b[None]
        expected = self.of(steps, fixed_point, requantize)
        sign = self.combine(0, 1)
        return short_sum(
            (self.reals[0], sign * self.reals[1]),
            lambda form: np.array_equal(
                np.clip(form(*steps) + self.zero_point, *self.bounds), expected
            ),
        )


def _sum(
    combine: Callable[[Any, Any], Any], saturating: Elementwise, multiplier: Multiplier
) -> Build[AddOptions | SubOptions]:
    def build(op: Op[AddOptions | SubOptions]) -> Elementwise:
        (y,), activation = op.outputs, op.options.fused_activation_function
        if y.dtype == INT16 and op.options.pot_scale_int16:
            powers = [checked_log2(scale_of(spec)) for spec in (*op.inputs, y)]
            if all(is_power_of_two for _, is_power_of_two in powers):
                return _sum_of_powers(activation, y, [power for power, _ in powers], saturating)
        common, factors = _common_scale(op.inputs)
        left_shift = 15 if y.dtype == INT16 else 20
        total = _Sum(
            combine=combine,
            left_shift=left_shift,
            inputs=factors,
            output=multiplier(common / float(np.float32(2**left_shift) * np.float32(scale_of(y)))),
            reals=tuple(scale_of(spec) / scale_of(y) for spec in op.inputs),
            zero_points=tuple(zero_point_of(spec) for spec in op.inputs),
            zero_point=zero_point_of(y),
            bounds=activation_range(activation, quantization_of(y), y.dtype),
            dtype=y.dtype,
        )

        def function(*arrays: jax.Array) -> jax.Array:
            steps = _all_steps(arrays, op.inputs)
            short = total.short() if y.dtype != INT16 else None
            if short is None:
                result: jax.Array = total.of(steps, jax_fixed_point, jax_requantize)
                return result
            return stored(short(*steps), y, total.bounds)

        return function

    return build


def _sum_of_powers(
    activation: Act, y: TensorSpec, powers: list[int], saturating: Elementwise
) -> Elementwise:
    """int16 by shifts: one input has the output's scale, the other a finer one."""
    shifts = [powers[2] - power for power in powers[:2]]
    if min(shifts) < 0 or 0 not in shifts:
        raise ValueError(f"scales are 2**{powers[0]}, 2**{powers[1]} -> 2**{powers[2]}")
    bounds = activation_range(activation, quantization_of(y), y.dtype)

    def function(*arrays: jax.Array) -> jax.Array:
        parts = [rounding_divide_by_pot(x, n) for x, n in zip(arrays, shifts, strict=True)]
        return clamp(saturating(*parts), *bounds, INT16)

    return function


def _squared_difference(op: Op[Options]) -> Elementwise:
    """kernels/squared_difference.cc, which is for int8.

    LiteRT's converter writes int16 too, but LiteRT has no kernel for it. It is computed with an
    int64 square and the multiplication of int64 accumulators, which wraps around at 32 bits:
    differences whose square exceeds the output's range are clamped first.
    """
    (y,), left_shift = op.outputs, 7
    common, factors = _common_scale(op.inputs)
    real = common * common / float(np.float32(2 ** (2 * left_shift)) * np.float32(scale_of(y)))
    multiplier, shift = quantize_multiplier(real)
    if shift > (7 if y.dtype == INT16 else 0):
        raise ValueError(f"{scale_of(y)} of {y.name!r} is too small for the inputs'")
    finish = requantizer(y, multiplier, shift)
    largest = math.isqrt(int(min(2.0**30 / real, 2.0**62)))

    def function(*arrays: jax.Array) -> jax.Array:
        a, b = _on_common_scale(_all_steps(arrays, op.inputs), factors, left_shift)
        difference = a - b
        if y.dtype == INT16:
            difference = jnp.clip(wide(difference), -largest, largest)
        return finish(difference * difference)

    return function


# ---- MUL, DIV


def _multiply(op: Op[MulOptions]) -> Elementwise:
    (a, b), (y,), activation = op.inputs, op.outputs, op.options.fused_activation_function
    if y.dtype != a.dtype:
        return _multiply_int16_to_8_bits(activation, y)
    pair = float32_product_multiplier(*map(quantization_of, (a, b, y)))
    finish = requantizer(y, *pair, activation)
    bounds = activation_range(activation, quantization_of(y), y.dtype)

    def function(x1: jax.Array, x2: jax.Array) -> jax.Array:
        short = None if op.context.program.weights_vary else _short_product(op, pair)
        if short is None:
            return finish(steps_of(x1, a) * steps_of(x2, b))
        return stored(short(steps_of(x1, a) if a.const is None else steps_of(x2, b)), y, bounds)

    return function


def _short_product(op: Op[MulOptions], pair: tuple[int, int]) -> ShortProduct | None:
    """The form of a product of an 8-bit integer and a constant; None: it has none."""
    constants = [spec for spec in op.inputs if spec.const is not None]
    if len(constants) != 1 or op.outputs[0].dtype == INT16:
        return None
    (constant,) = constants
    if constant.const is None or constant.const.size > _MOST_CONSTANTS:
        return None
    steps = constant.const.astype(np.int32) - np.int32(zero_point_of(constant))
    rank = max(len(spec.shape) for spec in op.inputs)
    shape = (*(1,) * (rank - len(constant.shape)), *constant.shape)
    return short_products(*pair, steps.reshape(shape))


def _multiply_int16_to_8_bits(activation: Act, y: TensorSpec) -> Elementwise:
    """The high 8 bits of the product; scales are ignored (Mul of int16 in the same header)."""
    zero_point = zero_point_of(y)
    bounds = activation_range(activation, quantization_of(y), y.dtype)

    def function(x1: jax.Array, x2: jax.Array) -> jax.Array:
        product = rounding_divide_by_pot(saturating_rounding_doubling_high_mul(x1, x2), 8)
        return clamp(product.astype(np.int32) + zero_point, *bounds, y.dtype)

    return function


def _divide(op: Op[DivOptions]) -> Elementwise:
    """reference/div.h: multiply by the reciprocal, in the bits that the dividend leaves free."""
    (a, b), (y,) = op.inputs, op.outputs
    scales = [np.float32(scale_of(spec)) for spec in (a, b, y)]
    multiplier, shift = quantize_multiplier(float(scales[0] / (scales[1] * scales[2])))
    if shift > 31 - 8 * y.dtype.itemsize:
        raise ValueError(f"{scale_of(y)} of {y.name!r} is too small for the inputs'")
    bounds = activation_range(op.options.fused_activation_function, quantization_of(y), y.dtype)

    def function(x1: jax.Array, x2: jax.Array) -> jax.Array:
        divisor = steps_of(x2, b)
        dividend = jnp.where(divisor < 0, -steps_of(x1, a), steps_of(x1, a))
        inverse, exponent = fixed_math.reciprocal(jnp.abs(divisor), 31, jax_fixed_point)
        headroom = count_leading_sign_bits(dividend)
        quotient = multiply_by_quantized_multiplier(
            *jnp.broadcast_arrays(dividend, inverse, headroom)
        )
        total_shift = shift - exponent - headroom  # C++ leaves shifts by more than 31 undefined
        scaled = multiply_by_quantized_multiplier(
            quotient, multiplier, jnp.maximum(total_shift, -31)
        )
        scaled = jnp.where(total_shift < -31, np.int32(0), scaled)
        return clamp(scaled + np.int32(zero_point_of(y)), *bounds, y.dtype)

    return function


# ---- comparisons


def _comparison(function: Elementwise) -> IntegerKernel[Options]:
    """Compare in steps of 2**-8 (ComparisonWithScaling of reference/comparisons.h)."""

    def build(op: Op[Options]) -> Elementwise:
        factors = [_comparison_multiplier(spec) for spec in op.inputs]

        def compare(*arrays: jax.Array) -> jax.Array:
            return function(
                *(
                    multiply_by_quantized_multiplier(steps_of(x, spec) << 8, *factor)
                    for x, spec, factor in zip(arrays, op.inputs, factors, strict=True)
                )
            )

        return compare

    return IntegerKernel(_COMPARED, build, symmetric=False)


def _comparison_multiplier(spec: TensorSpec) -> tuple[int, int]:
    multiplier, shift = quantize_multiplier(scale_of(spec))
    if shift > 23 - 8 * spec.dtype.itemsize:
        raise ValueError(f"{scale_of(spec)} of {spec.name!r} leaves no bits to compare in int32")
    return multiplier, shift


_COMPARED = frozenset((dtype, dtype, BOOL) for dtype in (INT8, UINT8, INT16))


# ---- unary operators


def _absolute(op: Op[Options]) -> Elementwise:
    (x,), (y,) = op.inputs, op.outputs
    pair = rescale_multiplier(quantization_of(x), quantization_of(y), in_float32=True)
    bounds = integer_range(y.dtype)
    return lambda a: stored(rescale_steps(jnp.abs(steps_of(a, x)), *pair, x.dtype), y, bounds)


def table_lookup(function: RealFunction, op: Op[Options]) -> Elementwise:
    (x,), (y,) = op.inputs, op.outputs
    of_x, of_y = (scale_of(x), zero_point_of(x)), (scale_of(y), zero_point_of(y))
    table = lookup_table(function, *of_x, *of_y, x.dtype)
    return lambda q: lut_lookup(q, table, jnp)


def _every(dtype: np.dtype) -> np.ndarray:
    """int64, indexed by the integer's bits as an unsigned number."""
    bits = 8 * dtype.itemsize
    return np.arange(1 << bits, dtype=f"uint{bits}").view(dtype).astype(np.int64)


def _indexed(table: np.ndarray) -> Elementwise:
    unsigned = np.dtype(f"uint{8 * table.dtype.itemsize}")
    return lambda x: jnp.asarray(table)[lax.bitcast_convert_type(x, unsigned)]


def _square_root(op: Op[Options]) -> Elementwise:
    """kernels/elementwise.cc, which fails at negative reals: in float32, the quotient truncated."""
    (x,), (y,) = op.inputs, op.outputs
    low, high = (bound - zero_point_of(y) for bound in integer_range(y.dtype))
    steps = np.maximum(_every(x.dtype) - zero_point_of(x), 0).astype(np.float32)
    root = np.sqrt(np.float32(scale_of(x)) * steps) / np.float32(scale_of(y))
    table = np.clip(np.trunc(root), low, high).astype(np.int64) + zero_point_of(y)
    return _indexed(table.astype(y.dtype))


def _inverse_square_root(op: Op[Options]) -> Elementwise:
    """kernels/elementwise.cc: int8 in fixed point. It fails at negative reals; 0: the largest."""
    (x,), (y,) = op.inputs, op.outputs
    if x.dtype == INT16:
        largest = np.float32(32767) * np.float32(scale_of(y))
        return table_lookup(lookup.rsqrt(float(largest)), op)
    product = np.sqrt(np.float32(scale_of(x))) * np.float32(scale_of(y))
    multiplier, shift = quantize_multiplier(float(np.float64(1) / np.float64(product)))
    steps = np.maximum(_every(x.dtype) - zero_point_of(x), 0)
    mantissa, exponent = fixed_math.inverse_sqrt(steps)
    with_20_bits = fixed_point.multiply_by_quantized_multiplier(1, mantissa, exponent + 20)
    root = fixed_point.multiply_by_quantized_multiplier(with_20_bits, multiplier, shift - 20)
    low, high = integer_range(y.dtype)
    q = np.clip(root.astype(np.int64) + zero_point_of(y), low, high)
    return _indexed(np.where(steps == 0, high, q).astype(y.dtype))


def _logarithm(op: Op[Options]) -> Elementwise:
    (y,) = op.outputs
    low, _ = integer_range(y.dtype)
    lowest = np.float32(low - zero_point_of(y)) * np.float32(scale_of(y))
    return table_lookup(lookup.log(float(lowest)), op)


_SUMMED = alike(2, INT8, UINT8, INT16)
ADD = IntegerKernel(
    _SUMMED, _sum(operator.add, saturating_add, quantize_multiplier_smaller_than_one)
)
SUB = IntegerKernel(_SUMMED, _sum(operator.sub, saturating_sub, quantize_multiplier))
SQUARED_DIFFERENCE = IntegerKernel(alike(2, INT8, INT16), _squared_difference)
MUL = IntegerKernel(_SUMMED | {(INT16, INT16, INT8), (INT16, INT16, UINT8)}, _multiply)
DIV = IntegerKernel(_SUMMED, _divide, symmetric=False)
EQUAL, NOT_EQUAL = _comparison(jnp.equal), _comparison(jnp.not_equal)
LESS, LESS_EQUAL = _comparison(jnp.less), _comparison(jnp.less_equal)
GREATER, GREATER_EQUAL = _comparison(jnp.greater), _comparison(jnp.greater_equal)
ABS = IntegerKernel(alike(1, INT8, INT16), _absolute)
EXP: IntegerKernel[Options] = IntegerKernel(
    alike(1, INT8, INT16), functools.partial(table_lookup, lookup.exp)
)
LOG = IntegerKernel(alike(1, INT8, INT16), _logarithm)
SQRT = IntegerKernel(alike(1, INT8, INT16), _square_root)
RSQRT = IntegerKernel(alike(1, INT8, INT16), _inverse_square_root)
