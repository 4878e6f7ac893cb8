"""QUANTIZE between integers; test_cast.py has floats."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from jaxdelegate.op_lowering.registry import RULES
from jaxdelegate.quant.params import Blockwise, Quantization
from jaxdelegate.testing import Arg, Case
from tests.support.quantized import scaled

Scale = tuple[float, int]  # and zero point

PAIRS = [  # what kernels/quantize.cc takes
    ("int8", "int8"),
    ("int8", "uint8"),
    ("int8", "int16"),
    ("uint8", "int8"),
    ("uint8", "uint8"),
    ("uint8", "int16"),
    ("int16", "int8"),
    ("int16", "int16"),
    ("int16", "int32"),
    ("int32", "int8"),
    ("int32", "int16"),
]
RATIOS = {"same": 1.0, "near": 0.97, "half": 0.5, "coarse": 2.3, "tiny": 3e-9, "huge": 4000.0}
ENDS = {d: (int(np.iinfo(d).min), int(np.iinfo(d).max)) for d in ("int8", "uint8", "int16")}


def spread(dtype: Any, count: int = 300) -> np.ndarray:
    """Integers over the whole range."""
    info = np.iinfo(dtype)
    return np.linspace(info.min, info.max, count).astype(np.int64).astype(dtype)


def requantize(
    source: str, target: str, of_x: Scale = (0.1, 0), of_y: Scale = (0.1, 0), **details: Any
) -> Case:
    x = details.pop("x", spread(source))
    label = f"{source}-{target}-{details.pop('label', '')}"
    return Case(
        "QUANTIZE",
        label,
        [Arg(x, quantization=scaled(*of_x))],
        outputs=[target],
        version=4,
        output_quantization=[scaled(*of_y)],
        **details,
    )


def zero_points(source: str, target: str) -> list[tuple[int, int]]:
    """Zero points at both bounds of both ranges, if the kernel takes them."""
    if source == target == "int16":
        return [(0, 0)]
    ends = [ENDS.get(dtype, (-100, 100)) for dtype in (source, target)]
    return [(a, b) for a in ends[0] for b in ends[1]]


CASES = [
    *(
        requantize(s, t, (0.1, a), (0.1 * ratio, b), label=f"{name}-{a}-{b}")
        for s, t in PAIRS
        for name, ratio in RATIOS.items()
        for a, b in zero_points(s, t)[:: 3 if name != "same" else 1]
    ),
    requantize("int8", "uint8", (0.1, -128), (0.1, 0), label="flips the sign bit"),
    requantize("uint8", "int8", (0.1, 0), (0.1, -128), label="flips the sign bit"),
    requantize("int8", "int8", x=np.int8(7).reshape(()), label="scalar"),
    requantize("int8", "int16", x=spread("int8", 64).reshape(2, 1, 4, 2, 4), label="rank_5"),
    requantize("int8", "int16", x=np.zeros((0, 3), np.int8), label="empty", litert="empty"),
]


@pytest.mark.litert
@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_random_scales_match_litert(source: str, target: str, rng: np.random.Generator) -> None:
    for _ in range(12):
        case = requantize(
            source,
            target,
            (float(np.exp2(rng.uniform(-30, 4))), int(rng.choice(zero_points(source, target))[0])),
            (float(np.exp2(rng.uniform(-20, 4))), 0),
        )
        case.check(case.run_reference(), case.run_litert())


def test_reals_are_kept_to_half_a_step() -> None:
    case = requantize("int16", "int8", (0.003, 0), (0.8, 3))
    (q,) = case.run_reference()
    reals = spread("int16") * np.float64(0.003)
    assert np.abs((q - 3.0) * 0.8 - np.clip(reals, -131 * 0.8, 124 * 0.8)).max() <= 0.4001


def stored_as(quantization: Quantization | None) -> Case:
    case = requantize("int8", "int8", x=np.zeros(2, np.int8))
    return dataclasses.replace(case, inputs=[Arg(np.zeros(2, np.int8), quantization=quantization)])


CHANNELS = Quantization(np.float32([0.1, 0.2]), np.int64([0, 0]))
BLOCKS = Quantization(np.float32([]), np.int64([]), blockwise=Blockwise(0, -1, 2))
REFUSED = {
    "LiteRT has no kernel that requantizes int8 to int32": requantize("int8", "int32"),
    "LiteRT has no kernel that requantizes int16 to uint8": requantize("int16", "uint8"),
    "LiteRT has no kernel that requantizes uint16 to int8": requantize("uint16", "int8"),
    "the zero point of int16 'in0' is 3; the kernel expects 0": requantize(
        "int16", "int16", (0.1, 3)
    ),
    "the zero point of int16 'out0' is 3; the kernel expects 0": requantize(
        "int16", "int16", (0.1, 0), (0.1, 3)
    ),
    "the zero point of 'in0' is 200, not of int8": requantize("int8", "int8", (0.1, 200)),
    "the scale of 'in0' is 0.0": requantize("int8", "int8", (0.0, 0)),
    "the scale of 'out0' is nan": requantize("int8", "int8", of_y=(np.nan, 0)),
    "'in0' is int8 without a scale": stored_as(None),
    "'in0' has 2 scales; the kernel takes one scale": stored_as(CHANNELS),
    "'in0' has blockwise scales; the kernel takes one scale": stored_as(BLOCKS),
}


@pytest.mark.parametrize("said", REFUSED)
def test_refuses(said: str) -> None:
    assert REFUSED[said].reason(RULES["QUANTIZE"]) == said


def test_the_reference_stops_at_what_the_kernel_stops_at() -> None:
    with pytest.raises(TypeError, match="no kernel from int8 to int32"):
        requantize("int8", "int32").run_reference()
    with pytest.raises(ValueError, match="zero point is not 0"):
        requantize("int16", "int16", (0.1, 3)).run_reference()
    with pytest.raises(ValueError, match="int8 without a scale"):
        stored_as(None).run_reference()
