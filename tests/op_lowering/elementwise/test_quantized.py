import dataclasses
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from jaxdelegate.op_lowering.options import ActivationFunctionType as Act
from jaxdelegate.op_lowering.options import AddOptions, DivOptions, MulOptions, Options, SubOptions
from jaxdelegate.op_lowering.registry import RULES
from jaxdelegate.quant.params import Blockwise, Quantization
from jaxdelegate.testing import Arg, Case, assert_close
from tests.support.quantized import ends, scaled

Scale = tuple[float, int]  # and zero point

DTYPES = ["int8", "uint8", "int16"]
ACTIVATIONS = [Act.NONE, Act.RELU, Act.RELU6, Act.RELU_N1_TO_1]
COMPARISONS = ["EQUAL", "NOT_EQUAL", "LESS", "LESS_EQUAL", "GREATER", "GREATER_EQUAL"]
OPTIONS: dict[str, Callable[[Act], Options]] = {
    "ADD": lambda activation: AddOptions(activation, pot_scale_int16=False),
    "SUB": lambda activation: SubOptions(activation, pot_scale_int16=False),
    "MUL": MulOptions,
    "DIV": DivOptions,
}
VERSIONS = {"EQUAL": 4, "NOT_EQUAL": 4}  # others: 2
SHAPES = [
    ((64,), (64,)),
    ((4, 8, 3), (8, 3)),
    ((5, 1, 7), (4, 1)),
    ((2, 3, 4, 5), (1,)),
    ((2, 1, 3, 1, 2), (1, 4, 1, 2, 1)),
    ((), ()),
    ((0, 3), (3,)),
]
UNDEFINED = "C++ leaves the shift undefined in builds of double rounding"
NO_KERNEL = "LiteRT has no kernel"
EMPTY = "LiteRT does not run on empty tensors"


def stored(dtype: str, shape: tuple[int, ...], pair: Scale) -> Arg:
    """Random integers, including the bounds of the range."""
    rng = np.random.default_rng(len(shape) + 7 * int(np.prod(shape)))
    low, high = ends(dtype)
    x = np.asarray(rng.integers(low, high + 1, shape))
    x.reshape(-1)[:2] = [low, high][: x.size]
    return Arg(np.asarray(x, dtype), quantization=scaled(*pair))


def binary(
    name: str,
    dtype: str,
    of_a: Scale,
    of_b: Scale,
    of_y: Scale = (0.1, 0),
    shapes: Any = SHAPES[0],
    **details: Any,
) -> Case:
    label = f"{dtype}-{details.pop('label', '')}"
    a, b = (stored(dtype, shape, pair) for shape, pair in zip(shapes, (of_a, of_b), strict=True))
    if name == "DIV":
        b = without_zeros(b)
    options = details.pop("options", None)
    if options is None and name in OPTIONS:
        options = OPTIONS[name](details.pop("activation", Act.NONE))
    compares = name in COMPARISONS
    return Case(
        name,
        label,
        [a, b],
        options,
        outputs=["bool" if compares else dtype],
        output_quantization=[None if compares else scaled(*of_y)],
        version=VERSIONS.get(name, 2),
        **details,
    )


def without_zeros(b: Arg) -> Arg:
    """A divisor of up to 7 steps; the quotients of larger ones are undefined in C++."""
    assert b.quantization is not None
    zero, (low, high) = int(b.quantization.zero_point[0]), ends(b.value.dtype.name)
    steps = b.value.astype(np.int64) % 15 - 7
    steps = np.where(steps == 0, 5, steps)
    q = np.where((zero + steps < low) | (zero + steps > high), zero - steps, zero + steps)
    return dataclasses.replace(b, value=q.astype(b.value.dtype))


def symmetric(name: str, dtype: str) -> bool:
    return dtype == "int16" and name not in ("DIV", *COMPARISONS)


def points(name: str, dtype: str) -> list[tuple[int, int, int]]:
    """Zero points of the inputs and the output: in the middle, and at the bounds of the range."""
    low, high = ends(dtype)
    if symmetric(name, dtype):
        return [(0, 0, 0)]
    return [(low + 130, low + 120, low + 100), (low, high, low), (high, low, high)]


