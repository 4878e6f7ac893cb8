import dataclasses
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from jaxdelegate.op_lowering.dtypes import FLOATS
from jaxdelegate.op_lowering.options import (
    NoOptions,
    Options,
    StablehloCompareOptions,
    StablehloComparisonDirection,
    StablehloComparisonType,
    StablehloCustomCallOptions,
)
from jaxdelegate.op_lowering.registry import RULES
from jaxdelegate.testing import Arg, Case, assert_close, const, f32, of, value
from tests.support.quantized import scaled

NO_KERNEL = "LiteRT has no kernel for this operator"
NO_DTYPE = "LiteRT has no kernel for this dtype"
Dir = StablehloComparisonDirection
Kind = StablehloComparisonType

INTEGERS = [np.dtype(f"{sign}int{8 << i}") for sign in ("", "u") for i in range(4)]
SIGNED = [d for d in INTEGERS if d.kind == "i"]
FLOAT = sorted(FLOATS, key=str)
HALF = [np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)]
COMPLEX = [np.dtype(np.complex64), np.dtype(np.complex128)]
BOOL = [np.dtype(bool)]
SHAPES = [(), (0,), (3, 4), (1, 2, 1, 3, 1, 2)]

BINARY = {
    "STABLEHLO_ADD": [*FLOAT, *INTEGERS, *COMPLEX, *BOOL],
    "STABLEHLO_SUBTRACT": [*FLOAT, *INTEGERS, *COMPLEX],
    "STABLEHLO_MULTIPLY": [*FLOAT, *INTEGERS, *COMPLEX, *BOOL],
    "STABLEHLO_DIVIDE": [*FLOAT, *INTEGERS, *COMPLEX],
    "STABLEHLO_REMAINDER": [*FLOAT, *INTEGERS],
    "STABLEHLO_MAXIMUM": [*FLOAT, *INTEGERS, *COMPLEX, *BOOL],
    "STABLEHLO_MINIMUM": [*FLOAT, *INTEGERS, *COMPLEX, *BOOL],
    "STABLEHLO_AND": [*INTEGERS, *BOOL],
    "STABLEHLO_OR": [*INTEGERS, *BOOL],
    "STABLEHLO_SHIFT_LEFT": INTEGERS,
    "STABLEHLO_POWER": [*INTEGERS],
}
UNARY = {
    "STABLEHLO_ABS": [*FLOAT, *SIGNED],
    "STABLEHLO_NEGATE": [*FLOAT, *INTEGERS, *COMPLEX],
    "STABLEHLO_COSINE": [*FLOAT, *COMPLEX],
    "STABLEHLO_EXPONENTIAL": [*FLOAT, *COMPLEX],
    "STABLEHLO_LOG": COMPLEX,
    "STABLEHLO_LOGISTIC": [*FLOAT, *COMPLEX],
    "STABLEHLO_TANH": [*FLOAT, *COMPLEX],
    "STABLEHLO_RSQRT": COMPLEX,
    "STABLEHLO_CBRT": FLOAT,
    "STABLEHLO_FLOOR": FLOAT,
}
# LiteRT's operators and dtypes (kernels/stablehlo_elementwise.h, stablehlo_shift_left.cc).
_STOCK = [*(np.dtype(t) for t in (np.float32, np.float64, np.float16, bool)), *INTEGERS]
STOCK = {
    **{f"STABLEHLO_{name}": _STOCK for name in ("ADD", "MULTIPLY", "MAXIMUM", "MINIMUM")},
    "STABLEHLO_AND": [np.dtype(bool), *INTEGERS],
    "STABLEHLO_SHIFT_LEFT": [np.dtype(t) for t in (np.int8, np.int16, np.int32)],
}


def stock(name: str, dtype: np.dtype, shape: tuple[int, ...] = (3, 4)) -> str | None:
    if name not in STOCK:
        return NO_KERNEL
    if dtype not in STOCK[name]:
        return NO_DTYPE
    return None if np.prod(shape) else "LiteRT refuses empty tensors"


def near(dtype: np.dtype, *shape: int, seed: int = 0) -> Arg:
    """Values on both sides of zero; integers include zero."""
    return of(dtype, *shape, low=-5, high=7, seed=seed)


def cast(x: np.ndarray, dtype: Any) -> Arg:
    with np.errstate(all="ignore"):
        return value(x.astype(dtype))


