"""How to draw elementwise operators. Sources: schema.fbs, and the checks of kernels/*.cc."""

from collections.abc import Callable, Sequence

import numpy as np

from jaxdelegate.op_lowering.dtypes import TENSOR_TYPES
from jaxdelegate.op_lowering.options import (
    ActivationFunctionType,
    AddOptions,
    CastOptions,
    DivOptions,
    FakeQuantOptions,
    GeluOptions,
    LeakyReluOptions,
    MulOptions,
    Options,
    SubOptions,
)
from jaxdelegate.quant.params import Quantization
from tests.support.graph_drawing import KINDS, Drawing
from tests.support.quantized import scaled

Draw = Callable[[Drawing], object]

ACTIVATIONS = tuple(ActivationFunctionType(i) for i in range(4))  # those that most kernels take
F, QUANTIZED = ("float32",), ("qint8", "quint8", "qint16")
INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32")
ORDERED = ("float32", "int32", "int64", "qint8", "quint8")
ANY = ("float32", "int32", "int64", "int16", "bool", "qint8", "quint8", "qint16")

_UNARY: dict[str, Sequence[str]] = {
    "ABS": ("float32", "int16", "int32", "qint8", "qint16"),
    "NEG": ("float32", "int32", "int64"),
    "SIGN": ("float32", "float64", "int32"),
    **dict.fromkeys(("SQUARE", "SQRT", "SIN", "COS", "FLOOR", "CEIL", "ROUND"), F),
    **dict.fromkeys(("EXP", "LOG", "RSQRT"), ("float32", "qint8", "qint16")),
    "ZEROS_LIKE": ("float32", "int32", "int64"),
    "LOGICAL_NOT": ("bool",),
    **dict.fromkeys(("RELU", "RELU6"), (*F, *QUANTIZED)),
    **dict.fromkeys(("RELU_N1_TO_1", "RELU_0_TO_1"), ("float32", "qint8", "quint8")),
    "HARD_SWISH": ("float32", "qint8", "quint8"),
    "ELU": ("float32", "qint8"),
    **{f"STABLEHLO_{n}": ("float32", "int32") for n in ("ABS", "NEGATE")},
    **{
        f"STABLEHLO_{n}": F
        for n in ("COSINE", "EXPONENTIAL", "LOG", "LOGISTIC", "TANH", "RSQRT", "CBRT", "FLOOR")
    },
}
_BINARY: dict[str, Sequence[str]] = {
    "FLOOR_MOD": ("float32", "int8", "int16", "int32", "int64"),
    "FLOOR_DIV": ("float32", "int8", "int16", "int32"),
    "POW": ("float32", "int32"),
    "SQUARED_DIFFERENCE": ("float32", "int32", "qint8"),
    "BITWISE_XOR": INTEGERS,
    **dict.fromkeys(("LOGICAL_AND", "LOGICAL_OR"), ("bool",)),
    "EQUAL": (*ORDERED, "int16", "bool"),
    "NOT_EQUAL": (*ORDERED, "bool"),  # of int16 LiteRT's kernel writes nothing
    **dict.fromkeys(("LESS", "LESS_EQUAL", "GREATER", "GREATER_EQUAL"), (*ORDERED, "int16")),
}
_COMPARISONS = ("EQUAL", "NOT_EQUAL", "LESS", "LESS_EQUAL", "GREATER", "GREATER_EQUAL")
_DIVIDES = ("DIV", "FLOOR_DIV", "FLOOR_MOD", "STABLEHLO_DIVIDE", "STABLEHLO_REMAINDER")
_ARITHMETIC = ("float32", "int32", "int64", *QUANTIZED)


def fixed_scale(kind: str, signed: bool) -> Quantization | None:
    """The only scale of results in [-1, 1] (signed) or [0, 1] that the kernels accept."""
    return {
        "qint8": scaled(1 / 128) if signed else scaled(1 / 256, -128),
        "quint8": scaled(1 / 128, 128) if signed else scaled(1 / 256),
        "qint16": scaled(1 / 32768),
    }.get(kind)


def _unary(name: str, kinds: Sequence[str]) -> Draw:
    def draw(d: Drawing) -> None:
        x = d.operand(kinds)
        d.result(name, [x], d.shape_of(x), d.kind(x))

    return draw


def _squashing(name: str, signed: bool) -> Draw:
    def draw(d: Drawing) -> None:
        x = d.operand((*F, *QUANTIZED))
        d.result(name, [x], d.shape_of(x), d.kind(x), q=fixed_scale(d.kind(x), signed))

    return draw


def pair(d: Drawing, kinds: Sequence[str], *, alike: bool = False) -> tuple[int, int]:
    """Two operands of one kind that broadcast; `alike`: with the same scale."""
    a = d.operand(kinds)
    if d.chance(0.1):
        return a, a
    b = d.like(d.kind(a), d.broadcast(d.shape_of(a)), q=d.q_of(a) if alike else None)
    return (b, a) if d.chance(0.3) else (a, b)


