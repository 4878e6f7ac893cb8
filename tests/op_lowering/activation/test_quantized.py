import dataclasses
from typing import Any

import numpy as np
import pytest

from jaxdelegate.op_lowering.options import GeluOptions, LeakyReluOptions, Options
from jaxdelegate.op_lowering.registry import RULES
from jaxdelegate.quant.params import Blockwise, Quantization
from jaxdelegate.testing import Arg, Case
from tests.support.quantized import ends, scaled

Scale = tuple[float, int]  # and zero point

EIGHT = ["int8", "uint8"]
ALL = [*EIGHT, "int16"]
TAKES = {
    "RELU": ALL,
    "RELU6": ALL,
    "RELU_N1_TO_1": EIGHT,
    "RELU_0_TO_1": EIGHT,
    "LEAKY_RELU": ALL,
    "HARD_SWISH": EIGHT,
    "ELU": ["int8"],
    "GELU": ALL,
    "LOGISTIC": ALL,
    "TANH": ALL,
}
VERSIONS = {"RELU": 2, "RELU6": 2, "LEAKY_RELU": 2, "GELU": 2, "TANH": 2, "LOGISTIC": 2}
VARIANTS: dict[str, list[Options]] = {
    "LEAKY_RELU": [LeakyReluOptions(alpha) for alpha in (0.1, -0.3, 2.5, 0.0)],
    "GELU": [GeluOptions(approximate=approximate) for approximate in (False, True)],
}
SCALES = [(0.05, 0.05), (0.1, 0.03), (0.004, 0.01), (1e-5, 0.3)]  # of input and output
POWERS = (2.0**-12, 2.0**-11, 2.0**-10, 3e-5, 1e-3, 0.03)  # of inputs of int16 sigmoids
ONLY_OPTIMIZED = {"ELU"}  # BUILTIN_REF lacks it
EMPTY = "LiteRT does not run on empty tensors"


def every(dtype: str, pair: Scale) -> Arg:
    """Every 8-bit integer; every 37th of 16 bits, the bounds and the middle."""
    low, high = ends(dtype)
    x = np.arange(low, high + 1, 37 if dtype == "int16" else 1)
    return Arg(np.append(x, [low, high, 0, 1]).astype(dtype), quantization=scaled(*pair))


def activation(name: str, dtype: str, of_x: Scale, of_y: Scale, **details: Any) -> Case:
    label = f"{dtype}-{details.pop('label', '')}"
    x = details.pop("x", None) or every(dtype, of_x)
    return Case(
        name,
        label,
        [x],
        details.pop("options", VARIANTS.get(name, [None])[0]),
        outputs=[dtype],
        output_quantization=[scaled(*of_y)],
        version=VERSIONS.get(name, 1),
        **details,
    )


def points(name: str, dtype: str) -> list[tuple[int, int]]:
    """Zero points of input and output: in the middle, and at the bounds of the range."""
    low, high = ends(dtype)
    if dtype == "int16" and name != "GELU":
        return [(0, 0)]
    return [(low + 130, low + 100), (low, high), (high, low)]


def output_scale(name: str, dtype: str, wanted: float) -> float:
    """Sigmoids require one scale."""
    if name == "LOGISTIC":
        return 1 / 32768 if dtype == "int16" else 1 / 256
    return 1 / 32768 if name == "TANH" and dtype == "int16" else wanted


def scale_cases() -> list[Case]:
    return [
        activation(
            name,
            dtype,
            (of_x, z[0]),
            (output_scale(name, dtype, of_y), z[1]),
            options=options,
            label=f"{of_x}-{of_y}-{z[0]}-{k}",
        )
        for name, dtypes in TAKES.items()
        for dtype in dtypes
        for i, (of_x, of_y) in enumerate(SCALES)
        for z in points(name, dtype)[i % len(points(name, dtype)) :: 2]
        for k, options in enumerate(VARIANTS.get(name, [None]))
    ]


def sigmoid_cases() -> list[Case]:
    return [
        activation(name, "int16", (of_x, 0), (1 / 32768, 0), label=f"power-{of_x}")
        for name in ("LOGISTIC", "TANH")
        for of_x in POWERS
    ]


def prelu(
    dtype: str,
    of_x: Scale,
    of_alpha: Scale,
    of_y: Scale,
    shape: tuple[int, ...] = (6,),
    **details: Any,
) -> Case:
    """alpha is int8 if x is int16."""
    alpha_dtype = "int8" if dtype == "int16" else dtype
    rng = np.random.default_rng(len(shape))
    x = np.resize(every(dtype, of_x).value, (2, 5, 6))
    alpha = rng.integers(*ends(alpha_dtype), shape, endpoint=True).astype(alpha_dtype)
    return Case(
        "PRELU",
        f"{dtype}-{shape}-{of_x}-{of_y}",
        [
            Arg(x, quantization=scaled(*of_x)),
            Arg(alpha, is_const=len(shape) != 3, quantization=scaled(*of_alpha)),
        ],
        output_quantization=[scaled(*of_y)],
        **details,
    )


def prelu_cases() -> list[Case]:
    return [
        prelu(dtype, (of_x, x), (0.02, alpha), (of_y, y), shape)
        for dtype in ALL
        for of_x, of_y, shape in [
            (0.1, 0.1, (6,)),
            (0.1, 0.004, (5, 6)),
            (0.003, 0.5, (1, 1, 6)),
            (0.1, 0.1, (2, 5, 6)),
        ]
        for x, alpha, y in [(3, 5, 7), (ends(dtype)[0], 127, ends(dtype)[1])]
    ]