def case(name: str, label: str, *inputs: Arg, **details: Any) -> Case:
    return Case(name, label, list(inputs), **details)


def binary_cases() -> list[Case]:
    return [
        case(
            name,
            f"{dtype.name}-{shape}",
            near(dtype, *shape),
            near(dtype, *shape, seed=1),
            litert=stock(name, dtype, shape),
        )
        for name, dtypes in BINARY.items()
        for dtype in dtypes
        for shape in (SHAPES if dtype == dtypes[0] else SHAPES[2:3])
    ]


def unary_cases() -> list[Case]:
    return [
        case(name, f"{dtype.name}-{shape}", near(dtype, *shape), litert=NO_KERNEL)
        for name, dtypes in UNARY.items()
        for dtype in dtypes
        for shape in (SHAPES if dtype == dtypes[0] else SHAPES[2:3])
    ]


def positive_cases() -> list[Case]:
    """Functions of positive numbers."""
    return [
        *(
            case(name, f"{dtype.name}", of(dtype, 3, 4, low=0.1, high=9), litert=NO_KERNEL)
            for name in ("STABLEHLO_LOG", "STABLEHLO_RSQRT")
            for dtype in FLOAT
        ),
        *(
            case(
                "STABLEHLO_POWER",
                f"{dtype.name}",
                of(dtype, 3, 4, low=0.1, high=4),
                of(dtype, 3, 4, low=-2, high=3, seed=1),
                litert=NO_KERNEL,
            )
            for dtype in [*FLOAT, *COMPLEX]
        ),
    ]


ODD = np.float32([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.5, -2.5, 3e38, 2e-38])
PAIRS = np.meshgrid(ODD, ODD)
LIMITS = {d: np.array([np.iinfo(d).min, np.iinfo(d).max, 0, 1, 3], d) for d in INTEGERS}
CONVERTED = [np.dtype(t) for t in (np.float32, np.int8, bool)]


def limit_cases() -> list[Case]:
    floats = [
        case(name, f"odd-{dtype.name}", *(cast(a, dtype) for a in PAIRS), litert=NO_KERNEL)
        for name in ("STABLEHLO_ADD", "STABLEHLO_DIVIDE", "STABLEHLO_MAXIMUM", "STABLEHLO_MINIMUM")
        for dtype in (np.dtype(np.float32), *HALF)
    ]
    functions = (
        "ABS",
        "NEGATE",
        "EXPONENTIAL",
        "LOG",
        "LOGISTIC",
        "TANH",
        "RSQRT",
        "FLOOR",
        "CBRT",
    )
    alone = [case(f"STABLEHLO_{name}", "odd", value(ODD), litert=NO_KERNEL) for name in functions]
    integers = [
        case(
            f"STABLEHLO_{name}",
            f"limits-{dtype.name}",
            *map(value, np.meshgrid(LIMITS[dtype], LIMITS[dtype])),
            litert=NO_KERNEL,
        )
        for name in ("ADD", "MULTIPLY", "DIVIDE", "REMAINDER", "POWER", "SHIFT_LEFT")
        for dtype in INTEGERS
    ]
    return [*floats, *alone, *integers]


def compare(label: str, direction: Dir, x: Arg, y: Arg, kind: Kind | None = None) -> Case:
    kind = Kind.STABLEHLO_COMPARISON_TYPE_NOTYPE if kind is None else kind
    options = StablehloCompareOptions(direction, kind)
    name = f"{direction.name.rpartition('_')[2]}-{label}"
    return Case("STABLEHLO_COMPARE", name, [x, y], options, outputs=[bool], litert=NO_KERNEL)


NANS = np.array([0x7FC00000, 0xFFC00000, 0x7FC00001, 0xFFC00001], np.uint32).view(np.float32)
ORDERED = np.concatenate([NANS, ODD])
LT = Dir.STABLEHLO_COMPARISON_DIRECTION_LT
TOTAL = Kind.STABLEHLO_COMPARISON_TYPE_FLOAT_TOTAL_ORDER


