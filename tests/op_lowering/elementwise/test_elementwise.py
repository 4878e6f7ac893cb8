from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from jaxdelegate.op_lowering.options import (
    ActivationFunctionType,
    AddOptions,
    DivOptions,
    MulOptions,
    Options,
    SubOptions,
)
from jaxdelegate.op_lowering.registry import RULES
from jaxdelegate.op_lowering.rule import LoweringContext, Op, ProgramTraits
from jaxdelegate.op_lowering.spec import TensorSpec
from jaxdelegate.passes.propagation import known_shapes
from jaxdelegate.reference.registry import KERNELS
from jaxdelegate.testing import Arg, Case, assert_close, const, f32, of, value
from tests.support.dtypes import NO_KERNEL
from tests.support.quantized import scaled

Act = ActivationFunctionType
NAN, INF = np.nan, np.inf
MAX = float(np.finfo(np.float32).max)
FLOAT_NAMES = ["float32", "float16", "bfloat16", "float64"]
INT_NAMES = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
DTYPES = {name: np.dtype(getattr(ml_dtypes, name, None) or name) for name in FLOAT_NAMES}
DTYPES |= {name: np.dtype(name) for name in [*INT_NAMES, "complex64", "complex128", "bool"]}
ONLY_OPTIMIZED = {"CEIL", "ROUND"}  # BUILTIN_REF lacks them


def _words(text: str) -> set[str]:
    return set(text.split())


# The unquantized dtypes of LiteRT's kernels; the lowerings take more.
IN_LITERT = {
    "ADD": _words("float32 float16 int16 int32 int64"),
    "SUB": _words("float32 int32 int64"),
    "MUL": _words("float32 float16 int16 int32 int64 uint32 complex64"),
    "DIV": _words("float32 int32"),
    "FLOOR_DIV": _words("float32 int8 int16 int32"),
    "FLOOR_MOD": _words("float32 int8 int16 int32 int64"),
    "MAXIMUM": _words("float32 float16 bfloat16 int8 int16 int32 int64 uint8"),
    "MINIMUM": _words("float32 float16 bfloat16 int8 int16 int32 int64 uint8"),
    "POW": _words("float32 int32"),
    "SQUARED_DIFFERENCE": _words("float32 int32"),
    "ADD_N": _words("float32 int32"),
    "ATAN2": _words("float32 float16 bfloat16 float64"),
    "BITWISE_XOR": _words("int8 int16 int32 uint8 uint16 uint32"),
    "RIGHT_SHIFT": _words("int8 int16 int32 uint8 uint16 uint32"),
    "ABS": _words("float32 int16 int32"),
    "NEG": _words("float32 float16 bfloat16 int8 int16 int32 int64"),
    "SIGN": _words("float32 float64 int32"),
    "SIN": _words("float32 float16"),
    "COS": _words("float32 float16"),
    "FLOOR": _words("float32 float16 bfloat16"),
    "ROUND": _words("float32 float16 bfloat16"),
    "ZEROS_LIKE": _words("float32 int32 int64"),
    "REAL": _words("complex64 complex128"),
    "IMAG": _words("complex64 complex128"),
    "COMPLEX_ABS": _words("complex64 complex128"),
}


def _case(
    name: str,
    label: str,
    inputs: Sequence[Arg | None],
    options: Options | None = None,
    outputs: Sequence[Any] | None = None,
    litert: str | None = None,
) -> Case:
    dtype = next(a.value.dtype for a in inputs if a is not None).name
    known = dtype in IN_LITERT.get(name, {"float32"})
    reason = litert if known else NO_KERNEL
    return Case(name, f"{label}-{dtype}", inputs, options, outputs, litert=reason)


def _numbers(name: str, *shape: int, seed: int = 0, low: float = -9, high: float = 9) -> Arg:
    """Values without zeros, for divisors."""
    x = of(DTYPES[name], *shape, low=low, high=high, seed=seed).value
    return value(np.where(x == 0, np.ones_like(x), x))


# ---- binary operators

