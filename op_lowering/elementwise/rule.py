"""Elementwise arithmetic. Sources: kernels/elementwise.cc and the files named as the operators.

More dtypes than LiteRT's kernels: all floats, and integers of every width, which wrap around as C++
integers do. Where a kernel fails at values of a run-time tensor (an integer division by zero), the
result is unspecified; such values in a constant are refused.
"""

import dataclasses
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax import lax

from jaxdelegate.op_lowering.common.basics import clamp, scalar
from jaxdelegate.op_lowering.common.derivatives import derived_as
from jaxdelegate.op_lowering.common.pointwise import (
    BOOLS,
    COMPLEX,
    INTEGERS,
    NUMBERS,
    PACKED,
    Elementwise,
    IntegerKernel,
    Operands,
    binary,
    pointwise,
    unary,
    why_not_count,
    why_not_one_dtype,
    why_not_one_shape,
    why_not_stored,
)
from jaxdelegate.op_lowering.common.quantization import zero_point_of
from jaxdelegate.op_lowering.dtypes import FLOATS
from jaxdelegate.op_lowering.elementwise import quantized
from jaxdelegate.op_lowering.elementwise.options import (
    AddOptions,
    DivOptions,
    MulOptions,
    SubOptions,
)
from jaxdelegate.op_lowering.records.enums import ActivationFunctionType as Act
from jaxdelegate.op_lowering.records.record import NoOptions, Options
from jaxdelegate.op_lowering.rule import Function, Op, OpRule, WhyNot, first_reason, rule, table

# ---- arithmetic with a fused activation: ADD, SUB, MUL, DIV

_Activated = TypeVar("_Activated", bound=AddOptions | SubOptions | MulOptions | DivOptions)


def _limits(activation: Act, dtype: np.dtype) -> tuple[Any, Any]:
    """The range to which a kernel clamps (CalculateActivationRange, kernels/kernel_util.h).

    NONE, TANH and SIGN_BIT: the finite range of the dtype; infinities become the largest number.
    """
    info: Any = np.iinfo(dtype) if dtype in INTEGERS else ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
    low, high = info.min, info.max
    ranges = {Act.RELU: (0, high), Act.RELU6: (0, 6), Act.RELU_N1_TO_1: (-1, 1)}
    return tuple(np.asarray(v).astype(dtype).item() for v in ranges.get(activation, (low, high)))


def _activated(
    name: str,
    max_version: int,
    function: Elementwise,
    integer: IntegerKernel[_Activated],
    why_not: WhyNot[_Activated] | None = None,
) -> OpRule[_Activated]:

    def build(op: Op[_Activated]) -> Elementwise:
        dtype, activation = op.inputs[0].dtype, op.options.fused_activation_function
        is_unlimited = dtype in INTEGERS or op.context.program.follows_xnnpack
        if dtype in COMPLEX or (is_unlimited and activation is Act.NONE):
            return function
        low, high = _limits(activation, dtype)
        return lambda x, y: clamp(function(x, y), low, high)

    def refuse(op: Op[_Activated]) -> str | None:
        is_complex = op.inputs[0].dtype in COMPLEX
        if is_complex and op.options.fused_activation_function is not Act.NONE:
            return "complex results take no fused activation"
        return None if why_not is None else why_not(op)

    return pointwise(
        name, max_version, build, Operands(NUMBERS | COMPLEX, 2), why_not=refuse, integer=integer
    )


def _divide(x: jax.Array, y: jax.Array) -> jax.Array:
    """Integers truncate toward zero."""
    if x.dtype in INTEGERS:
        return lax.div(*jnp.broadcast_arrays(x, y))
    # XLA replaces x / (a broadcast y) by x * (1 / y), off by one ulp: floor(49 / 49) would be 0.
    # A divisor that depends on x, without changing any quotient, prevents this.
    return x / jnp.where(jnp.isnan(x), x, y)


def _why_not_integer_zero(op: Op[Options]) -> str | None:
    """DIV and FLOOR_MOD of integers fail at a zero divisor."""
    return _why_not_zero(op) if op.inputs[1].dtype in INTEGERS else None


def _why_not_zero(op: Op[Options]) -> str | None:
    """FLOOR_DIV fails at a zero divisor of any dtype."""
    divisor = op.inputs[1]
    zero = zero_point_of(divisor) if divisor.is_quantized else 0
    if divisor.const is not None and not np.all(divisor.const != zero):
        return f"{divisor.name!r} holds a zero: LiteRT stops with an error on that division"
    return None


# ---- other binary operators


