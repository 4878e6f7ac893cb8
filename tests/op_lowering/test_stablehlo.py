"""StableHLO operators that act element by element: tables over dtypes, and the specification's examples."""

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
from jaxdelegate.op_lowering.rule import LoweringContext
from jaxdelegate.op_lowering.spec import TensorSpec
from jaxdelegate.quant.params import Quantization
from jaxdelegate.testing import Arg, Case, assert_close, const, f32, of, value

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
# What LiteRT runs, and on what (kernels/stablehlo_elementwise.h, stablehlo_shift_left.cc).
_STOCK = [
    *(np.dtype(t) for t in (np.float32, np.float64, np.float16, bool)),
    *INTEGERS,
]
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
    """Values on both sides of zero, and zero among the integers."""
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
CONVERTED = [np.dtype(t) for t in (np.float32, np.float16, np.int8, np.uint32, np.int64, bool)]


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
TOTAL = Kind.STABLEHLO_COMPARISON_TYPE_FLOAT_TOTAL_ORDER


def compare_cases() -> list[Case]:
    complexes = np.array([1 + 2j, 1 - 2j, 2 + 0j, -1 + 9j, complex(np.nan, 1)], np.complex64)
    return [
        c
        for direction in Dir
        for c in [
            *(
                compare(d.name, direction, near(d, 5, 6), near(d, 5, 6, seed=1))
                for d in [*FLOAT, *INTEGERS, *BOOL]
            ),
            compare("empty", direction, f32(0, 3), f32(0, 3)),
            compare("scalar", direction, f32(), f32(seed=1)),
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
            for d in (np.float32, np.float64, np.float16)
            for to in [*INTEGERS, *BOOL]
        ),
        *(convert("limits", value(x), to) for x in LIMITS.values() for to in [*INTEGERS, *FLOAT]),
    ]


def select_cases() -> list[Case]:
    dtypes = [*FLOAT, *INTEGERS, *COMPLEX, *BOOL]
    predicates = [of(bool, 3, 4), value(True), value(False)]
    return [
        *(
            case(
                "STABLEHLO_SELECT",
                f"{d.name}-{p.value.shape}-{p.value.sum()}",
                p,
                near(d, 3, 4),
                near(d, 3, 4, seed=1),
                outputs=[d],
                litert=NO_KERNEL,
            )
            for d in dtypes
            for p in predicates
        ),
        case(
            "STABLEHLO_SELECT",
            "quantized",
            predicates[0],
            *(Arg(of(np.int8, 3, 4, seed=i).value, quantization=SCALE) for i in range(2)),
            outputs=[np.int8],
            litert=NO_KERNEL,
        ),
    ]


SCALE = Quantization(np.float32([0.5]), np.int64([3]))


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


class Declared(Case):
    """A case of quantized tensors that keeps their scale on the output."""


CASES = [
    *binary_cases(),
    *unary_cases(),
    *positive_cases(),
    *limit_cases(),
    *compare_cases(),
    *convert_cases(),
    *clamp_cases(),
    *(c for c in select_cases() if c.label != "quantized"),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_lowering_matches_the_reference(case: Case) -> None:
    case.check(case.run_lowered(RULES[case.name]), case.run_reference())
