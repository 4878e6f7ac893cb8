"""Arithmetic, comparisons, selections and conversions."""

from collections.abc import Callable
from typing import Any

import numpy as np

from jaxdelegate.conversion.emitter import BOOL, F32, I32, I64, Emitter
from jaxdelegate.conversion.graph import Complex, Value, distinct, in_parts, scalar_of, stored_dtype
from jaxdelegate.conversion.ranges import always, range_of
from jaxdelegate.conversion.table import Lower, Primitive
from jaxdelegate.op_lowering.options import GatherOptions

_LARGEST = float(np.finfo(np.float32).max)
_FLOATS = "float32"
_NUMBERS = "float32 and integers"
_OR = "STABLEHLO_AND, BITWISE_XOR"
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
    return node.inputs[0] if node is not None and node.op == "BROADCAST_TO" else v  # type: ignore[return-value]


def _op(op: str, dtype: Any = None) -> Callable[..., Value]:
    def lower(e: Emitter, *inputs: Value, **_: Any) -> Value:
        return e.compute(op, *aligned(e, *inputs), dtype=dtype)

    return lower


def _real_or_complex(op: str, parts: Lower) -> Lower:
    real = _op(op)

    def lower(e: Emitter, *inputs: Any, **_: Any) -> Any:
        if not any(isinstance(x, Complex) for x in inputs):
            return real(e, *inputs)
        return parts(e, *(as_complex(e, x) for x in inputs))

    return lower


def as_complex(e: Emitter, x: Any) -> Complex:
    x = in_parts(x)
    if isinstance(x, Complex):
        return x
    return Complex(e.cast(x, F32), e.broadcast(e.const(0, F32), x.shape))


def _add_parts(e: Emitter, a: Complex, b: Complex) -> Complex:
    return Complex(_op("ADD")(e, a.re, b.re), _op("ADD")(e, a.im, b.im))


def _sub_parts(e: Emitter, a: Complex, b: Complex) -> Complex:
    return Complex(_op("SUB")(e, a.re, b.re), _op("SUB")(e, a.im, b.im))


def _mul_parts(e: Emitter, a: Complex, b: Complex) -> Complex:
    mul, add, sub = _op("MUL"), _op("ADD"), _op("SUB")
    re = sub(e, mul(e, a.re, b.re), mul(e, a.im, b.im))
    return Complex(re, add(e, mul(e, a.re, b.im), mul(e, a.im, b.re)))


def _neg_parts(e: Emitter, a: Complex) -> Complex:
    return Complex(e.compute("NEG", a.re), e.compute("NEG", a.im))


def _abs(e: Emitter, x: Any) -> Value:
    if not isinstance(x, Complex):
        return x if x.dtype.kind in "ub" else e.compute("ABS", x)
    return e.compute("SQRT", e.compute("ADD", e.compute("SQUARE", x.re), e.compute("SQUARE", x.im)))


def _div(e: Emitter, a: Any, b: Any) -> Any:
    if isinstance(b, Complex):
        e.refuse("there is no complex division", "write it with the parts of its inputs")
    if isinstance(a, Complex):
        return Complex(_div(e, a.re, b), _div(e, a.im, b))
    if a.dtype.kind == "u" and a.dtype.itemsize <= 4:
        low, high = range_of(b)
        if low == high > 0 and high & (high - 1) == 0:  # jnp.searchsorted halves by it
            return _op("RIGHT_SHIFT")(e, a, e.const(high.bit_length() - 1, a.dtype))
    return _op("DIV")(e, a, b)


def _logical(op: str, bits: Lower) -> Lower:
    def lower(e: Emitter, *inputs: Value) -> Value:
        return _op(op)(e, *inputs) if inputs[0].dtype == BOOL else bits(e, *inputs)

    return lower


def _and_of_bits(e: Emitter, a: Value, b: Value) -> Value:
    shape = e.broadcast_shape(a.shape, b.shape)
    return e.op("STABLEHLO_AND", [e.broadcast(v, shape) for v in (a, b)], shape, a.dtype)