def _floor_divide(x: jax.Array, y: jax.Array) -> jax.Array:
    """floor(x / y), the quotient in float64 (kernels/internal/reference/floor_div.h)."""
    if x.dtype in INTEGERS:
        return jnp.floor_divide(x, y)
    a, b = x.astype(np.float64), y.astype(np.float64)
    quotient = a / b
    nearest = jnp.rint(quotient)
    # XLA may multiply by 1 / b instead; an integer quotient must not fall below that integer
    return jnp.where(nearest * b == a, nearest, jnp.floor(quotient))


def _right_shift(x: jax.Array, y: jax.Array) -> jax.Array:
    """Arithmetic where signed; the distance is clamped to [0, bits - 1]."""
    return jnp.right_shift(x, clamp(y, 0, 8 * x.dtype.itemsize - 1))


def _atan2(y: jax.Array, x: jax.Array) -> jax.Array:
    # XLA divides one by the other. On a CPU this division flushes subnormal numbers to zero, but
    # the check for zeros before it does not, and 0 / 0 is NaN: small operands are scaled up first,
    # or become zeros.
    up = 2.0 ** (-int(jnp.finfo(x.dtype).minexp) // 2)  # type: ignore[no-untyped-call]
    small = jnp.maximum(jnp.abs(x), jnp.abs(y)) < scalar(1 / up, x)
    scale = jnp.where(small, scalar(up, x), scalar(1, x))
    return jnp.arctan2(y * scale, x * scale)


# ---- ADD_N


def _add_n(op: Op[NoOptions]) -> Elementwise:
    dtype = op.inputs[0].dtype

    def add_n(*terms: jax.Array) -> jax.Array:
        total = terms[0]
        for term in terms[1:]:  # each partial sum is clamped, like ADD's result
            total = total + term
            total = total if dtype in INTEGERS else clamp(total, *_limits(Act.NONE, dtype))
        return total

    return add_n


def _why_not_add_n(op: Op[NoOptions]) -> str | None:
    return first_reason(*(why_not_one_shape(op.inputs[0], s) for s in op.inputs[1:]))


# ---- POW


def _power(op: Op[NoOptions]) -> Elementwise:
    """pow; with a scalar exponent and a larger base, BroadcastPow4D (optimized_ops.h).

    That rounds an exponent within 1e-5 of a whole number to that number, and clamps float products
    like MUL's.
    """
    base, exponent = op.inputs[:2]
    if base.shape == exponent.shape or np.prod(exponent.shape) != 1 or base.dtype in INTEGERS:
        return jnp.power
    low, high = _limits(Act.NONE, base.dtype)
    if exponent.const is not None:
        return _constant_power(float(exponent.const.reshape(())), low, high)

    def power(x: jax.Array, y: jax.Array) -> jax.Array:
        whole = jnp.rint(y)
        is_whole = (jnp.abs(y - whole) < 1e-5) & (whole >= 1) & (whole < 2**31)
        z = jnp.power(x, jnp.where(is_whole, whole, y))
        return jnp.where(is_whole & (whole > 1), clamp(z, low, high), z)

    return power


def _constant_power(exponent: float, low: float, high: float) -> Elementwise:
    whole = round(exponent) if abs(exponent) < 2**31 else 0
    if whole < 1 or abs(exponent - whole) >= 1e-5:
        return jnp.power
    if whole == 1:
        return lambda x, _y: x
    return lambda x, _y: clamp(lax.integer_pow(x, whole), low, high)


def _why_not_power(op: Op[NoOptions]) -> str | None:
    exponent = op.inputs[1]
    if exponent.dtype in INTEGERS and exponent.const is not None and np.any(exponent.const < 0):
        return f"{exponent.name!r} holds a negative integer exponent: LiteRT stops with an error"
    return None


# ---- unary operators


def _why_not_negative(op: Op[NoOptions]) -> str | None:
    """The integer kernels of SQRT and RSQRT fail at a negative number."""
    x = op.inputs[0]
    if x.is_quantized and x.const is not None and np.any(x.const < zero_point_of(x)):
        return f"{x.name!r} holds a negative number: LiteRT stops with an error on its root"
    return None


def _modulus(x: jax.Array) -> jax.Array:
    """Infinite if either part is, as in C; XLA returns NaN if the other part is NaN."""
    infinite = jnp.isinf(jnp.real(x)) | jnp.isinf(jnp.imag(x))
    modulus = jnp.abs(x)
    return jnp.where(infinite, scalar(np.inf, modulus), modulus)


def _rsqrt(x: jax.Array) -> jax.Array:
    """1 / sqrt(x), each rounded as in C; the maximum keeps XLA from merging the two."""
    return 1 / jnp.maximum(jnp.sqrt(x), scalar(-1, x))


_abs = derived_as(jnp.abs, lambda x: x * jnp.sign(x))  # the slope 0 at 0: JAX's own is 1


# ---- operators that read no number: ZEROS_LIKE, BITCAST


def _why_not_zeros(op: Op[NoOptions]) -> str | None:
    return first_reason(
        why_not_count(op.inputs, 1),
        why_not_stored(op.inputs[0], NUMBERS | COMPLEX | BOOLS | PACKED),
        why_not_one_dtype(op.inputs[0], op.outputs[0]),
    )


def _lower_zeros(op: Op[NoOptions]) -> Function:
    x = op.inputs[0]
    return lambda _x: (jnp.zeros(x.shape, x.dtype),)


def _why_not_bitcast(op: Op[NoOptions]) -> str | None:
    x, y = op.inputs[0], op.outputs[0]
    ratio = y.dtype.itemsize // x.dtype.itemsize
    parts = ratio <= 1 or x.shape[-1:] == (ratio,)
    return first_reason(
        why_not_count(op.inputs, 1),
        why_not_stored(x, NUMBERS),
        why_not_stored(y, NUMBERS),
        None if parts else f"the last dimension of {x.name!r} is not the {ratio} of one {y.dtype}",
    )


def _lower_bitcast(op: Op[NoOptions]) -> Function:
    dtype = op.outputs[0].dtype
    return lambda x: (lax.bitcast_convert_type(x, dtype),)


RULES = table(
    _activated("ADD", 6, jnp.add, quantized.ADD),
    _activated("SUB", 5, jnp.subtract, quantized.SUB),
    _activated("MUL", 8, jnp.multiply, quantized.MUL),
    _activated("DIV", 2, _divide, quantized.DIV, _why_not_integer_zero),
    binary("FLOOR_DIV", 3, _floor_divide, why_not=_why_not_zero),
    binary("FLOOR_MOD", 2, jnp.remainder, why_not=_why_not_integer_zero),
    # If either is NaN, y. Equal values share the slope.
    binary("MAXIMUM", 4, derived_as(lambda x, y: jnp.where(x > y, x, y), jnp.maximum)),
    binary("MINIMUM", 4, derived_as(lambda x, y: jnp.where(x < y, x, y), jnp.minimum)),
    dataclasses.replace(
        pointwise("POW", 1, _power, Operands(NUMBERS, 2), why_not=_why_not_power),
        built_in=(1,),
    ),
    binary(
        "SQUARED_DIFFERENCE",
        2,
        lambda x, y: (x - y) * (x - y),
        integer=quantized.SQUARED_DIFFERENCE,
    ),
    pointwise("ADD_N", 1, _add_n, Operands(NUMBERS, 2, variadic=True), why_not=_why_not_add_n),
    binary("ATAN2", 1, _atan2, dtypes=FLOATS, why_not=lambda op: why_not_one_shape(*op.inputs)),
    binary("BITWISE_XOR", 1, jnp.bitwise_xor, dtypes=INTEGERS | BOOLS),
    binary("RIGHT_SHIFT", 1, _right_shift, dtypes=INTEGERS),
    unary("ABS", 5, _abs, dtypes=NUMBERS, integer=quantized.ABS),
    unary("NEG", 1, jnp.negative, dtypes=NUMBERS | COMPLEX),
    unary("SIGN", 2, jnp.sign, dtypes=NUMBERS),
    unary("SQUARE", 1, lambda x: x * x, dtypes=NUMBERS),
    unary("SQRT", 2, jnp.sqrt, why_not=_why_not_negative, integer=quantized.SQRT),
    unary("RSQRT", 3, _rsqrt, why_not=_why_not_negative, integer=quantized.RSQRT),
    unary("EXP", 2, jnp.exp, integer=quantized.EXP),
    unary("LOG", 2, jnp.log, integer=quantized.LOG),
    unary("SIN", 2, jnp.sin),
    unary("COS", 2, jnp.cos),
    unary("FLOOR", 1, jnp.floor),
    unary("CEIL", 1, jnp.ceil),
    unary("ROUND", 1, jnp.rint),  # halves to even
    unary("REAL", 1, jnp.real, dtypes=COMPLEX, results=FLOATS),
    unary("IMAG", 1, jnp.imag, dtypes=COMPLEX, results=FLOATS),
    unary("COMPLEX_ABS", 1, _modulus, dtypes=COMPLEX, results=FLOATS),
    rule("ZEROS_LIKE", 1, _why_not_zeros, _lower_zeros),
    rule("BITCAST", 1, _why_not_bitcast, _lower_bitcast),
)