def compare_cases() -> list[Case]:
    complexes = np.array([1 + 2j, 1 - 2j, 2 + 0j, -1 + 9j, complex(np.nan, 1)], np.complex64)
    return [
        c
        for direction in Dir
        for c in [
            compare("empty", direction, f32(0, 3), f32(0, 3)),
            compare("scalar", direction, f32(), f32(seed=1)),
            compare("bool", direction, of(bool, 9), of(bool, 9, seed=1)),
            compare("odd", direction, *map(value, PAIRS)),
            compare("complex", direction, *map(value, np.meshgrid(complexes, complexes))),
            *(
                compare(
                    f"total-{d.name}",
                    direction,
                    *(cast(a, d) for a in np.meshgrid(ORDERED, ORDERED)),
                    TOTAL,
                )
                for d in FLOAT
            ),
            *(
                compare(
                    f"{kind.name}-int32", direction, of(np.int32, 9), of(np.int32, 9, seed=1), kind
                )
                for kind in Kind
            ),
        ]
    ]


def convert(label: str, x: Arg, dtype: Any) -> Case:
    label = f"{x.value.dtype.name}-{np.dtype(dtype).name}-{label}"
    return Case("STABLEHLO_CONVERT", label, [x], NoOptions(), outputs=[dtype], litert=NO_KERNEL)


WIDE = np.float32([0.5, -0.5, 1.99, -1.99, 127, 128, 255, 256, -129, 3e9, -3e9, 1e20, -1e20])


def convert_cases() -> list[Case]:
    everything = [*FLOAT, *INTEGERS, *COMPLEX, *BOOL]
    return [
        *(convert("near", near(d, 3, 4), to) for d in everything for to in CONVERTED),
        *(convert("to", near(np.dtype(np.float32), 3, 4), to) for to in everything),
        *(
            convert("odd", cast(np.concatenate([ODD, WIDE]), d), to)
            for d in (np.float32, np.float16)
            for to in [*INTEGERS, *BOOL]
        ),
        *(convert("limits", value(x), to) for x in LIMITS.values() for to in (np.int8, np.float32)),
    ]


def select_cases() -> list[Case]:
    dtypes = [*FLOAT, *INTEGERS, *COMPLEX, *BOOL]
    return [
        case(
            "STABLEHLO_SELECT",
            f"{d.name}-{predicate.value.tolist()}",
            predicate,
            near(d, 3, 4),
            near(d, 3, 4, seed=1),
            outputs=[d],
            litert=NO_KERNEL,
        )
        for d in dtypes
        for predicate in ((of(bool, 3, 4), value(True)) if d == dtypes[0] else (of(bool, 3, 4),))
    ]


SCALE = scaled(0.5, 3)


def clamp_cases() -> list[Case]:
    dtypes = [*FLOAT, *INTEGERS]
    return [
        *(
            case(
                "STABLEHLO_CLAMP",
                f"{d.name}-{rank}",
                value(np.full((3, 4)[:rank], 1), d),
                near(d, 3, 4),
                value(np.full((3, 4)[:rank], 3), d),
                outputs=[d],
                litert=NO_KERNEL,
            )
            for d in dtypes
            for rank in (0, 2)
        ),
        case(
            "STABLEHLO_CLAMP",
            "odd",
            value(PAIRS[0]),
            value(PAIRS[1]),
            value(np.roll(PAIRS[0], 1, 1)),
            litert=NO_KERNEL,
        ),
    ]


COMPILED_IN_PART = True
CASES = [
    *binary_cases(),
    *unary_cases(),
    *positive_cases(),
    *limit_cases(),
    *compare_cases(),
    *convert_cases(),
    *clamp_cases(),
    *select_cases(),
]


def run_litert(case: Case) -> list[np.ndarray]:
    # Its reference resolver does not have STABLEHLO_AND and STABLEHLO_SHIFT_LEFT.
    return case.run_litert(optimized=True)