def spread(d: Drawing, *operands: int) -> tuple[int, ...]:
    """The shape that operands broadcast to."""
    return tuple(np.broadcast_shapes(*(d.shape_of(i) for i in operands)))


def _divisor(d: Drawing, kind: str, shape: tuple[int, ...]) -> int:
    """Integers other than 0, which kernels refuse at run time."""
    dtype, _ = KINDS[kind]
    q, value = d.quantization(kind), d.values(shape, dtype)
    if dtype.kind in "iu":
        zero = 0 if q is None else int(q.zero_point[0])
        value = np.where(value == zero, dtype.type(zero - 1 if zero > 0 else zero + 1), value)
    return d.const(value, q=q) if value.size and d.chance(0.4) else d.fed(value, q=q)


def _binary(name: str, kinds: Sequence[str]) -> Draw:
    def draw(d: Drawing) -> None:
        if name in _DIVIDES:
            a = d.operand(kinds)
            b = _divisor(d, d.kind(a), d.broadcast(d.shape_of(a)))
        else:
            a, b = pair(d, kinds)
        if name == "POW" and d.kind(a) == "int32":
            b = d.fed(np.abs(d.values(d.shape_of(b), np.int32)) % 7)  # no negative powers
        d.result(name, [a, b], spread(d, a, b), "bool" if name in _COMPARISONS else d.kind(a))

    return draw


def _activated(name: str, kinds: Sequence[str], options: Callable[..., Options]) -> Draw:
    def draw(d: Drawing) -> None:
        act = d.one_of(ACTIVATIONS)
        if name == "DIV":
            a = d.operand(kinds)
            b = _divisor(d, d.kind(a), d.broadcast(d.shape_of(a)))
        else:
            a, b = pair(d, kinds)
        q = _quotient_scale(d, a, b) if name == "DIV" else None
        d.result(name, [a, b], spread(d, a, b), d.kind(a), options(act), q=q, version=2)

    return draw


def _quotient_scale(d: Drawing, a: int, b: int) -> Quantization | None:
    """A scale not below the quotient of the scales: larger factors are undefined in C++."""
    q_a, q_b = d.q_of(a), d.q_of(b)
    if q_a is None or q_b is None:
        return None
    return scaled(q_a.scale[0] / q_b.scale[0] * np.float32(d.rng.uniform(1, 4)), d.between(0, 255))


def _extremum(name: str) -> Draw:
    def draw(d: Drawing) -> None:
        a, b = pair(d, ("float32", "int16", "int32", "int64", *QUANTIZED), alike=True)
        d.same(name, [a, b], spread(d, a, b))

    return draw


def _add_n(d: Drawing) -> None:
    a = d.operand(("float32", "int32"))
    more = [d.like(d.kind(a), d.shape_of(a)) for _ in range(d.between(1, 3))]
    d.same("ADD_N", [a, *more], d.shape_of(a))


def _prelu(d: Drawing) -> None:
    x = d.operand(("float32", "qint8", "quint8"), 1)
    alpha = d.new(d.kind(x), d.broadcast(d.shape_of(x)), constant=0.9)
    d.result("PRELU", [x, alpha], d.shape_of(x), d.kind(x))


def _leaky_relu(d: Drawing) -> None:
    x = d.operand((*F, *QUANTIZED))
    options = LeakyReluOptions(float(np.float32(d.one_of((0.0, 0.1, 0.3, 1.0, 1.7, -0.5)))))
    d.result("LEAKY_RELU", [x], d.shape_of(x), d.kind(x), options, version=2)


def _gelu(d: Drawing) -> None:
    x = d.operand(("float32", "qint8", "quint8"))
    d.result("GELU", [x], d.shape_of(x), d.kind(x), GeluOptions(d.chance(0.5)))


def _select(d: Drawing) -> None:
    a = d.operand(ANY, 1)
    shape = d.shape_of(a)
    b = d.like(d.kind(a), shape, q=d.q_of(a))
    rows = d.chance(0.3)  # a vector chooses whole rows
    condition = d.like("bool", shape[:1] if rows else shape)
    d.same("SELECT", [condition, a, b], shape, of=1)


def _select_v2(d: Drawing) -> None:
    a, b = pair(d, ANY, alike=True)
    shape = spread(d, a, b)
    d.same("SELECT_V2", [d.like("bool", d.broadcast(shape)), a, b], shape, of=1)


def _shift(name: str, kinds: Sequence[str]) -> Draw:
    def draw(d: Drawing) -> None:
        a = d.operand(kinds)
        dtype = KINDS[d.kind(a)][0]
        by = d.rng.integers(0, 8 * dtype.itemsize, d.shape_of(a)).astype(dtype)
        d.same(name, [a, d.fed(by)], d.shape_of(a))

    return draw