def some_points(name: str, dtype: str, i: int) -> list[tuple[int, int, int]]:
    """Every second item, for the i-th scale."""
    all_points = points(name, dtype)
    return all_points[i % len(all_points) :: 2]


# Scales of both inputs and the output: similar, far apart, factors above 1 and far below.
SCALES = {
    "ADD": [(0.1, 0.1, 0.1), (0.1, 3e-4, 0.02), (0.003, 0.5, 0.7), (0.1, 0.2, 90.0)],
    "SUB": [(0.1, 0.1, 0.1), (0.1, 3e-4, 0.02), (0.003, 0.5, 0.7), (0.1, 0.2, 90.0)],
    "MUL": [(0.1, 0.1, 0.05), (0.1, 3e-4, 1e-6), (0.003, 0.5, 0.7), (7.0, 9.0, 0.5)],
    "DIV": [(0.1, 0.01, 1.0), (0.1, 0.003, 3.1)],
    "SQUARED_DIFFERENCE": [(0.1, 0.1, 0.05), (0.1, 3e-4, 0.9), (0.003, 0.05, 0.001)],
    "MAXIMUM": [(0.1, 0.1, 0.1)],
    "MINIMUM": [(0.1, 0.1, 0.1)],
    **{name: [(0.1, 0.1, 1), (0.1, 0.05, 1), (3e-5, 0.9, 1)] for name in COMPARISONS},
}


def arithmetic_cases() -> list[Case]:
    return [
        binary(
            name,
            dtype,
            (s[0], z[0]),
            (s[1], z[1]),
            (s[2], z[2]),
            label=f"{s}-{z}",
            litert=NO_KERNEL if (name, dtype) == ("SQUARED_DIFFERENCE", "int16") else None,
        )
        for name, scales in SCALES.items()
        for dtype in DTYPES
        if (name, dtype) != ("SQUARED_DIFFERENCE", "uint8")
        for i, s in enumerate(scales)
        for z in some_points(name, dtype, i)
    ]


def shape_cases() -> list[Case]:
    return [
        binary(
            name,
            dtype,
            (0.1, 0),
            (0.07, 0),
            (0.3, 0),
            shapes,
            label=f"{shapes[0]}-{shapes[1]}",
            litert=EMPTY if 0 in shapes[0] else None,
        )
        for name in ("ADD", "MUL", "DIV", "LESS", "MAXIMUM")
        for dtype in ("int8", "int16")
        for shapes in SHAPES
    ]


def activation_cases() -> list[Case]:
    return [
        binary(
            name,
            dtype,
            (0.1, 0),
            (0.02, 0),
            (0.05, 0),
            activation=activation,
            label=activation.name,
        )
        for name in ("ADD", "SUB", "MUL", "DIV")
        for dtype in DTYPES
        for activation in ACTIVATIONS
    ]


def power_of_two_cases() -> list[Case]:
    """int16 by shifts; LiteRT's kernel of ADD does not broadcast in this case."""
    return [
        binary(
            name,
            "int16",
            (2.0**a, 0),
            (2.0**b, 0),
            (2.0**y, 0),
            shapes,
            options=make(activation, pot_scale_int16=True),
            label=f"pot-{a}-{b}-{y}-{activation.name}-{shapes[0]}",
            litert="LiteRT stops" if name == "ADD" and shapes[0] != shapes[1] else None,
        )
        for name, make in (("ADD", AddOptions), ("SUB", SubOptions))
        for a, b, y in [(-10, -10, -10), (-12, -10, -10), (-10, -13, -10), (-10, -30, -10)]
        for activation in (Act.NONE, Act.RELU6)
        for shapes in SHAPES[:2]
    ] + [
        binary(
            "ADD",
            "int16",
            (2.0**-10, 0),
            (1e-3, 0),
            (2.0**-10, 0),
            options=AddOptions(pot_scale_int16=True),
            label="pot-but-for-one",
        )
    ]


