"""StableHLO operators that act element by element, and STABLEHLO_CUSTOM_CALL.

Semantics: the StableHLO specification. Inputs have one shape, only the scalars of SELECT and CLAMP
broadcast, maximum and minimum propagate NaN, integer division truncates. LiteRT's kernels are in
kernels/stablehlo_elementwise.h.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdelegate.op_lowering.common.basics import scalar
from jaxdelegate.op_lowering.common.derivatives import derived_as
from jaxdelegate.op_lowering.common.pointwise import (
    BOOL,
    BOOLS,
    COMPLEX,
    INTEGERS,
    NUMBERS,
    Dtypes,
    Elementwise,
    Operands,
    pointwise,
)
from jaxdelegate.op_lowering.common.signature import MOVED, REAL_OF, Input, typed_rule
from jaxdelegate.op_lowering.dtypes import FLOATS
from jaxdelegate.op_lowering.records.enums import (
    StablehloComparisonDirection,
    StablehloComparisonType,
)
from jaxdelegate.op_lowering.records.record import NoOptions
from jaxdelegate.op_lowering.rule import Function, Op, OpRule, rule, table, why_not_dtype
from jaxdelegate.op_lowering.stablehlo.options import (
    StablehloCompareOptions,
    StablehloCustomCallOptions,
)

ELEMENTS: Dtypes = NUMBERS | COMPLEX | BOOLS
_INEXACT: Dtypes = FLOATS | COMPLEX
_ELEMENT, _SAME = Input(ELEMENTS), Input(ELEMENTS, is_same=True)


def _binary(name: str, function: Elementwise, dtypes: Dtypes) -> OpRule:
    return pointwise(name, 1, lambda _op: function, Operands(dtypes, 2))


def _unary(name: str, function: Elementwise, dtypes: Dtypes = _INEXACT) -> OpRule:
    return pointwise(name, 1, lambda _op: function, Operands(dtypes))


# ---- two inputs


def _add(x: jax.Array, y: jax.Array) -> jax.Array:
    return lax.bitwise_or(x, y) if x.dtype == BOOL else lax.add(x, y)


def _multiply(x: jax.Array, y: jax.Array) -> jax.Array:
    return lax.bitwise_and(x, y) if x.dtype == BOOL else lax.mul(x, y)


def _power(x: jax.Array, y: jax.Array) -> jax.Array:
    """Integers by squaring, modulo their width; a negative exponent leaves 0 unless |x| is 1."""
    if x.dtype not in INTEGERS:
        return lax.pow(x, y)
    one, zero = scalar(1, x), scalar(0, x)

    def square(_step: object, state: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        result, base, exponent = state
        odd = (exponent & one) == one
        return jnp.where(odd, result * base, result), base * base, exponent >> one

    start = (jnp.ones_like(x), x, y)
    result: jax.Array = lax.fori_loop(0, 8 * x.dtype.itemsize, square, start)[0]
    is_unit = (x == one) | (x == zero - one)
    # Powers of 1 and -1 depend only on the exponent's lowest bit, which two's complement keeps.
    return jnp.where((y < zero) & ~is_unit, zero, result)


# ---- one input

_SIGNED: Dtypes = frozenset(d for d in INTEGERS if d.kind == "i")


def _why_not_abs(op: Op[NoOptions]) -> str | None:
    x = op.inputs[0].dtype
    return why_not_dtype(op.outputs[0], frozenset([REAL_OF.get(x, x)]))


# ---- COMPARE

_TOTAL_ORDER = StablehloComparisonType.STABLEHLO_COMPARISON_TYPE_FLOAT_TOTAL_ORDER
_Compare = Callable[[jax.Array, jax.Array], jax.Array]


def _lexicographic(compare: _Compare) -> _Compare:
    """The order of complex numbers: by real parts, then by imaginary parts."""

    def run(x: jax.Array, y: jax.Array) -> jax.Array:
        by_imaginary = compare(lax.imag(x), lax.imag(y))
        by_real = compare(lax.real(x), lax.real(y))
        return jnp.where(lax.real(x) == lax.real(y), by_imaginary, by_real)

    return run


# EQ, NE, GE, GT, LE, LT
_LAX: dict[StablehloComparisonDirection, _Compare] = {
    direction: getattr(lax, direction.name[-2:].lower())
    for direction in StablehloComparisonDirection
}


def total_order(x: jax.Array) -> jax.Array:
    """Integers in IEEE 754's total order of floats: -NaN < -inf < ... < -0 < +0 < ... < NaN."""
    width = np.dtype(f"int{8 * x.dtype.itemsize}")
    bits = lax.bitcast_convert_type(x, width)
    return jnp.where(bits < scalar(0, bits), bits ^ scalar(np.iinfo(width).max, bits), bits)