_CASTS = ("float32", "int8", "uint8", "int16", "uint16", "int32", "int64", "bool")


def _cast(name: str) -> Draw:
    def draw(d: Drawing) -> None:
        x = d.operand((*_CASTS, "uint32", "float64", "float16"))
        kind = d.one_of((*_CASTS, "uint32", "float64"))
        types = TENSOR_TYPES[d.tensors[x].dtype], TENSOR_TYPES[KINDS[kind][0]]
        options = CastOptions(*types) if name == "CAST" else None
        d.result(name, [x], d.shape_of(x), kind, options)

    return draw


def _bitcast(d: Drawing) -> None:
    x = d.operand(("float32", "int32", "uint32", "int16", "uint16"))
    same = {4: ("float32", "int32", "uint32"), 2: ("int16", "uint16")}
    kind = d.one_of(same[d.tensors[x].dtype.itemsize])
    d.result("BITCAST", [x], d.shape_of(x), kind)


def _quantize(d: Drawing) -> None:
    x = d.operand((*F, *QUANTIZED))
    d.result("QUANTIZE", [x], d.shape_of(x), d.one_of(QUANTIZED), version=2)


def _dequantize(d: Drawing) -> None:
    x = d.operand((*QUANTIZED, "float16"))
    d.result("DEQUANTIZE", [x], d.shape_of(x), "float32", version=3)


def _fake_quant(d: Drawing) -> None:
    x = d.operand(F)
    low, high = sorted(d.rng.uniform(-4, 4, 2).astype(np.float32))
    options = FakeQuantOptions(
        float(min(low, 0)), float(max(high, 0.5)), d.between(2, 16), narrow_range=False
    )
    d.result("FAKE_QUANT", [x], d.shape_of(x), "float32", options)


def _same_shape(name: str, kinds: Sequence[str]) -> Draw:
    """StableHLO does not broadcast."""

    def draw(d: Drawing) -> None:
        a = d.operand(kinds)
        if name in _DIVIDES:
            b = _divisor(d, d.kind(a), d.shape_of(a))
        else:
            b = d.like(d.kind(a), d.shape_of(a))
        d.result(name, [a, b], d.shape_of(a), d.kind(a))

    return draw


def _clamp(d: Drawing) -> None:
    x = d.operand(("float32", "int32"))
    dtype = d.tensors[x].dtype
    ends = d.const(-1, dtype), d.const(2, dtype)
    d.same("STABLEHLO_CLAMP", [ends[0], x, ends[1]], d.shape_of(x), of=1)


OPERATORS: dict[str, Draw] = {
    **{name: _unary(name, kinds) for name, kinds in _UNARY.items()},
    **{name: _binary(name, kinds) for name, kinds in _BINARY.items()},
    "LOGISTIC": _squashing("LOGISTIC", signed=False),
    "TANH": _squashing("TANH", signed=True),
    "ADD": _activated("ADD", _ARITHMETIC, lambda a: AddOptions(a, pot_scale_int16=False)),
    "SUB": _activated("SUB", _ARITHMETIC, lambda a: SubOptions(a, pot_scale_int16=False)),
    "MUL": _activated("MUL", _ARITHMETIC, MulOptions),
    "DIV": _activated("DIV", ("float32", "int32", "quint8"), DivOptions),
    "MAXIMUM": _extremum("MAXIMUM"),
    "MINIMUM": _extremum("MINIMUM"),
    "ADD_N": _add_n,
    "PRELU": _prelu,
    "LEAKY_RELU": _leaky_relu,
    "GELU": _gelu,
    "SELECT": _select,
    "SELECT_V2": _select_v2,
    "RIGHT_SHIFT": _shift("RIGHT_SHIFT", INTEGERS),
    "STABLEHLO_SHIFT_LEFT": _shift("STABLEHLO_SHIFT_LEFT", ("int8", "int16", "int32")),
    "CAST": _cast("CAST"),
    "STABLEHLO_CONVERT": _cast("STABLEHLO_CONVERT"),
    "BITCAST": _bitcast,
    "QUANTIZE": _quantize,
    "DEQUANTIZE": _dequantize,
    "FAKE_QUANT": _fake_quant,
    **{
        f"STABLEHLO_{n}": _same_shape(f"STABLEHLO_{n}", ("float32", "int32"))
        for n in ("ADD", "SUBTRACT", "MULTIPLY", "MAXIMUM", "MINIMUM", "DIVIDE", "REMAINDER")
    },
    "ATAN2": _same_shape("ATAN2", ("float32", "float64")),
    "STABLEHLO_POWER": _same_shape("STABLEHLO_POWER", F),
    "STABLEHLO_AND": _same_shape("STABLEHLO_AND", ("bool", "int32")),
    "STABLEHLO_OR": _same_shape("STABLEHLO_OR", ("bool", "int32")),
    "STABLEHLO_CLAMP": _clamp,
}