def product_cases() -> list[Case]:
    """MUL of int16 with an 8-bit result, which ignores the scales."""
    return [
        dataclasses.replace(
            binary(
                "MUL",
                "int16",
                (2.0**-15, 0),
                (2.0**-15, 0),
                activation=activation,
                label=f"{target}-{zero}-{activation.name}",
            ),
            outputs=[target],
            output_quantization=[scaled(2.0**-7, zero)],
        )
        for target, zero in (("int8", 0), ("int8", -100), ("uint8", 128), ("uint8", 250))
        for activation in (Act.NONE, Act.RELU)
    ]


def defined_here_cases() -> list[Case]:
    """Where LiteRT's build has undefined shifts, or fails; real arithmetic gives the result."""
    wide = {"litert": UNDEFINED, "label": "scale above 1"}
    return [
        *(
            binary(name, dtype, (1.0, 3), (2.7, 0), **wide)
            for name in COMPARISONS
            for dtype in DTYPES
        ),
        *(binary("SUB", dtype, (1.0, 0), (0.5, 0), (1e-9, 0), **wide) for dtype in DTYPES),
        *(
            binary("DIV", dtype, (0.1, 0), (9.0, 0), (0.3, 0), litert=UNDEFINED, label="tiny")
            for dtype in DTYPES
        ),
        *(
            binary(name, dtype, (0.0, 0), (0.1, 0), (0.3, 0), litert="LiteRT aborts", label="0")
            for name in ("ADD", "SUB", "MUL", "SQUARED_DIFFERENCE", "LESS")
            for dtype in ("int8", "int16")
        ),
    ]


COMPILED_IN_PART = True
CASES = [
    *arithmetic_cases(),
    *shape_cases(),
    *activation_cases(),
    *power_of_two_cases(),
    *product_cases(),
    *defined_here_cases(),
]


# ---- random scales


def random_scale(rng: np.random.Generator, name: str, dtype: str, low: float, high: float) -> Scale:
    zero = 0 if symmetric(name, dtype) else int(rng.integers(*ends(dtype), endpoint=True))
    return float(np.exp2(rng.uniform(low, high))), zero


def random_binary(rng: np.random.Generator, name: str, dtype: str) -> Case:
    a, b = (random_scale(rng, name, dtype, -14, -1) for _ in range(2))
    y = random_scale(rng, name, dtype, -9, 4)
    if name == "DIV":  # quotients of half a step or more: factors of 8 to 16
        y = (a[0] / b[0] / rng.uniform(8, 16), y[1])
    shapes = SHAPES[int(rng.integers(5))]
    activation = ACTIVATIONS[int(rng.integers(4))]
    return (
        binary(name, dtype, a, b, y, shapes, activation=activation)
        if name in OPTIONS
        else (binary(name, dtype, a, b, y, shapes))
    )


@pytest.mark.litert
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", SCALES)
def test_random_scales_match_litert(name: str, dtype: str, rng: np.random.Generator) -> None:
    if name == "SQUARED_DIFFERENCE" and dtype != "int8":
        return
    for _ in range(10):
        case = random_binary(rng, name, dtype)
        case.check(case.run_reference(), case.run_litert())


# ---- against reals


def reals(case: Case) -> list[np.ndarray]:
    """The inputs' reals, float64."""
    return [
        (a.value - a.quantization.zero_point[0]) * a.quantization.scale[0].astype(np.float64)
        for a in case.inputs
        if a is not None and a.quantization is not None
    ]


def error_in_steps(case: Case, exact: np.ndarray) -> float:
    """The difference of the reference from the real result, in the output's steps."""
    assert case.output_quantization is not None
    y = case.output_quantization[0]
    assert y is not None
    low, high = ends(np.dtype((case.outputs or [None])[0]).name)
    wanted = np.clip(exact / y.scale[0] + y.zero_point[0], low, high)
    return float(np.abs(case.run_reference()[0] - wanted).max())


