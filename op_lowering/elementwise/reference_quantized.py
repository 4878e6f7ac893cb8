"""Elementwise arithmetic on quantized tensors, in numpy; quantized.py names the sources."""

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from jaxdelegate.op_lowering.elementwise.options import (
    AddOptions,
    DivOptions,
    MulOptions,
    SubOptions,
)
from jaxdelegate.op_lowering.records.enums import ActivationFunctionType as Act
from jaxdelegate.op_lowering.records.record import Options
from jaxdelegate.op_lowering.spec import Specs, TensorSpec
from jaxdelegate.quant import affine, lookup
from jaxdelegate.quant.fixed_math import inverse_sqrt, reciprocal
from jaxdelegate.quant.fixed_point import (
    count_leading_sign_bits,
    multiply_by_quantized_multiplier,
    rounding_divide_by_pot,
    saturating_add,
    saturating_left_shift,
    saturating_rounding_doubling_high_mul,
    saturating_sub,
    wrap,
)
from jaxdelegate.quant.multiplier import (
    checked_log2,
    quantize_multiplier,
    quantize_multiplier_smaller_than_one,
)
from jaxdelegate.quant.params import Quantization, activation_range, integer_range
from jaxdelegate.quant.requantize import clamp, requantize_accumulator
from jaxdelegate.reference.kernel import Array, Run
from jaxdelegate.reference.quantization import (
    range_of,
    require_symmetric,
    scale_of,
    steps_of,
    zero_point_of,
)


def finish(
    total: Array, y: TensorSpec, multiplier: int, shift: int, activation: Act = Act.NONE
) -> tuple[Array]:
    """From an accumulator of int32 or int64."""
    bounds = range_of(y, activation)
    return (requantize_accumulator(total, multiplier, shift, zero_point_of(y), bounds, y.dtype),)


def clamped(total: Array, y: TensorSpec, activation: Act = Act.NONE) -> tuple[Array]:
    """From int32 steps of the output."""
    q = wrap(total.astype(np.int64) + zero_point_of(y), np.dtype(np.int32))
    return (clamp(q, *range_of(y, activation), y.dtype),)


# ---- ADD, SUB


def _sum(
    name: str,
    combine: Callable[[Any, Any], Any],
    saturating: Callable[..., Array],
    to_multiplier: Callable[[float], tuple[int, int]],
) -> Run:
    """reference/{add,sub}.h, integer_ops/add.h."""

    def run(
        o: AddOptions | SubOptions, inputs: Specs, outputs: Specs, a: Array, b: Array
    ) -> tuple[Array]:
        (y,) = outputs
        if any(spec.blocks is not None for spec in inputs):
            return _sum_of_reals(combine, o, inputs, y, a, b)
        require_symmetric(name, *inputs, y)
        if y.dtype == np.int16 and o.pot_scale_int16:
            powers = [checked_log2(float(scale_of(spec))) for spec in (*inputs, y)]
            if all(is_power_of_two for _, is_power_of_two in powers):
                return _sum_by_shifts(saturating, o, y, [log for log, _ in powers], a, b)
        left_shift = 15 if y.dtype == np.int16 else 20
        (a, b), twice_larger = _rescaled(inputs, left_shift, a, b)
        real = twice_larger / float((1 << left_shift) * scale_of(y))
        multiplier, shift = to_multiplier(real)
        # C++ leaves a shift to the left undefined here, in builds of double rounding.
        total = saturating_left_shift(combine(a, b), max(shift, 0))
        return finish(total, y, multiplier, min(shift, 0), o.fused_activation_function)

    return run


def _sum_of_reals(
    combine: Callable[[Any, Any], Any],
    o: AddOptions | SubOptions,
    inputs: Specs,
    y: TensorSpec,
    *arrays: Array,
) -> tuple[Array]:
    """ADD or SUB with a constant scaled in blocks, by definition: LiteRT has no kernel for it.

    Integers without a scale are their own reals.
    """
    for spec in inputs:  # before an operand is read, which may be large
        if spec.blocks is not None:
            affine.block_parameters(spec.blocks, spec.shape)
    one = Quantization(np.ones(1, np.float32), np.zeros(1, np.int64))
    q = [spec.quantization if spec.is_quantized else one for spec in (*inputs, y)]
    reals = [affine.dequantize(a, p or one) for a, p in zip(arrays, q, strict=False)]
    total = affine.quantize(combine(*reals), q[-1] or one, y.dtype)
    low, high = activation_range(o.fused_activation_function, q[-1] or one, y.dtype)
    return (clamp(total, low, high, y.dtype),)