PI = np.pi
# The specification's examples, and consequences of its text.
EXAMPLES: list[tuple[str, list[Any], Any]] = [
    ("ABS", [np.int32([-2, 0, 2])], np.int32([2, 0, 2])),
    ("ABS", [np.int8([-128])], np.int8([-128])),
    ("ADD", [np.int32([[1, 2], [3, 4]]), np.int32([[5, 6], [7, 8]])], np.int32([[6, 8], [10, 12]])),
    ("ADD", [np.array([True, True, False])] * 2, np.array([True, True, False])),
    ("AND", [np.int32([1, 2, 6]), np.int32([5, 6, 3])], np.int32([1, 2, 2])),
    ("CBRT", [np.float32([0, 1, 8, -27])], np.float32([0, 1, 2, -3])),
    (
        "CLAMP",
        [np.int32([5, 10, 15]), np.int32([3, 13, 23]), np.int32([10, 15, 20])],
        np.int32([5, 13, 20]),
    ),
    ("CLAMP", [np.float32(5), np.float32([3, np.nan]), np.float32(4)], np.float32([4, np.nan])),
    ("COSINE", [np.float32([0, PI / 2, PI])], np.float32([1, 0, -1])),
    ("DIVIDE", [np.float32([17, -17]), np.float32([4, 4])], np.float32([4.25, -4.25])),
    ("DIVIDE", [np.int32([17, -17, 17, -17]), np.int32([3, 3, -3, -3])], np.int32([5, -5, -5, 5])),
    ("EXPONENTIAL", [np.float32([0, 1])], np.float32([1, np.e])),
    ("FLOOR", [np.float32([-0.8, -0.2, 0.2, 0.8, 2])], np.float32([-1, -1, 0, 0, 2])),
    ("LOG", [np.float32([1, np.e, 0, -1])], np.float32([0, 1, -np.inf, np.nan])),
    ("LOGISTIC", [np.float32([0, 1, 2])], np.float32([0.5, 0.73105858, 0.88079708])),
    (
        "MAXIMUM",
        [np.float32([1, np.nan, 7]), np.float32([5, 6, np.nan])],
        np.float32([5, np.nan, np.nan]),
    ),
    (
        "MINIMUM",
        [np.float32([1, np.nan, 7]), np.float32([5, 6, np.nan])],
        np.float32([1, np.nan, np.nan]),
    ),
    (
        "MAXIMUM",
        [np.complex64([1 + 2j, 1 + 9j]), np.complex64([1 + 3j, 2])],
        np.complex64([1 + 3j, 2]),
    ),
    ("MULTIPLY", [np.int8([100, -3]), np.int8([2, 5])], np.int8([-56, -15])),
    ("NEGATE", [np.int32([0, -2])], np.int32([0, 2])),
    ("NEGATE", [np.uint8([1])], np.uint8([255])),
    ("OR", [np.int32([1, 2]), np.int32([5, 6])], np.int32([5, 6])),
    (
        "POWER",
        [np.float32([-2, -36, 5, 3, 10000]), np.float32([2, 1.1, 2, -1, 10])],
        np.float32([4, np.nan, 25, 1 / 3, np.inf]),
    ),
    (
        "POWER",
        [np.int32([2, -3, 7, 1, -1, -1, 2, 0]), np.int32([10, 3, 0, -5, -5, -4, -1, 0])],
        np.int32([1024, -27, 1, 1, -1, 1, 0, 1]),
    ),
    ("POWER", [np.uint8([3, 2]), np.uint8([7, 255])], np.uint8([3**7 % 256, 0])),
    (
        "REMAINDER",
        [np.int32([17, -17, 17, -17]), np.int32([3, 3, -3, -3])],
        np.int32([2, -2, 2, -2]),
    ),
    ("REMAINDER", [np.float32([17.5, -17.5]), np.float32([3, 3])], np.float32([2.5, -2.5])),
    ("RSQRT", [np.float32([1, 4, 25])], np.float32([1, 0.5, 0.2])),
    ("SELECT", [np.array([True, False]), np.int32([1, 2]), np.int32([5, 6])], np.int32([1, 6])),
    ("SELECT", [np.array(False), np.int32([1, 2]), np.int32([5, 6])], np.int32([5, 6])),
    (
        "SHIFT_LEFT",
        [np.int32([-1, 0, 1, 1, 1]), np.int32([1, 2, 3, 32, -1])],
        np.int32([-2, 0, 8, 0, 0]),
    ),
    ("SUBTRACT", [np.uint8([5, 1]), np.uint8([3, 2])], np.uint8([2, 255])),
    ("TANH", [np.float32([-1, 0, 1])], np.float32([-0.76159416, 0, 0.76159416])),
]


@pytest.mark.parametrize(("name", "inputs", "want"), EXAMPLES)
def test_examples(name: str, inputs: list[Any], want: np.ndarray) -> None:
    one = case(f"STABLEHLO_{name}", "", *map(value, inputs), outputs=[want.dtype])
    assert_close(one.run_reference(), [want])
    assert_close(one.run_lowered(RULES[one.name]), [want])


