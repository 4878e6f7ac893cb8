"""Arithmetic, comparisons, selections and conversions."""

import functools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdelegate.conversion.emitter import BOOL, F32, I32, I64, Emitter
from jaxdelegate.conversion.graph import Complex, Value, distinct, scalar_of, stored_dtype
from jaxdelegate.conversion.interpreting import Lower, Primitive, by, each_part, write
from jaxdelegate.conversion.ranges import always, range_of

_LARGEST = float(np.finfo(np.float32).max)
_FLOATS = "float32"
_NUMBERS = "float32 and integers"
_ANY = "numbers and booleans"
_AT_MOST_32 = "booleans, integers of at most 32 bits"


def aligned(e: Emitter, *inputs: Value) -> list[Value]:
    """The inputs without repeated elements where another input has the shape."""
    shape = e.broadcast_shape(*(v.shape for v in inputs))
    small = [_unrepeated(v) for v in inputs]
    if e.broadcast_shape(*(v.shape for v in small)) == shape:
        return small
    for i, v in enumerate(inputs):  # one of them keeps the shape
        tried = [*small[:i], v, *small[i + 1 :]]
        if e.broadcast_shape(*(t.shape for t in tried)) == shape:
            return tried
    return list(inputs)


def _unrepeated(v: Value) -> Value:
    if isinstance(v.data, np.ndarray):
        if scalar_of(v) is not None:
            return Value((), v.dtype, v.name, np.asarray(scalar_of(v)))
        data = distinct(v.data)
        return Value(data.shape, v.dtype, v.name, data)
    node = v.node
    return node.inputs[0] if node is not None and node.op == "BROADCAST_TO" else v


def _op(op: str, dtype: Any = None) -> Callable[..., Value]:
    def lower(e: Emitter, *inputs: Value, **_: Any) -> Value:
        return e.compute(op, *aligned(e, *inputs), dtype=dtype)

    return lower


# ---- arithmetic


def _add(e: Emitter, a: Value, b: Value) -> Value:
    if a.dtype == np.uint32:
        return _of_one_shape(e, "STABLEHLO_ADD", a, b)
    return _op("ADD")(e, a, b)


def _of_one_shape(e: Emitter, op: str, a: Value, b: Value) -> Value:
    shape = e.broadcast_shape(a.shape, b.shape)
    return e.op(op, [e.broadcast(v, shape) for v in (a, b)], shape, a.dtype)


def _abs(e: Emitter, x: Value) -> Value:
    if x.dtype == I64:
        return e.compute("MAXIMUM", x, e.compute("NEG", x))
    return x if x.dtype.kind in "ub" else e.compute("ABS", x)


def _sign(e: Emitter, x: Value) -> Any:
    if x.dtype.kind == "u" or x.dtype == I64:
        return write(e, lambda x: jnp.clip(x, -1 if x.dtype == I64 else 0, 1), x)
    return e.compute("SIGN", x)


def _div(e: Emitter, a: Value, b: Value) -> Value:
    if a.dtype.kind == "u" and a.dtype.itemsize <= 4:
        low, high = range_of(b)
        if low == high > 0 and high & (high - 1) == 0:  # jnp.searchsorted halves by it
            return _op("RIGHT_SHIFT")(e, a, e.const(high.bit_length() - 1, a.dtype))
    return _op("DIV")(e, a, _divisor(e, b))


def _divisor(e: Emitter, x: Value) -> Any:
    """Integers without 0, at which kernels fail, also where a function does not use the result."""
    if x.dtype == F32 or range_of(x)[0] > 0 or range_of(x)[1] < 0:
        return x
    if isinstance(x.data, np.ndarray) and x.data.all():
        return x
    return write(e, lambda x: jnp.where(x == 0, 1, x), x)


def _rem(e: Emitter, x: Value, y: Value) -> Value:
    """The remainder with the sign of x, by FLOOR_MOD, whose sign is that of y."""
    modulo, y = _op("FLOOR_MOD"), _divisor(e, y)
    if x.dtype != F32 and range_of(x)[0] >= 0 and range_of(y)[0] >= 0:
        return modulo(e, x, y)
    return _op("MUL")(e, _sign(e, x), modulo(e, _abs(e, x), _abs(e, y)))