def _lower_compare(op: Op[StablehloCompareOptions]) -> Function:
    """Except for the total order of floats, the comparison type follows from the dtype."""
    compare, dtype = _LAX[op.options.comparison_direction], op.inputs[0].dtype
    if dtype in FLOATS and op.options.compare_type is _TOTAL_ORDER:
        return lambda x, y: (compare(total_order(jnp.asarray(x)), total_order(jnp.asarray(y))),)
    if dtype in COMPLEX and compare not in (lax.eq, lax.ne):
        compare = _lexicographic(compare)
    return lambda x, y: (compare(jnp.asarray(x), jnp.asarray(y)),)


# ---- CONVERT


def _lower_convert(op: Op[NoOptions]) -> Function:
    dtype = op.outputs[0].dtype
    return lambda x: (convert(jnp.asarray(x), dtype),)


def convert(x: jax.Array, dtype: np.dtype) -> jax.Array:
    """Another dtype: floats truncate toward zero and saturate, NaN is 0; complex: the real part."""
    if x.dtype in COMPLEX and dtype not in COMPLEX:
        x = lax.real(x)
    if dtype == BOOL:
        return lax.ne(x, scalar(0, x))
    return lax.convert_element_type(x, dtype)


# ---- SELECT, CLAMP: the predicate and the bounds may be scalars


def _lower_select(_op: Op[NoOptions]) -> Function:
    def select(predicate: jax.Array, x: jax.Array, y: jax.Array) -> tuple[jax.Array]:
        return (lax.select(jnp.asarray(predicate), jnp.asarray(x), jnp.asarray(y)),)

    return select


def _lower_clamp(_op: Op[NoOptions]) -> Function:
    def chosen(low: jax.Array, x: jax.Array, high: jax.Array) -> jax.Array:
        bound = jnp.where((x < high) & (low < high), low, high)
        return jnp.where((x > low) & (x < high), x, bound)

    clamped = derived_as(lambda low, x, high: lax.min(lax.max(x, low), high), chosen)

    def clamp(low: jax.Array, x: jax.Array, high: jax.Array) -> tuple[jax.Array]:
        low, high = (jnp.broadcast_to(jnp.asarray(a), x.shape) for a in (low, high))
        return (clamped(low, jnp.asarray(x), high),)

    return clamp


# ---- CUSTOM_CALL


def _why_not_custom_call(op: Op[StablehloCustomCallOptions]) -> str:
    return f"the file does not contain the function of custom call {op.options.call_target_name!r}"


def _lower_custom_call(op: Op[StablehloCustomCallOptions]) -> Function:
    raise ValueError(f"custom call {op.options.call_target_name!r} cannot be lowered")


RULES = table(
    _binary("STABLEHLO_ADD", _add, ELEMENTS),
    _binary("STABLEHLO_SUBTRACT", lax.sub, NUMBERS | COMPLEX),
    _binary("STABLEHLO_MULTIPLY", _multiply, ELEMENTS),
    _binary("STABLEHLO_DIVIDE", lax.div, NUMBERS | COMPLEX),
    _binary("STABLEHLO_REMAINDER", lax.rem, NUMBERS),
    _binary("STABLEHLO_POWER", _power, NUMBERS | COMPLEX),
    _binary("STABLEHLO_MAXIMUM", lax.max, ELEMENTS),
    _binary("STABLEHLO_MINIMUM", lax.min, ELEMENTS),
    _binary("STABLEHLO_AND", lax.bitwise_and, INTEGERS | BOOLS),
    _binary("STABLEHLO_OR", lax.bitwise_or, INTEGERS | BOOLS),
    _binary("STABLEHLO_SHIFT_LEFT", lax.shift_left, INTEGERS),
    pointwise(
        "STABLEHLO_ABS",
        1,
        lambda _op: lax.abs,
        Operands(_SIGNED | _INEXACT, results=_SIGNED | FLOATS),
        why_not=_why_not_abs,
    ),
    _unary("STABLEHLO_NEGATE", lax.neg, NUMBERS | COMPLEX),
    _unary("STABLEHLO_COSINE", lax.cos),
    _unary("STABLEHLO_EXPONENTIAL", lax.exp),
    _unary("STABLEHLO_LOG", lax.log),
    _unary("STABLEHLO_LOGISTIC", lax.logistic),
    _unary("STABLEHLO_TANH", lax.tanh),
    _unary("STABLEHLO_RSQRT", lax.rsqrt),
    _unary("STABLEHLO_CBRT", lax.cbrt, FLOATS),
    _unary("STABLEHLO_FLOOR", lax.floor, FLOATS),
    typed_rule("STABLEHLO_COMPARE", [_ELEMENT, _SAME], _lower_compare, results=[BOOLS]),
    typed_rule("STABLEHLO_CONVERT", [_ELEMENT], _lower_convert, results=[ELEMENTS]),
    typed_rule("STABLEHLO_SELECT", [Input(BOOLS), MOVED, MOVED], _lower_select, results=[None]),
    typed_rule("STABLEHLO_CLAMP", [_ELEMENT, _SAME, _SAME], _lower_clamp),
    rule("STABLEHLO_CUSTOM_CALL", 1, _why_not_custom_call, _lower_custom_call, arity=0),
)