def _xor_of_bits(e: Emitter, a: Value, b: Value) -> Value:
    if a.dtype.itemsize > 4:
        e.refuse(f"BITWISE_XOR has no kernel for {a.dtype.name}", "convert its inputs to int32")
    return _op("BITWISE_XOR")(e, a, b)


def _or_of_bits(e: Emitter, a: Value, b: Value) -> Value:
    return _xor_of_bits(e, _xor_of_bits(e, a, b), _and_of_bits(e, a, b))


def _not(e: Emitter, x: Value) -> Value:
    if x.dtype == BOOL:
        return e.compute("LOGICAL_NOT", x)
    return e.compute("SUB", e.like(x, -1 if x.dtype.kind == "i" else np.iinfo(x.dtype).max), x)


def _extreme(op: str, logical: str) -> Lower:
    def lower(e: Emitter, a: Value, b: Value) -> Value:
        return _op(logical if a.dtype == BOOL else op)(e, a, b)

    return lower


def _constant_on_both_ends(e: Emitter, low: Value, x: Value, high: Value) -> Value:
    return _op("MINIMUM")(e, _op("MAXIMUM")(e, x, low), high)


def _select(e: Emitter, which: Value, *cases: Any) -> Any:
    if isinstance(cases[0], Complex):
        parts = ([getattr(c, part) for c in cases] for part in ("re", "im"))
        return Complex(*(_select(e, which, *p) for p in parts))
    known = scalar_of(which)
    if known is not None:
        return cases[int(known)]
    if which.dtype == BOOL:
        return choose(e, which, cases[1], cases[0])
    result = cases[-1]
    for i in reversed(range(len(cases) - 1)):
        result = choose(
            e, e.compute("EQUAL", which, e.like(which, i), dtype=BOOL), cases[i], result
        )
    return result


def choose(e: Emitter, which: Value, yes: Value, no: Value) -> Value:
    """SELECT_V2, whose inputs have one shape, or fewer dimensions."""
    which, yes, no = aligned(e, which, yes, no)
    shape = e.broadcast_shape(which.shape, yes.shape, no.shape)
    return e.op("SELECT_V2", [which, yes, no], shape, yes.dtype)


def _convert(e: Emitter, x: Any, *, new_dtype: Any, **_: Any) -> Any:
    if np.dtype(new_dtype).kind == "c":
        return as_complex(e, x)
    if isinstance(x, Complex):
        x = x.re
    return e.cast(x, stored_dtype(new_dtype))