COMPARED = np.float32([[-np.nan, -np.inf, -0.0, 0.0, 1, np.inf]])


def test_comparison_of_numbers_and_in_total_order() -> None:
    pair = value(np.repeat(COMPARED, 6, 0)), value(np.repeat(COMPARED.T, 6, 1))  # column < row
    number = np.array(
        [
            [0, 0, 0, 0, 0, 0],
            [0, 0, 0, 0, 0, 0],
            [0, 1, 0, 0, 0, 0],
            [0, 1, 0, 0, 0, 0],
            [0, 1, 1, 1, 0, 0],
            [0, 1, 1, 1, 1, 0],
        ],
        bool,
    )
    for kind, want in ((None, number), (TOTAL, np.tril(np.ones((6, 6), bool), -1))):
        one = compare("", LT, *pair, kind)
        assert_close(one.run_reference(), [want])
        assert_close(one.run_lowered(RULES[one.name]), [want])


def test_conversion_truncates_and_saturates() -> None:
    x = value(np.float32([np.nan, np.inf, -np.inf, 300, -300, 1.9, -1.9]))
    for dtype, want in (
        (np.int8, [0, 127, -128, 127, -128, 1, -1]),
        (np.uint8, [0, 255, 0, 255, 0, 1, 0]),
    ):
        one = convert("", x, dtype)
        assert_close(one.run_reference(), [np.array(want, dtype)])
        assert_close(one.run_lowered(RULES[one.name]), [np.array(want, dtype)])


def test_absolute_value_of_complex_numbers_is_real() -> None:
    one = case("STABLEHLO_ABS", "", value(np.complex64([3 + 4j])), outputs=[np.float32])
    assert_close(one.run_reference(), [np.float32([5])])
    assert_close(one.run_lowered(RULES[one.name]), [np.float32([5])])


# ---- refusals


def reason(case: Case) -> str:
    return case.reason(RULES[case.name], shape=case.inputs[0].value.shape)  # type: ignore[union-attr]


X, Y, Z = f32(2, 3), f32(3), of(np.int32, 2, 3)
QUANTIZED = Arg(of(np.int8, 2, 3).value, quantization=SCALE)
REFUSED = {
    "'in1' int32": case("STABLEHLO_MULTIPLY", "", X, Z),
    "'in0' is quantized int8": case("STABLEHLO_TANH", "", QUANTIZED),
    "'in0' is int32, not one of": case("STABLEHLO_EXPONENTIAL", "", Z),
    "'in0' is float32, not one of": case("STABLEHLO_AND", "", X, X),
    "'out0' is float32, not one of bool": case("STABLEHLO_COMPARE", "", X, X),
    "'in0' is complex64, not one of": case("STABLEHLO_CBRT", "", of(np.complex64, 2)),
    "'in0' is float32, not one of bool": case("STABLEHLO_SELECT", "", X, X, X),
    "in1' and 'in2' are quantized differently": case(
        "STABLEHLO_SELECT", "", of(bool, 2, 3), QUANTIZED, of(np.int8, 2, 3)
    ),
    "holds strings": case("STABLEHLO_CONVERT", "", value(np.array([b"a"], object))),
}


def test_selects_quantized_values_of_one_scale() -> None:
    one = case("STABLEHLO_SELECT", "", of(bool, 2, 3), QUANTIZED, QUANTIZED)
    assert reason(dataclasses.replace(one, outputs=[np.int8], output_quantization=[SCALE])) == ""


STOPPED = {
    ("quantized int8", TypeError): case("STABLEHLO_TANH", "", QUANTIZED),
    "does not broadcast [[2, 3], [3]]": case("STABLEHLO_ADD", "", X, Y),
    "does not broadcast [[2, 1], [2, 3]]": case("STABLEHLO_ADD", "", X, f32(2, 1)),
    "does not broadcast [[2, 3], [3, 2]]": case("STABLEHLO_CLAMP", "", f32(3, 2), X, X),
}


def test_custom_calls_are_refused_with_the_same_sentence_everywhere() -> None:
    options: Options = StablehloCustomCallOptions(call_target_name="my_kernel")
    one = Case("STABLEHLO_CUSTOM_CALL", "", [X, const(Y)], options)
    said = "the file does not contain the function of custom call 'my_kernel'"
    assert reason(one) == said
    with pytest.raises(ValueError, match=said):
        one.run_reference()