REALS = (*FLOAT_NAMES, *INT_NAMES)
BINARY: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(["ADD", "SUB", "MUL", "DIV"], (*REALS, "complex64")),
    **dict.fromkeys(["FLOOR_DIV", "FLOOR_MOD", "MAXIMUM", "MINIMUM"], REALS),
    "SQUARED_DIFFERENCE": REALS,
    "ATAN2": tuple(FLOAT_NAMES),
    "BITWISE_XOR": (*INT_NAMES, "bool"),
    "RIGHT_SHIFT": tuple(INT_NAMES),
}
SAME_SHAPE = {"ATAN2"}
SHAPES = {
    "channels": ((2, 3, 4), (4,)),
    "outer": ((3, 1, 2), (1, 4, 2)),
    "scalar": ((), (2, 2)),
    "empty": ((0, 3), (1, 3)),
    "rank_5": ((1, 2, 1, 2, 3), (2, 1, 2, 1, 3)),
    "rank_8": ((2, 1, 2, 1, 2, 1, 2, 1), (1, 2, 1, 2, 1, 2, 1, 2)),
}
X = value([INF, -INF, NAN, 1, MAX, -1, 0, -7.5, 7.5, -0.0, 1e-30], np.float32)
Y = value([1, 1, 1, NAN, MAX, 3, -2, 2, -2, 5, 1e30], np.float32)


def _binary_cases() -> list[Case]:
    cases = [
        _case(name, "same", [_numbers(d, 3, 7), _numbers(d, 3, 7, seed=1)])
        for name, dtypes in BINARY.items()
        for d in dtypes
    ]
    for name, dtypes in BINARY.items():
        d = "float32" if "float32" in dtypes else "int32"
        shapes = {k: v for k, v in SHAPES.items() if name not in SAME_SHAPE}
        cases += [
            _case(name, label, [_numbers(d, *a), _numbers(d, *b, seed=1)])
            for label, (a, b) in shapes.items()
        ]
        if "float32" in dtypes:
            cases.append(_case(name, "edges", [X, Y]))
    return cases


def _integers(*values: int, dtype: str = "int32") -> Arg:
    return value(values, dtype)


LOW, HIGH = -(2**31), 2**31 - 1
INTEGER_CASES = [
    _case("DIV", "truncates", [_integers(7, -7, 7, -7, 6), _integers(2, 2, -2, -2, 3)]),
    _case("FLOOR_DIV", "floors", [_integers(7, -7, 7, -7, LOW), _integers(2, 2, -2, -2, 3)]),
    _case("FLOOR_MOD", "signs", [_integers(7, -7, 7, -7, LOW), _integers(3, 3, -3, -3, 7)]),
    _case("ADD", "wraps", [_integers(HIGH, LOW), _integers(1, -1)]),
    _case("MUL", "wraps", [_integers(2**30, 46341), _integers(4, 46341)]),
    _case("ABS", "wraps", [_integers(LOW, 5)]),
    _case("NEG", "wraps", [_integers(LOW, 5)]),
    *(
        _case("RIGHT_SHIFT", "far", [_integers(*x, dtype=d), _integers(*by, dtype=d)])
        for d, x, by in [
            ("int8", (127, -128, 100, -100), (1, 9, 40, -1)),
            ("uint8", (255, 255, 100, 1), (1, 9, 255, 0)),
            ("int32", (HIGH, LOW, 100, -100), (1, 40, 32, -1)),
        ]
    ),
]
FLOAT_CASES = [
    # An exact quotient must not be rounded down: XLA may multiply by a reciprocal.
    _case("FLOOR_DIV", "exact", [value(np.arange(-98, 99) * 49, "float32"), const(49, "float32")]),
    _case("FLOOR_DIV", "tenth", [value([6, -6, 0.3, 1e30], "float32"), const(0.1, "float32")]),
    _case("DIV", "by_zero", [value([1, -1, 0, INF], "float32"), value([0], "float32")]),
    _case("DIV", "reciprocal", [const(1, "float32"), f32(2, 3, low=0.1)]),
    _case("SIN", "turns", [value([1e3, -1e4, 3e5, 1e10], "float32")]),
    _case("COS", "turns", [value([1e3, -1e4, 3e5, 1e10], "float32")]),
    _case("MUL", "overflow_16", [value([300, -300, 2], "float16"), value([300], "float16")]),
    _case("ADD_N", "infinities", [value(v, "float32") for v in ([INF, 1], [1, 1], [-INF, 3])]),
]