@pytest.mark.parametrize("dtype", DTYPES)
def test_quotients_are_right_where_litert_is_undefined(dtype: str) -> None:
    for divisor in (0.02, 0.4, 9.0):
        case = binary("DIV", dtype, (0.1, 0), (divisor, 0), (0.3, 0))
        a, b = reals(case)
        assert error_in_steps(case, a / b) <= 0.51


@pytest.mark.parametrize("dtype", DTYPES)
def test_an_input_of_scale_0_is_0(dtype: str) -> None:
    case = binary("SUB", dtype, (0.0, 0), (0.1, 0), (0.3, 0))
    _, b = reals(case)
    assert error_in_steps(case, -b) <= 0.5001


@pytest.mark.parametrize("dtype", DTYPES)
def test_differences_saturate_where_litert_is_undefined(dtype: str) -> None:
    case = binary("SUB", dtype, (0.1, 0), (0.1, 0), (1e-9, 0))
    a, b = reals(case)
    assert error_in_steps(case, a - b) == 0


def test_squared_differences_of_int16() -> None:
    for s in SCALES["SQUARED_DIFFERENCE"]:
        case = binary("SQUARED_DIFFERENCE", "int16", *((v, 0) for v in s))
        a, b = reals(case)
        assert error_in_steps(case, (a - b) ** 2) <= 1.6


@pytest.mark.parametrize("name", COMPARISONS)
def test_comparisons_of_scales_above_1(name: str) -> None:
    compare = getattr(
        operator,
        {"GREATER": "gt", "LESS": "lt", "EQUAL": "eq", "NOT_EQUAL": "ne"}.get(
            name, name[0].lower() + "e"
        ),
    )
    for dtype in ("int8", "uint8"):
        case = binary(name, dtype, (1.0, 3), (3.0, 0), shapes=((40, 1), (60,)))
        assert_close(case.run_reference(), [compare(*reals(case))])


# ---- refusals


def requantized(case: Case, position: int, quantization: Quantization | None) -> Case:
    """The case with another quantization of an input."""
    inputs = list(case.inputs)
    first = inputs[position]
    assert first is not None
    inputs[position] = dataclasses.replace(first, quantization=quantization)
    return dataclasses.replace(case, inputs=inputs)


SUM = binary("ADD", "int8", (0.1, 0), (0.1, 0))
CHANNELS = Quantization(np.full(64, 0.1, np.float32), np.zeros(64, np.int64))
BLOCKS = Quantization(np.float32([]), np.int64([]), blockwise=Blockwise(0, -1, 2))
DIVIDED = binary("DIV", "int8", (0.1, 0), (0.1, 3))
ZERO = Arg(np.full(64, 3, np.int8), is_const=True, quantization=scaled(0.1, 3))
INT16_SUM = binary("ADD", "int16", (0.1, 0), (0.1, 0))
REFUSED = {
    "'in0' is int16 without a scale": requantized(INT16_SUM, 0, None),
    "'in1' is int8 without a scale": requantized(SUM, 1, None),
    "'out0' is int8 without a scale": dataclasses.replace(SUM, output_quantization=[None]),
    "'in0' has 64 scales; the kernel takes one scale": requantized(SUM, 0, CHANNELS),
    "'in0' has blockwise scales; the kernel takes one scale": requantized(SUM, 0, BLOCKS),
    "the scale of 'out0' is 0.0": binary("ADD", "int8", (0.1, 0), (0.1, 0), (0.0, 0)),
    "ADD has no arithmetic for these scales: all are 0": binary("ADD", "int8", (0.0, 0), (0.0, 0)),
    "the scale of 'in1' is inf": requantized(SUM, 1, scaled(np.inf, 0)),
    "the zero point of 'in0' is 128, not of int8": requantized(SUM, 0, scaled(0.1, 128)),
    "the zero point of int16 'in0' is 1": binary("ADD", "int16", (0.1, 1), (0.1, 0)),
    "ADD has no arithmetic for these scales: a multiplier in (0, 1)": binary(
        "ADD", "int8", (0.1, 0), (0.1, 0), (1e-9, 0)
    ),
    "ADD has no arithmetic for these scales: scales are 2**-8, 2**-9 -> 2**-10": binary(
        "ADD",
        "int16",
        (2.0**-8, 0),
        (2.0**-9, 0),
        (2.0**-10, 0),
        options=AddOptions(pot_scale_int16=True),
    ),
    "MUL has no arithmetic for these scales: 6.0 is": binary(
        "MUL", "int8", (1e-3, 0), (1e-3, 0), (1e-12, 0), activation=Act.RELU6
    ),
    "MUL has no arithmetic for these scales: a multiplier must be finite": binary(
        "MUL", "int8", (1e38, 0), (1e38, 0)
    ),
    "DIV has no arithmetic for these scales: 9.9999997": binary(
        "DIV", "int16", (1.0, 0), (1e-3, 0), (1e-9, 0)
    ),
    "SQUARED_DIFFERENCE has no arithmetic for these scales": binary(
        "SQUARED_DIFFERENCE", "int8", (1.0, 0), (1.0, 0), (1e-9, 0)
    ),
    "EQUAL has no arithmetic for these scales: 300.0 of 'in0'": binary(
        "EQUAL", "int16", (300.0, 0), (1.0, 0)
    ),
    "'in1' holds a zero": dataclasses.replace(DIVIDED, inputs=[DIVIDED.inputs[0], ZERO]),
    "LiteRT has no integer kernel of SQUARED_DIFFERENCE from uint8, uint8 to uint8": binary(
        "SQUARED_DIFFERENCE", "uint8", (0.1, 0), (0.1, 0)
    ),
    "LiteRT has no integer kernel of MUL from int8, int8 to int16": dataclasses.replace(
        binary("MUL", "int8", (0.1, 0), (0.1, 0)), outputs=["int16"]
    ),
    "'in0' is quantized int8: LiteRT has no integer kernel of POW": dataclasses.replace(
        binary("POW", "int8", (0.1, 0), (0.1, 0)), version=1
    ),
}