def _integer_pow(e: Emitter, x: Value, *, y: int) -> Value:
    if y < 0:
        return e.compute("DIV", e.like(x, 1), _integer_pow(e, x, y=-y))
    if y == 0:
        return e.broadcast(e.like(x, 1), x.shape)
    if y == 1:
        return x
    half = _integer_pow(e, x, y=y // 2)
    square = e.compute("SQUARE" if x.dtype == F32 else "MUL", *([half] * (2 - (x.dtype == F32))))
    return e.compute("MUL", square, x) if y % 2 else square


def _pow(e: Emitter, x: Value, y: Value) -> Value:
    return _op("POW")(e, x, e.cast(y, x.dtype))


def _rem(e: Emitter, x: Value, y: Value) -> Value:
    """The remainder with the sign of x, by FLOOR_MOD, whose sign is that of y."""
    if x.dtype.kind in "ub":
        return _op("FLOOR_MOD")(e, x, y)
    size = e.compute("FLOOR_MOD", *aligned(e, _abs(e, x), _abs(e, y)))
    return _op("MUL")(e, e.compute("SIGN", x), size)


def _round(e: Emitter, x: Value, *, rounding_method: Any) -> Value:
    if int(rounding_method) == 1:  # to even
        return e.compute("ROUND", x)
    away = e.compute("FLOOR", e.compute("ADD", e.compute("ABS", x), e.like(x, 0.5)))
    return e.compute("MUL", e.compute("SIGN", x), away)


def _sign(e: Emitter, x: Value) -> Value:
    return e.cast(e.cast(x, BOOL), x.dtype) if x.dtype.kind == "u" else e.compute("SIGN", x)


def _is_finite(e: Emitter, x: Value) -> Value:
    return e.compute("LESS_EQUAL", e.compute("ABS", x), e.like(x, _LARGEST), dtype=BOOL)


def _atan2(e: Emitter, y: Value, x: Value) -> Value:
    return e.compute("ATAN2", y, x)


def _shift_left(e: Emitter, x: Value, by: Value) -> Value:
    bits = 8 * x.dtype.itemsize
    count, is_inside = _count(e, by, bits)
    table = np.left_shift(1, np.arange(bits, dtype=np.int64)).astype(I64 if bits == 64 else I32)
    if isinstance(count.data, np.ndarray):
        powers = e.const(table[count.data], x.dtype)
    else:
        options = GatherOptions(0, 0)
        powers = e.op("GATHER", [e.const(table), count], by.shape, table.dtype, options)
    shifted = _op("MUL")(e, x, e.cast(powers, x.dtype))
    return shifted if is_inside is None else choose(e, is_inside, shifted, e.like(x, 0))


def _shift_right(kind: str) -> Lower:
    """RIGHT_SHIFT in the type that fills with zeros (u), or with the sign (i)."""

    def lower(e: Emitter, x: Value, by: Value) -> Value:
        bits = 8 * x.dtype.itemsize
        if bits > 32:
            e.refuse(f"RIGHT_SHIFT has no kernel for {x.dtype.name}", "convert it to int32")
        dtype = np.dtype(f"{kind}{bits // 8}")
        count, is_inside = _count(e, by, bits)
        if kind == "i" and is_inside is not None:
            count = choose(e, is_inside, count, e.const(bits - 1, I32))
        result = _op("RIGHT_SHIFT")(e, e.cast(x, dtype), e.cast(count, dtype))
        if kind == "u" and is_inside is not None:
            result = choose(e, is_inside, result, e.like(result, 0))
        return e.cast(result, x.dtype)

    return lower


def _count(e: Emitter, by: Value, bits: int) -> tuple[Value, Value | None]:
    """A number of bits moved into its range, int32, and where it was inside; None: everywhere."""
    low, high = range_of(by)
    if low >= 0 and high < bits:
        return e.cast(by, I32), None
    if isinstance(by.data, np.ndarray):
        return e.const(by.data.clip(0, bits - 1), I32), e.const((by.data >= 0) & (by.data < bits))
    least = e.compute("MAXIMUM", by, e.like(by, 0))
    inside = e.compute("MINIMUM", least, e.like(by, bits - 1))
    return e.cast(inside, I32), e.compute("EQUAL", inside, by, dtype=BOOL)


def _bitcast(e: Emitter, x: Value, *, new_dtype: Any) -> Value:
    dtype = np.dtype(new_dtype)
    if x.dtype.itemsize != dtype.itemsize or dtype.itemsize != 4:
        e.refuse("only 32 bits are read as another type", "convert with astype")
    return x if x.dtype == dtype else e.op("BITCAST", [x], x.shape, dtype)


def _square(e: Emitter, x: Value) -> Value:
    return e.compute("SQUARE", x) if x.dtype == F32 else e.compute("MUL", x, x)


def _unary(name: str, op: str, condition: str = _FLOATS) -> Primitive:
    return Primitive(name, op, _op(op), condition)


def _same(_e: Emitter, *inputs: Any, **_: Any) -> Any:
    return inputs[0] if len(inputs) == 1 else list(inputs)


def _compared(name: str, op: str, condition: str = _NUMBERS) -> Primitive:
    def lower(e: Emitter, a: Value, b: Value) -> Value:
        known = always(op, a, b)
        if known is None:
            return _op(op, BOOL)(e, a, b)
        return e.broadcast(e.const(known, BOOL), e.broadcast_shape(a.shape, b.shape))

    return Primitive(name, op, lower, condition)


_IDENTITIES = (
    "copy", "copy_p", "stop_gradient", "name", "sharding_constraint", "optimization_barrier",
    "device_put", "pvary",
)  # fmt: skip
PRIMITIVES = (
    Primitive("add", "ADD", _real_or_complex("ADD", _add_parts), _NUMBERS),
    Primitive("add_any", "ADD", _real_or_complex("ADD", _add_parts), _NUMBERS),
    Primitive("sub", "SUB", _real_or_complex("SUB", _sub_parts), _NUMBERS),
    Primitive("mul", "MUL", _real_or_complex("MUL", _mul_parts), _NUMBERS),
    Primitive("neg", "NEG", _real_or_complex("NEG", _neg_parts), _NUMBERS),
    Primitive("div", "DIV", _div, "float32, integers of at most 32 bits"),
    Primitive("abs", "ABS", _abs, "float32, integers of at most 32 bits"),
    Primitive("sign", "SIGN", _sign, "float32, integers of at most 32 bits"),
    Primitive("max", "MAXIMUM", _extreme("MAXIMUM", "LOGICAL_OR"), _NUMBERS),
    Primitive("min", "MINIMUM", _extreme("MINIMUM", "LOGICAL_AND"), _NUMBERS),
    Primitive("clamp", "MAXIMUM, MINIMUM", _constant_on_both_ends, _NUMBERS),
    Primitive("pow", "POW", _pow, "float32, int32"),
    Primitive("integer_pow", "SQUARE, MUL, DIV", _integer_pow, _NUMBERS),
    Primitive("rem", "FLOOR_MOD, SIGN, ABS, MUL", _rem, "float32, integers of at most 32 bits"),
    Primitive("square", "SQUARE", _square, _NUMBERS),
    _unary("exp", "EXP"),
    _unary("log", "LOG"),
    _unary("sqrt", "SQRT"),
    _unary("rsqrt", "RSQRT"),
    _unary("sin", "SIN"),
    _unary("cos", "COS"),
    _unary("tanh", "TANH"),
    _unary("logistic", "LOGISTIC"),
    _unary("floor", "FLOOR"),
    _unary("ceil", "CEIL"),
    Primitive("round", "ROUND", _round, _FLOATS),
    Primitive("is_finite", "ABS, LESS_EQUAL", _is_finite, _FLOATS),
    Primitive("atan2", "ATAN2", _atan2, _FLOATS),
    _compared("eq", "EQUAL", "numbers and booleans"),
    _compared("ne", "NOT_EQUAL", "numbers and booleans"),
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
        _logical("LOGICAL_OR", _or_of_bits),
        _AT_MOST_32,
    ),
    Primitive("xor", "NOT_EQUAL, BITWISE_XOR", _logical("NOT_EQUAL", _xor_of_bits), _AT_MOST_32),
    Primitive("not", "LOGICAL_NOT, SUB", _not),
    Primitive("shift_left", "MUL, GATHER", _shift_left),
    Primitive("shift_right_arithmetic", "RIGHT_SHIFT", _shift_right("i"), _AT_MOST_32),
    Primitive("shift_right_logical", "RIGHT_SHIFT", _shift_right("u"), _AT_MOST_32),
    Primitive("bitcast_convert_type", "BITCAST", _bitcast, "32 bits to 32 bits"),
    Primitive("select_n", "SELECT_V2", _select),
    Primitive("convert_element_type", "CAST", _convert, "not to or from float64 or int4"),
    Primitive("complex", "none: two tensors", lambda _e, re, im: Complex(re, im)),
    Primitive("real", "none: a part", lambda _e, x, **_: x.re),
    Primitive("imag", "none: a part", lambda _e, x, **_: x.im),
    Primitive("conj", "NEG", lambda e, x, **_: Complex(x.re, e.compute("NEG", x.im))),
    *(Primitive(name, "none: the input itself", _same) for name in _IDENTITIES),
)