# ---- fused activations

WITH_ACTIVATION: dict[str, Any] = {
    "ADD": AddOptions,
    "SUB": SubOptions,
    "MUL": MulOptions,
    "DIV": DivOptions,
}
ACTIVATION_CASES = [
    _case(
        name,
        activation.name,
        [value([-30, -5, -1, 0, 1, 5, 30], d), value([2, 2, 2, 2, 2, 2, 2], d)],
        options(fused_activation_function=activation),
    )
    for name, options in WITH_ACTIVATION.items()
    for activation in Act
    for d in ("float32", "int32", *(["int16"] if name == "ADD" else []))
] + [
    _case("MUL", a.name, [value([0, 3, 9], "uint32"), value([1], "uint32")], MulOptions(a))
    for a in (Act.RELU, Act.RELU6, Act.RELU_N1_TO_1)
]


# ---- POW, ADD_N

POWER_CASES = [
    _case("POW", "positive", [f32(4, 5, low=0.1), f32(4, 5, seed=1)]),
    _case("POW", "edges", [X, Y]),
    _case("POW", "rows", [f32(3, 1, low=0), f32(4, low=-3, high=3)]),
    _case("POW", "whole", [_integers(2, 3, -2, 0, 0, 7), _integers(3, 0, 3, 0, 2, 1)]),
    _case("POW", "constant_whole", [_integers(2, 3, -2, 46341), const([5], "int32")]),
    *(
        _case(
            "POW",
            f"{kind.__name__}_{exponent}",
            [value(base, "float32"), kind([exponent], "float32")],
        )
        for kind in (const, value)
        for exponent in (1, 2, 3, 7, 0.5, -1, 0, 2.000001, 0.99999, -2, 1e10)
        for base in ([1e30, -1e30, -INF, INF, NAN, 3, -3, 0, 1e-30, 0.7],)
    ),
    _case("POW", "one_to_one", [value([1e30], "float32"), value([2], "float32")]),
    _case("POW", "higher_rank", [f32(3), const([[[2]]], "float32")]),
]
SUM_CASES = [
    _case("ADD_N", "two", [f32(2, 3), f32(2, 3, seed=1)]),
    _case("ADD_N", "five", [f32(1, 2, 1, 3, 2, seed=i) for i in range(5)]),
    _case("ADD_N", "wraps", [_integers(HIGH, 1)] * 3),
    _case("ADD_N", "scalars", [value(1.5, "float32")] * 3),
]


# ---- unary operators

ROUNDING = value([0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 0.49999997, 8388609, -3e9, NAN, INF], np.float32)
UNARY: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(["SIN", "COS", "EXP", "FLOOR", "CEIL", "ROUND"], tuple(FLOAT_NAMES)),
    **dict.fromkeys(["LOG", "SQRT", "RSQRT"], tuple(FLOAT_NAMES)),
    **dict.fromkeys(["ABS", "SIGN", "SQUARE", "ZEROS_LIKE"], REALS),
    "NEG": (*REALS, "complex64"),
    **dict.fromkeys(["REAL", "IMAG", "COMPLEX_ABS"], ("complex64", "complex128")),
}
EDGES = value([NAN, INF, -INF, 0.0, 1e-30, -1e-30, 88, -88, 100, -100, 2, 0.25], np.float32)
PARTS = {"complex64": "float32", "complex128": "float64"}