def shape_cases() -> list[Case]:
    scalar = Arg(np.int8(9).reshape(()), quantization=scaled(0.1, 3))
    empty = Arg(np.zeros((2, 0), np.int8), quantization=scaled(0.1, 3))
    return [
        *(
            activation(n, "int8", (0.1, 3), (0.2, 1), x=scalar, label="scalar")
            for n in ("RELU", "ELU")
        ),
        *(
            activation(n, "int8", (0.1, 3), (0.2, 1), x=empty, label="empty", litert=EMPTY)
            for n in ("RELU", "HARD_SWISH", "GELU")
        ),
    ]


COMPILED_IN_PART = True
CASES = [*scale_cases(), *sigmoid_cases(), *prelu_cases(), *shape_cases()]


def run_litert(case: Case) -> list[np.ndarray]:
    return case.run_litert(optimized=case.name in ONLY_OPTIMIZED)


@pytest.mark.litert
@pytest.mark.parametrize("name", TAKES)
def test_random_scales_match_litert(name: str, rng: np.random.Generator) -> None:
    done = 0
    while done < 12:
        dtype = str(rng.choice(TAKES[name]))
        x, y = points(name, dtype)[int(rng.integers(len(points(name, dtype))))]
        of_x = float(np.exp2(rng.uniform(-16, 0)))
        of_y = output_scale(name, dtype, float(np.exp2(rng.uniform(-8, 2)) * max(of_x, 1e-3)))
        variants = VARIANTS.get(name, [None])
        options = variants[int(rng.integers(len(variants)))]
        case = activation(name, dtype, (of_x, x), (of_y, y), options=options)
        # HARD_SWISH is refused where the output scale is too small.
        if not case.reason(RULES[case.name]):
            case.check(case.run_reference(), run_litert(case))
            done += 1


BOUNDS = {"RELU": (0, 9.35), "RELU6": (0, 6), "RELU_N1_TO_1": (-1, 1), "RELU_0_TO_1": (0, 1)}


@pytest.mark.parametrize("name", BOUNDS)
def test_bounds_are_the_real_ones(name: str) -> None:
    (q,) = activation(name, "int8", (0.1, -5), (0.05, -60)).run_reference()
    reals = (q.astype(np.float64) + 60) * 0.05
    assert (reals.min(), reals.max()) == pytest.approx(BOUNDS[name])


def requantized(case: Case, position: int, quantization: Quantization | None) -> Case:
    inputs = list(case.inputs)
    first = inputs[position]
    assert first is not None
    inputs[position] = dataclasses.replace(first, quantization=quantization)
    return dataclasses.replace(case, inputs=inputs)


RELU = activation("RELU", "int8", (0.1, 0), (0.1, 0))
CHANNELS = Quantization(np.full(6, 0.1, np.float32), np.zeros(6, np.int64))
BLOCKS = Quantization(np.float32([]), np.int64([]), blockwise=Blockwise(0, -1, 2))
REFUSED = {
    "'in0' is int8 without a scale": requantized(RELU, 0, None),
    "'out0' is int8 without a scale": dataclasses.replace(RELU, output_quantization=[None]),
    "'in0' has blockwise scales; the kernel takes one scale": requantized(RELU, 0, BLOCKS),
    "'in1' has 6 scales; the kernel takes one scale": requantized(
        prelu("int8", (0.1, 0), (0.1, 0), (0.1, 0)), 1, CHANNELS
    ),
    "the zero point of int16 'in0' is 2": activation("RELU", "int16", (0.1, 2), (0.1, 0)),
    "RELU6 has no arithmetic for these scales: 6.0 is": activation(
        "RELU6", "int8", (0.1, 0), (1e-12, 0)
    ),
    "HARD_SWISH has no arithmetic for these scales: the output's": activation(
        "HARD_SWISH", "int8", (0.5, 0), (1e-3, 0)
    ),
    "LOGISTIC has no arithmetic for these scales: the output's is 0.0": activation(
        "LOGISTIC", "int8", (0.1, 0), (0.01, -128)
    ),
    "TANH has no arithmetic for these scales: the output's is 0.0": activation(
        "TANH", "int16", (0.1, 0), (0.01, 0)
    ),
    "LiteRT has no integer kernel of RELU_0_TO_1 from int16 to int16": activation(
        "RELU_0_TO_1", "int16", (0.1, 0), (0.1, 0)
    ),
    "LiteRT has no integer kernel of ELU from uint8 to uint8": activation(
        "ELU", "uint8", (0.1, 0), (0.1, 0)
    ),
    "LiteRT has no integer kernel of HARD_SWISH from int16 to int16": activation(
        "HARD_SWISH", "int16", (0.1, 0), (0.1, 0)
    ),
}


@pytest.mark.parametrize("said", REFUSED)
def test_refuses(said: str) -> None:
    case = REFUSED[said]
    assert case.reason(RULES[case.name]).startswith(said)


STOPPED = {
    "is 2, not 0": activation("RELU", "int16", (0.1, 2), (0.1, 0)),
    "without a scale": requantized(RELU, 0, None),
    "is too small": activation("HARD_SWISH", "int8", (0.5, 0), (1e-3, 0)),
    "not 0.00390625": activation("LOGISTIC", "uint8", (0.1, 0), (0.01, 0)),
    "not 2**-15": activation("TANH", "int16", (0.1, 0), (0.01, 0)),
}