def _integer_pow(x: Any, *, y: int) -> Any:
    if y < 0:
        return 1 / _integer_pow(x, y=-y)
    if y < 2:
        return x if y else jnp.ones_like(x)
    square = lax.square(_integer_pow(x, y=y // 2))
    return square * x if y % 2 else square


def _pow(e: Emitter, x: Value, y: Value) -> Value:
    return _op("POW")(e, x, e.cast(y, x.dtype))


def _atan2(e: Emitter, y: Value, x: Value) -> Value:
    return e.compute("ATAN2", y, x)  # it repeats nothing


def _square(e: Emitter, x: Value) -> Value:
    return e.compute("SQUARE", x) if x.dtype == F32 else e.compute("MUL", x, x)


def _round(x: Any) -> Any:
    """Halves away from zero."""
    return jnp.sign(x) * jnp.floor(jnp.abs(x) + 0.5)


def _rounded(e: Emitter, x: Value, *, rounding_method: Any) -> Any:
    return e.compute("ROUND", x) if int(rounding_method) == 1 else write(e, _round, x)


def _extreme(op: str, logical: str) -> Lower:
    def lower(e: Emitter, a: Value, b: Value) -> Any:
        if a.dtype == BOOL:
            return _op(logical)(e, a, b)
        shape = e.broadcast_shape(a.shape, b.shape)
        for x, y in ((a, b), (b, a)):
            larger, smaller = (x, y) if op == "MAXIMUM" else (y, x)
            if x.shape == shape and always("GREATER_EQUAL", larger, smaller):
                return x
        return _op(op)(e, a, b)

    return lower


def _clamp(low: Any, x: Any, high: Any) -> Any:
    return jnp.minimum(jnp.maximum(x, low), high)


def _complex_sum(a: Complex, b: Complex) -> Complex:
    return Complex(a.re + b.re, a.im + b.im)


def _complex_product(a: Complex, b: Complex) -> Complex:
    return Complex(a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re)


def _complex_exp(x: Complex) -> Complex:
    size = jnp.exp(x.re)
    return Complex(size * jnp.cos(x.im), size * jnp.sin(x.im))


def _complex_power(e: Emitter, x: Complex, *, y: int) -> Any:
    if y < 1:
        e.refuse(f"it is not written for complex arrays to the power of {y}", "divide by a product")
    return write(e, lambda z: functools.reduce(_complex_product, [z] * y), x)


def _complex_quotient(a: Complex, b: Complex) -> Complex:
    square: Any = b.re * b.re + b.im * b.im
    return _complex_product(a, Complex(b.re / square, -b.im / square))


# ---- bits


def _logical(op: str, bits: Lower) -> Lower:
    def lower(e: Emitter, *inputs: Value) -> Any:
        return _op(op)(e, *inputs) if inputs[0].dtype == BOOL else bits(e, *inputs)

    return lower


def _and_of_bits(e: Emitter, a: Value, b: Value) -> Value:
    return _of_one_shape(e, "STABLEHLO_AND", a, b)


def _xor_of_bits(e: Emitter, a: Value, b: Value) -> Value:
    if a.dtype.itemsize > 4:
        e.refuse(f"BITWISE_XOR has no kernel for {a.dtype.name}", "convert its inputs to int32")
    return _op("BITWISE_XOR")(e, a, b)


def _not(x: Any) -> Any:
    return -1 - x if x.dtype.kind == "i" else np.iinfo(x.dtype).max - x


def _each_shift(x: Any) -> Any:
    """All right shifts of integers, in a last dimension."""
    shape = (*x.shape, 8 * x.dtype.itemsize)
    shifts = jnp.broadcast_to(jnp.arange(shape[-1], dtype=x.dtype), shape)
    return lax.shift_right_logical(jnp.broadcast_to(x[..., None], shape), shifts)


def _leading_zeros(x: Any) -> Any:
    return (_each_shift(x) == 0).sum(-1, dtype=x.dtype)


def _population_count(x: Any) -> Any:
    return (_each_shift(x) & 1).sum(-1, dtype=x.dtype)


def _shift_left(x: Any, by: Any) -> Any:
    bits = 8 * x.dtype.itemsize
    count = jnp.clip(by, 0, bits - 1)
    wide = np.left_shift(1, np.arange(bits, dtype=np.int64)).astype(I64 if bits == 64 else I32)
    powers = jnp.asarray(wide).at[count].get(mode="promise_in_bounds")
    return jnp.where((by >= 0) & (by < bits), x * powers.astype(x.dtype), 0)


def _shift_right(kind: str) -> Lower:
    """RIGHT_SHIFT in the type that fills with zeros (u), or with the sign (i)."""

    def lower(e: Emitter, x: Value, by: Value) -> Value:
        bits = 8 * x.dtype.itemsize
        if bits > 32:
            e.refuse(f"RIGHT_SHIFT has no kernel for {x.dtype.name}", "convert it to int32")
        dtype = np.dtype(f"{kind}{bits // 8}")
        count = write(e, lambda n: jnp.where((n >= 0) & (n < bits), n, bits - 1), by)
        result = _op("RIGHT_SHIFT")(e, e.cast(x, dtype), e.cast(count, dtype))
        if kind == "u":
            result = write(e, lambda y, n: jnp.where((n >= 0) & (n < bits), y, 0), result, by)
        return e.cast(result, x.dtype)

    return lower


def _bitcast(e: Emitter, x: Value, *, new_dtype: Any) -> Value:
    dtype = np.dtype(new_dtype)
    if x.dtype.itemsize != dtype.itemsize or dtype.itemsize != 4:
        e.refuse("only 32 bits are read as another type", "convert with astype")
    return x if x.dtype == dtype else e.op("BITCAST", [x], x.shape, dtype)


# ---- selections and conversions


def _select(e: Emitter, which: Value, *cases: Any) -> Any:
    known = scalar_of(which)
    if known is not None:
        return cases[int(known)]
    if which.dtype == BOOL:
        return choose(e, which, cases[1], cases[0])
    result = cases[-1]
    for i in reversed(range(len(cases) - 1)):
        is_one = e.compute("EQUAL", which, e.like(which, i), dtype=BOOL)
        result = choose(e, is_one, cases[i], result)
    return result


def choose(e: Emitter, which: Value, yes: Value, no: Value) -> Value:
    """SELECT_V2, whose inputs have one shape, or fewer dimensions."""
    which, yes, no = aligned(e, which, yes, no)
    shape = e.broadcast_shape(which.shape, yes.shape, no.shape)
    return e.op("SELECT_V2", [which, yes, no], shape, yes.dtype)


def _convert(e: Emitter, x: Value, *, new_dtype: Any, **_: Any) -> Any:
    if np.dtype(new_dtype).kind == "c":
        return _conjugate_of_real(e, e.cast(x, F32))
    return e.cast(x, stored_dtype(new_dtype))


def _convert_complex(e: Emitter, x: Complex, *, new_dtype: Any, **_: Any) -> Any:
    return x if np.dtype(new_dtype).kind == "c" else e.cast(x.re, stored_dtype(new_dtype))


def _conjugate_of_real(e: Emitter, x: Value, **_: Any) -> Complex:
    return Complex(x, e.broadcast(e.const(0, F32), x.shape))


def _same(_e: Emitter, *inputs: Any, **_: Any) -> Any:
    return inputs[0] if len(inputs) == 1 else list(inputs)


def _compared(name: str, op: str, condition: str = _NUMBERS) -> Primitive:
    def lower(e: Emitter, a: Value, b: Value) -> Any:
        known = always(op, a, b)
        if known is None:
            return _op(op, BOOL)(e, a, b)
        return e.broadcast(e.const(known, BOOL), e.broadcast_shape(a.shape, b.shape))

    return Primitive(name, op, lower, condition)


def _in_parts(function: Callable[..., Any]) -> Lower:
    """A primitive of complex arrays, whatever its parameters, as a function of their parts."""
    return lambda e, *inputs, **_: write(e, function, *inputs)


_ADD = ("ADD", _add, _NUMBERS, _in_parts(_complex_sum))
_NEG = _in_parts(lambda x: Complex(-x.re, -x.im))
_SUB = _in_parts(lambda a, b: Complex(a.re - b.re, a.im - b.im))
_UNARY = "log sqrt rsqrt sin cos tanh logistic floor ceil"
_IDENTITIES = (
    "copy", "copy_p", "stop_gradient", "name", "sharding_constraint", "optimization_barrier",
    "device_put", "pvary",
)  # fmt: skip
PRIMITIVES = (
    Primitive("add", *_ADD),
    Primitive("add_any", *_ADD),
    Primitive("sub", "SUB", _op("SUB"), _NUMBERS, _SUB),
    Primitive("mul", "MUL", _op("MUL"), _NUMBERS, _in_parts(_complex_product)),
    Primitive("neg", "NEG", _op("NEG"), _NUMBERS, _NEG),
    Primitive(
        "div", "DIV", _div, "float32, integers of at most 32 bits", _in_parts(_complex_quotient)
    ),
    Primitive("abs", "ABS", _abs, _NUMBERS, _in_parts(lambda x: jnp.sqrt(x.re**2 + x.im**2))),
    Primitive("sign", "SIGN", _sign, _NUMBERS),
    Primitive("max", "MAXIMUM", _extreme("MAXIMUM", "LOGICAL_OR"), _NUMBERS),
    Primitive("min", "MINIMUM", _extreme("MINIMUM", "LOGICAL_AND"), _NUMBERS),
    Primitive("clamp", "MAXIMUM, MINIMUM", by(_clamp), _NUMBERS),
    Primitive("pow", "POW", _pow, "float32, int32"),
    Primitive("integer_pow", "SQUARE, MUL, DIV", by(_integer_pow), _NUMBERS, _complex_power),
    Primitive("rem", "FLOOR_MOD, SIGN, ABS, MUL", _rem, _NUMBERS),
    Primitive("square", "SQUARE", _square, _NUMBERS, _in_parts(lambda x: _complex_product(x, x))),
    *(Primitive(name, name.upper(), _op(name.upper()), _FLOATS) for name in _UNARY.split()),
    Primitive("exp", "EXP", _op("EXP"), _FLOATS, _in_parts(_complex_exp)),
    Primitive("round", "ROUND", _rounded, _FLOATS),
    Primitive("is_finite", "ABS, LESS_EQUAL", by(lambda x: jnp.abs(x) <= _LARGEST), _FLOATS),
    Primitive("atan2", "ATAN2", _atan2, _FLOATS),
    _compared("eq", "EQUAL", _ANY),
    _compared("ne", "NOT_EQUAL", _ANY),
    _compared("eq_to", "EQUAL", "no NaN"),
    _compared("lt_to", "LESS", "no NaN"),
    _compared("le_to", "LESS_EQUAL", "no NaN"),
    _compared("lt", "LESS"),
    _compared("le", "LESS_EQUAL"),
    _compared("gt", "GREATER"),
    _compared("ge", "GREATER_EQUAL"),
    Primitive("and", "LOGICAL_AND, STABLEHLO_AND", _logical("LOGICAL_AND", _and_of_bits)),
    Primitive(
        "or",
        "LOGICAL_OR, STABLEHLO_AND, BITWISE_XOR",
        _logical("LOGICAL_OR", by(lambda a, b: a ^ b ^ (a & b))),
        _AT_MOST_32,
    ),
    Primitive("xor", "NOT_EQUAL, BITWISE_XOR", _logical("NOT_EQUAL", _xor_of_bits), _AT_MOST_32),
    Primitive("not", "LOGICAL_NOT, SUB", _logical("LOGICAL_NOT", by(_not))),
    Primitive("shift_left", "MUL, GATHER", by(_shift_left)),
    Primitive("shift_right_arithmetic", "RIGHT_SHIFT", _shift_right("i"), _AT_MOST_32),
    Primitive("shift_right_logical", "RIGHT_SHIFT", _shift_right("u"), _AT_MOST_32),
    Primitive("clz", "RIGHT_SHIFT, EQUAL, SUM", by(_leading_zeros), _AT_MOST_32),
    Primitive("population_count", "RIGHT_SHIFT, SUM", by(_population_count), _AT_MOST_32),
    Primitive("bitcast_convert_type", "BITCAST", _bitcast, "32 bits to 32 bits"),
    Primitive("select_n", "SELECT_V2", _select, "", each_part(_select)),
    Primitive(
        "convert_element_type", "CAST", _convert, "not to or from float64 or int4", _convert_complex
    ),
    Primitive("complex", "none: two tensors", lambda _e, re, im: Complex(re, im)),
    Primitive("real", "none: a part", _same, "", lambda _, x, **__: x.re),
    Primitive("imag", "none: a part", _same, "", lambda _, x, **__: x.im),
    Primitive("conj", "NEG", _conjugate_of_real, "", _in_parts(lambda x: Complex(x.re, -x.im))),
    *(Primitive(name, "none: the input itself", _same, "", _same) for name in _IDENTITIES),
)