def _unary_cases() -> list[Case]:
    cases = []
    for name, dtypes in UNARY.items():
        for d in dtypes:
            low = 0.01 if name in ("LOG", "SQRT", "RSQRT") else -9
            x = of(DTYPES[d], 2, 3, 5, low=low, high=9)
            y = PARTS[d] if d in PARTS and name != "NEG" else DTYPES[d]
            cases.append(_case(name, "some", [x], outputs=[y]))
        if "float32" in dtypes:
            cases.append(_case(name, "edges", [EDGES]))
        if name in ("SIN", "ROUND", "ZEROS_LIKE"):
            cases += [
                _case(name, "scalar", [value(0.7, np.float32)]),
                _case(name, "empty", [f32(2, 0)]),
                _case(name, "rank_8", [f32(1, 2, 1, 2, 1, 2, 1, 2)]),
            ]
    cases += [_case(name, "halves", [ROUNDING]) for name in ("FLOOR", "CEIL", "ROUND")]
    huge = value([3 + 4j, 1e30 + 1e30j, 1e-30 - 1e-30j, 0], np.complex64)
    ends = value([complex(a, b) for a in (NAN, INF, -1) for b in (NAN, -INF, 1)], np.complex64)
    cases.append(_case("COMPLEX_ABS", "infinite", [ends], outputs=["float32"]))
    return [*cases, _case("COMPLEX_ABS", "huge", [huge], outputs=["float32"])]


COMPILED_IN_PART = True
CASES = [
    *_binary_cases(),
    *INTEGER_CASES,
    *FLOAT_CASES,
    *ACTIVATION_CASES,
    *POWER_CASES,
    *SUM_CASES,
    *_unary_cases(),
    *(
        _case("BITCAST", f"to-{d}", [f32(2, 3)], outputs=[d])
        for d in ("int32", "uint32", "float32")
    ),
]


def run_litert(case: Case) -> list[np.ndarray]:
    return case.run_litert(optimized=case.name in ONLY_OPTIMIZED)


# ---- quotients and widths


@pytest.mark.litert
def test_rsqrt_rounds_as_litert() -> None:
    x = np.concatenate([np.random.default_rng(0).uniform(1e-6, 9, 5000), [0, INF, 2e-38, MAX]])
    case = Case("RSQRT", "to-the-bit", [value(x, np.float32)])
    np.testing.assert_array_equal(case.run_lowered(RULES["RSQRT"])[0], case.run_litert()[0])


@pytest.mark.parametrize(("keeps", "want"), [(False, MAX), (True, INF)])
def test_infinite_sums(keeps: bool, want: float) -> None:
    x = value([MAX, 1], "float32")
    case = _case("ADD", "large", [x, x])
    add, arrays = case.lowered_call(
        RULES["ADD"], LoweringContext(program=ProgramTraits(follows_xnnpack=keeps))
    )
    (found,) = add(*arrays)
    np.testing.assert_array_equal(found, [want, 2])


def test_a_quotient_by_a_constant_is_exact() -> None:
    x = (np.arange(1, 500, dtype=np.float32)[:, None] * np.arange(1, 60, dtype=np.float32)).copy()
    case = Case("DIV", "", [value(x), const(np.arange(1, 60), "float32")])
    assert np.array_equal(case.run_lowered(RULES["DIV"])[0], case.run_reference()[0])


@pytest.mark.parametrize(
    ("source", "shape", "target", "wanted"),
    [
        ("float32", (2, 3), "int16", (2, 3, 2)),
        ("int64", (), "uint8", (8,)),
        ("uint8", (3, 4), "float32", (3,)),
        ("int16", (2,), "uint32", ()),
        ("int32", (0, 2), "int64", (0,)),
        ("float16", (5,), "bfloat16", (5,)),
    ],
)
def test_bitcast_between_widths(
    source: str, shape: tuple[int, ...], target: str, wanted: tuple[int, ...]
) -> None:
    import jax

    x = of(np.dtype(source), *shape, low=-9, high=9).value
    target_dtype = DTYPES[target]
    inputs = (TensorSpec("x", x.shape, x.dtype),)
    outputs = (TensorSpec("y", wanted, target_dtype),)
    options = Case("BITCAST", "", [value(x)]).op_options
    assert known_shapes(KERNELS["BITCAST"], options, inputs, outputs) == (wanted,)
    want = KERNELS["BITCAST"](options, inputs, outputs, x)
    with jax.enable_x64(True):
        lowered = RULES["BITCAST"].lower(Op(LoweringContext(), options, inputs, outputs))
        got = [np.asarray(y) for y in jax.jit(lowered)(x)]
    assert_close([y.view(f"u{y.itemsize}") for y in got], [y.view(f"u{y.itemsize}") for y in want])