def _rescaled(inputs: Specs, left_shift: int, *arrays: Array) -> tuple[list[Array], float]:
    """Both inputs, int32, in units of twice the larger scale / 2**left_shift; that double scale.

    An input is 0 if its scale is 0, as the converter writes it for zeros; LiteRT aborts.
    """
    twice_larger = float(2 * max(scale_of(spec) for spec in inputs))
    rescaled = []
    for x, spec in zip(arrays, inputs, strict=True):
        multiplier, shift = quantize_multiplier(float(scale_of(spec)) / twice_larger)
        shifted = steps_of(x, spec) * np.int32(1 << left_shift)
        rescaled.append(multiply_by_quantized_multiplier(shifted, multiplier, shift))
    return rescaled, twice_larger


def _sum_by_shifts(
    saturating: Callable[..., Array],
    o: AddOptions | SubOptions,
    y: TensorSpec,
    logs: list[int],
    a: Array,
    b: Array,
) -> tuple[Array]:
    """int16 with scales that are powers of two; one input may have a finer one than the output."""
    of_a, of_b = logs[0] - logs[2], logs[1] - logs[2]
    if of_a > 0 or of_b > 0 or (of_a != 0 and of_b != 0):
        raise ValueError(f"int16 scales 2**{logs[0]} and 2**{logs[1]} do not give 2**{logs[2]}")
    total = saturating(rounding_divide_by_pot(a, -of_a), rounding_divide_by_pot(b, -of_b))
    return clamped(total.astype(np.int32), y, o.fused_activation_function)


add = _sum("ADD", operator.add, saturating_add, quantize_multiplier_smaller_than_one)
sub = _sum("SUB", operator.sub, saturating_sub, quantize_multiplier)


# ---- SQUARED_DIFFERENCE, MUL, DIV


def squared_difference(
    _o: object, inputs: Specs, outputs: Specs, a: Array, b: Array
) -> tuple[Array]:
    """(a - b)**2 (kernels/squared_difference.cc).

    LiteRT has a kernel for int8 only, but its converter writes int16 too: there the square is an
    int64, scaled as the accumulators of int16 convolutions. The difference is clamped so that the
    scaled square fits int32.
    """
    (y,) = outputs
    require_symmetric("SQUARED_DIFFERENCE", *inputs, y)
    (a, b), twice_larger = _rescaled(inputs, 7, a, b)
    real = twice_larger * twice_larger / float((1 << 14) * scale_of(y))
    if y.dtype != np.int16:
        difference = a - b
        return finish(difference * difference, y, *quantize_multiplier_smaller_than_one(real))
    multiplier, shift = quantize_multiplier(real)
    if shift > 7:
        raise ValueError(f"SQUARED_DIFFERENCE: the output's scale {scale_of(y)} is too small")
    difference = np.abs(a.astype(np.int64) - b)
    too_large = difference.astype(np.float64) ** 2 * real > 2.0**30
    difference = np.where(too_large, math.isqrt(int(min(2.0**30 / real, 2.0**62))), difference)
    return finish(difference * difference, y, multiplier, shift)


def mul(o: MulOptions, inputs: Specs, outputs: Specs, a: Array, b: Array) -> tuple[Array]:
    """reference/integer_ops/mul.h."""
    (y,) = outputs
    require_symmetric("MUL", *inputs, y)
    if a.dtype == np.int16 and y.dtype.itemsize == 1:
        high = saturating_rounding_doubling_high_mul(a, b)  # the kernel ignores the scales
        product = rounding_divide_by_pot(high, 8).astype(np.int32)
        return clamped(product, y, o.fused_activation_function)
    real = scale_of(inputs[0]) * scale_of(inputs[1]) / scale_of(y)
    product = steps_of(a, inputs[0]) * steps_of(b, inputs[1])
    return finish(product, y, *quantize_multiplier(float(real)), o.fused_activation_function)


def div(o: DivOptions, inputs: Specs, outputs: Specs, a: Array, b: Array) -> tuple[Array]:
    """By the divisor's reciprocal (reference/div.h).

    Quotients below a quarter of the output's step are 0: C++ shifts them by more than 31 bits,
    which is undefined (LiteRT's x86-64 build returns the least or the largest output).
    """
    (y,) = outputs
    real = scale_of(inputs[0]) / (scale_of(inputs[1]) * scale_of(y))
    multiplier, shift = quantize_multiplier(float(real))
    if shift > 31 - 8 * y.dtype.itemsize:
        raise ValueError(f"DIV: the output's scale {scale_of(y)} is too small")
    dividend, divisor = np.broadcast_arrays(steps_of(a, inputs[0]), steps_of(b, inputs[1]))
    if not np.all(divisor):
        raise ZeroDivisionError("DIV: division by zero")
    dividend = np.where(divisor < 0, -dividend, dividend)
    inverse, bits_over_unit = reciprocal(np.abs(divisor), 31)
    headroom = count_leading_sign_bits(dividend)
    quotient = multiply_by_quantized_multiplier(dividend, inverse, headroom)
    total_shift = shift - bits_over_unit - headroom
    scaled = multiply_by_quantized_multiplier(quotient, multiplier, np.maximum(total_shift, -31))
    scaled = np.where(total_shift < -31, 0, scaled)
    return clamped(scaled, y, o.fused_activation_function)


