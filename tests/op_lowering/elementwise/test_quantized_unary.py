"""Unary elementwise operators on quantized tensors, except activation functions."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from jaxdelegate.op_lowering.registry import RULES
from jaxdelegate.testing import Arg, Case
from tests.support.quantized import ends, scaled

Scale = tuple[float, int]  # and zero point

ROOTS = ["SQRT", "RSQRT"]
VERSIONS = {"RSQRT": 3, "NEG": 1}  # others: 2
EMPTY = "LiteRT does not run on empty tensors"


def stored(dtype: str, pair: Scale, least: int | None = None) -> Arg:
    """Every 8-bit integer, about 1800 of 16 bits; none below `least`."""
    low, high = ends(dtype)
    low = low if least is None else least
    x = np.arange(low, high + 1, 37 if dtype == "int16" else 1)
    return Arg(np.append(x, [low, high]).astype(dtype), quantization=scaled(*pair))


def unary(name: str, dtype: str, of_x: Scale, of_y: Scale, **details: Any) -> Case:
    label = f"{dtype}-{details.pop('label', '')}"
    least = of_x[1] if name in ROOTS else None
    x = details.pop("x", None) or stored(dtype, of_x, least)
    return Case(
        name,
        label,
        [x],
        outputs=[dtype],
        output_quantization=[scaled(*of_y)],
        version=VERSIONS.get(name, 2),
        **details,
    )


def points(dtype: str) -> list[tuple[int, int]]:
    """Zero points of input and output: in the middle, and at the bounds of the range."""
    low, high = ends(dtype)
    if dtype == "int16":
        return [(0, 0)]
    return [(low + 130, low + 100), (low, low), (high, high)]


def cases() -> list[Case]:
    scales = {
        "ABS": [(0.1, 0.1), (0.1, 0.03), (1e-4, 0.5)],
        "SQRT": [(0.1, 0.03), (5.0, 0.2), (1e-4, 1e-4)],
        "RSQRT": [(0.1, 0.03), (5.0, 0.01), (1e-4, 3.0)],
        "EXP": [(0.03, 0.2), (0.1, 0.004), (1e-4, 0.01)],
        "LOG": [(0.1, 0.03), (5.0, 0.05), (1e-4, 0.08)],
        "NEG": [(0.1, 0.1)],
    }
    return [
        unary(name, dtype, (a, z[0]), (b, z[1]), label=f"{a}-{b}-{z[0]}")
        for name, pairs in scales.items()
        for dtype in ("int8", "int16")
        for i, (a, b) in enumerate(pairs)
        for z in points(dtype)[i % len(points(dtype)) :: 2]
    ] + [
        unary(
            "EXP",
            "int8",
            (0.1, 3),
            (0.2, 1),
            x=Arg(np.int8(9).reshape(()), quantization=scaled(0.1, 3)),
        ),
        unary(
            "ABS",
            "int16",
            (0.1, 0),
            (0.2, 0),
            x=Arg(np.zeros((2, 0), np.int16), quantization=scaled(0.1, 0)),
            label="empty",
            litert=EMPTY,
        ),
    ]


CASES = cases()


def random_scale(rng: np.random.Generator, dtype: str, low: float) -> Scale:
    zero = 0 if dtype == "int16" else int(rng.integers(*ends(dtype), endpoint=True))
    return float(np.exp2(rng.uniform(low, 3))), zero


@pytest.mark.litert
@pytest.mark.parametrize("dtype", ["int8", "int16"])
@pytest.mark.parametrize("name", ["ABS", "SQRT", "RSQRT", "EXP", "LOG"])
def test_random_scales_match_litert(name: str, dtype: str, rng: np.random.Generator) -> None:
    for _ in range(10):
        of_x, of_y = (random_scale(rng, dtype, low) for low in (-16, -12))
        case = unary(name, dtype, of_x, of_y)
        case.check(case.run_reference(), case.run_litert())


NEGATIVE = Arg(np.int8([1, -1]), is_const=True, quantization=scaled(0.1, 0))
ABSOLUTE = unary("ABS", "int8", (0.1, 0), (0.1, 0))
REFUSED = {
    "'out0' is int8 without a scale": dataclasses.replace(ABSOLUTE, output_quantization=[None]),
    "the zero point of int16 'out0' is 1": unary("EXP", "int16", (0.1, 0), (0.1, 1)),
    "ABS has no arithmetic for these scales: a multiplier must be finite": unary(
        "ABS", "int8", (1e38, 0), (1e-38, 0)
    ),
    "'in0' holds a negative number": unary("RSQRT", "int8", (0.1, 0), (0.1, 0), x=NEGATIVE),
    "LiteRT has no integer kernel of ABS from uint8 to uint8": unary(
        "ABS", "uint8", (0.1, 0), (0.1, 0)
    ),
    "'in0' is quantized int8: LiteRT has no integer kernel of SIN": unary(
        "SIN", "int8", (0.1, 0), (0.1, 0)
    ),
}


@pytest.mark.parametrize("said", REFUSED)
def test_refuses(said: str) -> None:
    case = REFUSED[said]
    assert case.reason(RULES[case.name]).startswith(said)


@pytest.mark.parametrize("name", ROOTS)
def test_the_reference_stops_at_negative_numbers(name: str) -> None:
    with pytest.raises(ValueError, match="negative"):
        unary(name, "int8", (0.1, 0), (0.1, 0), x=NEGATIVE).run_reference()


def test_the_reference_stops_at_zero_points_of_int16() -> None:
    with pytest.raises(ValueError, match="is 3, not 0"):
        unary("ABS", "int16", (0.1, 3), (0.1, 0)).run_reference()


def test_the_reference_has_no_kernel_for_other_dtypes() -> None:
    with pytest.raises(TypeError, match="quantized uint8"):
        unary("ABS", "uint8", (0.1, 0), (0.1, 0)).run_reference()