# ---- refusals

SCALE = scaled(0.1)


@pytest.mark.parametrize(
    ("case", "said"),
    [
        (
            Case("POW", "", [Arg(np.zeros(2, np.int8), quantization=SCALE)] * 2),
            "'in0' is quantized int8: LiteRT has no integer kernel of POW",
        ),
        (Case("ADD", "", [f32(2), _integers(1, 2)]), "'in0' is float32 and 'in1' int32"),
        (Case("SUB", "", [f32(2), f32(2)], version=6), "version 6 is newer"),
        (
            Case("MUL", "", [of("complex64", 2)] * 2, MulOptions(Act.RELU)),
            "complex results take no fused activation",
        ),
        (Case("DIV", "", [_integers(1, 2), const([1, 0], "int32")]), "'in1' holds a zero"),
        (Case("FLOOR_DIV", "", [f32(2), const([1, 0], "float32")]), "'in1' holds a zero"),
        (Case("FLOOR_MOD", "", [_integers(1), const([0], "int32")]), "'in1' holds a zero"),
        (Case("POW", "", [_integers(1), const([-1], "int32")]), "'in1' holds a negative"),
        (Case("ATAN2", "", [f32(2, 1), f32(2, 2)]), "shapes [2, 1] and [2, 2] differ"),
        (Case("ADD_N", "", [f32(2), f32(2), f32(1)]), "shapes [2] and [1] differ"),
        (Case("SIN", "", [of("complex64", 2)]), "'in0' is complex64, not one of"),
        (Case("BITCAST", "", [of("bool", 2)], outputs=["uint8"]), "'in0' is bool, not one of"),
        (Case("ZEROS_LIKE", "", [value([b"a"], object)]), "'in0' holds strings"),
    ],
    ids=lambda v: v.name if isinstance(v, Case) else "",
)
def test_refusals(case: Case, said: str) -> None:
    context = LoweringContext(op_version=case.version)
    reason = RULES[case.name].reason(case.op(context))
    assert reason is not None
    assert reason.startswith(said)


@pytest.mark.parametrize("shape", [(2, 3), ()])
def test_bitcast_refuses_broken_elements(shape: tuple[int, ...]) -> None:
    inputs = (TensorSpec("x", shape, np.dtype(np.uint8)),)
    outputs = (TensorSpec("y", shape[:-1], np.dtype(np.int32)),)
    options = Case("BITCAST", "", [f32(1)]).op_options
    reason = RULES["BITCAST"].reason(Op(LoweringContext(), options, inputs, outputs))
    assert reason == "the last dimension of 'x' is not the 4 of one int32"


@pytest.mark.parametrize("name", ["DIV", "FLOOR_DIV", "FLOOR_MOD"])
def test_the_reference_stops_on_an_integer_division_by_zero(name: str) -> None:
    with pytest.raises(ZeroDivisionError, match=name):
        Case(name, "", [_integers(1, 2), _integers(1, 0)]).run_reference()


def test_the_reference_stops_on_a_negative_integer_exponent() -> None:
    with pytest.raises(ValueError, match="negative exponent"):
        Case("POW", "", [_integers(1), _integers(-1)]).run_reference()


def test_arctangent_of_subnormal_numbers_is_a_number() -> None:
    """XLA:CPU may flush them to zero, whose arctangent is 0."""
    y, x = np.float32([[6e-39, 5e-41, -1e-44, 1e-30], [6e-39, 5e-41, 3e-39, 1e-30]])
    (got,) = Case("ATAN2", "", [value(y), value(x)]).run_lowered(RULES["ATAN2"])
    exact = np.arctan2(y, x)
    assert np.all((got == 0) | (np.abs(got - exact) < 1e-6))
    np.testing.assert_allclose(got[3], exact[3], rtol=1e-6)