# ---- comparisons


def _comparison(compare: Callable[[Array, Array], Any]) -> Run:
    """Compare reals in steps of 1/256 (ComparisonWithScaling of reference/comparisons.h)."""

    def run(_o: Options, inputs: Specs, _outputs: Specs, *arrays: Array) -> tuple[Array]:
        a, b = (_in_steps_of_256th(x, spec) for x, spec in zip(arrays, inputs, strict=True))
        return (np.asarray(compare(a, b)),)

    return run


def _in_steps_of_256th(x: Array, spec: TensorSpec) -> Array:
    multiplier, shift = quantize_multiplier(float(scale_of(spec)))
    difference_bits = 8 * x.dtype.itemsize
    if difference_bits + 8 + shift > 31:
        raise ValueError(f"the scale of {spec.name!r}, {scale_of(spec)}, leaves no room in int32")
    return multiply_by_quantized_multiplier(steps_of(x, spec) * np.int32(1 << 8), multiplier, shift)


equal, not_equal = _comparison(np.equal), _comparison(np.not_equal)
less, less_equal = _comparison(np.less), _comparison(np.less_equal)
greater, greater_equal = _comparison(np.greater), _comparison(np.greater_equal)


# ---- unary operators


def absolute(_o: object, inputs: Specs, outputs: Specs, x: Array) -> tuple[Array]:
    """AbsEvalQuantized of kernels/elementwise.cc."""
    require_symmetric("ABS", *inputs, *outputs)
    pair = quantize_multiplier(float(scale_of(inputs[0]) / scale_of(outputs[0])))
    return finish(np.abs(steps_of(x, inputs[0])), outputs[0], *pair)


def tabulated(
    x: Array, source: TensorSpec, target: TensorSpec, function: lookup.RealFunction
) -> tuple[Array]:
    """Through LUTPopulate's table."""
    table = lookup.lookup_table(
        function,
        float(scale_of(source)),
        zero_point_of(source),
        float(scale_of(target)),
        zero_point_of(target),
        source.dtype,
    )
    return (lookup.lut_lookup(x, table),)


def exp(_o: object, inputs: Specs, outputs: Specs, x: Array) -> tuple[Array]:
    """kernels/exp.cc."""
    require_symmetric("EXP", *inputs, *outputs)
    return tabulated(x, inputs[0], outputs[0], lookup.exp)


def log(_o: object, inputs: Specs, outputs: Specs, x: Array) -> tuple[Array]:
    """The least output for x <= 0 (LogLUTPrepare of kernels/elementwise.cc)."""
    require_symmetric("LOG", *inputs, *outputs)
    low, _ = integer_range(outputs[0].dtype)
    least = np.float32(low - zero_point_of(outputs[0])) * scale_of(outputs[0])
    return tabulated(x, inputs[0], outputs[0], lookup.log(float(least)))


def sqrt(_o: object, inputs: Specs, outputs: Specs, x: Array) -> tuple[Array]:
    """The root in float32, truncated to the output's steps (kernels/elementwise.cc)."""
    require_symmetric("SQRT", *inputs, *outputs)
    real = scale_of(inputs[0]) * _not_negative("SQRT", x, inputs[0]).astype(np.float32)
    steps = np.trunc(np.sqrt(real) / scale_of(outputs[0]))
    low, high = integer_range(outputs[0].dtype)
    zero_point = zero_point_of(outputs[0])
    inside = np.minimum(np.maximum(steps, low - zero_point), high - zero_point)
    return ((inside.astype(np.int64) + zero_point).astype(outputs[0].dtype),)


def rsqrt(_o: object, inputs: Specs, outputs: Specs, x: Array) -> tuple[Array]:
    """The largest output for 0 (kernels/elementwise.cc)."""
    source, target = inputs[0], outputs[0]
    require_symmetric("RSQRT", source, target)
    steps = _not_negative("RSQRT", x, source)
    if x.dtype == np.int16:
        largest = np.float32(np.iinfo(np.int16).max) * scale_of(target)
        return tabulated(x, source, target, lookup.rsqrt(float(largest)))
    real = np.float64(1) / np.float64(np.sqrt(scale_of(source)) * scale_of(target))
    multiplier, shift = quantize_multiplier(float(real))
    mantissa, exponent = inverse_sqrt(steps)
    fraction_bits = 20
    root = multiply_by_quantized_multiplier(1, mantissa, exponent + fraction_bits)
    (y,) = finish(root, target, multiplier, shift - fraction_bits)
    return (np.where(steps == 0, np.int8(127), y),)


def _not_negative(name: str, x: Array, spec: TensorSpec) -> Array:
    steps = steps_of(x, spec)
    if np.any(steps < 0):
        raise ValueError(f"{name}: {spec.name!r} holds a negative number")
    return steps