@pytest.mark.parametrize("said", REFUSED)
def test_refuses(said: str) -> None:
    case = REFUSED[said]
    assert case.reason(RULES[case.name]).startswith(said)


@pytest.mark.parametrize("name", ["ADD", "MAXIMUM", "LESS", "EQUAL", "MUL"])
def test_scales_of_int32_do_not_count(name: str) -> None:
    plain = binary(name, "int32", (0.1, 0), (0.2, 0))
    bare = [None if a is None else dataclasses.replace(a, quantization=None) for a in plain.inputs]
    want = dataclasses.replace(plain, inputs=bare, output_quantization=None).run_reference()
    assert_close(plain.run_reference(), want)
    assert_close(plain.run_lowered(RULES[name]), want)


@pytest.mark.parametrize("name", ["LESS", "GREATER_EQUAL"])
def test_orders_of_int16_compare_what_is_stored(name: str) -> None:
    case = binary(name, "int16", (0.1, 0), (0.2, 0))
    a, b = case.arrays()
    assert a is not None
    assert b is not None
    want = [a < b if name == "LESS" else a >= b]
    assert_close(case.run_reference(), want)
    assert_close(case.run_lowered(RULES[name]), want)


STOPPED = {
    "is 3, not 0": binary("ADD", "int16", (0.1, 3), (0.1, 0)),
    "without a scale": requantized(SUM, 1, None),
    "multiplier in (0, 1)": binary("ADD", "int8", (0.1, 0), (0.1, 0), (1e-9, 0)),
    "is too small": binary("DIV", "int16", (1.0, 0), (1e-3, 0), (1e-9, 0)),
    "no room in int32": binary("LESS", "int8", (1e9, 0), (0.1, 0)),
}


def test_the_reference_stops_at_a_division_by_zero() -> None:
    with pytest.raises(ZeroDivisionError):
        dataclasses.replace(DIVIDED, inputs=[DIVIDED.inputs[0], ZERO]).run_reference()


def test_the_reference_has_no_kernel_for_other_dtypes() -> None:
    with pytest.raises(TypeError, match="quantized uint8"):
        binary("SQUARED_DIFFERENCE", "uint8", (0.1, 0), (0.1, 0)).run_reference()
