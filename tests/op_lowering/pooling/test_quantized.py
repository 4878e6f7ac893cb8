import dataclasses
from typing import Any

import numpy as np
import pytest

from jaxdelegate.op_lowering.options import ActivationFunctionType as Act
from jaxdelegate.op_lowering.options import Padding, Pool2DOptions, Pool3DOptions
from jaxdelegate.op_lowering.registry import RULES
from jaxdelegate.op_lowering.rule import LoweringContext, Op
from jaxdelegate.quant.params import Quantization
from jaxdelegate.testing import Arg, Case, of
from tests.support.case_groups import CaseGroup
from tests.support.quantized import scaled

SAME, VALID = Padding.SAME, Padding.VALID
POOLS = ["AVERAGE_POOL_2D", "MAX_POOL_2D"]
DTYPES = [np.int8, np.uint8, np.int16]
CLAMPS = [Act.RELU, Act.RELU6, Act.RELU_N1_TO_1]
GEOMETRIES = [  # input shape, window, strides
    ((1, 6, 6, 2), (2, 2), (2, 2)),
    ((2, 5, 7, 3), (3, 2), (1, 2)),
    ((1, 4, 4, 1), (4, 4), (1, 1)),
    ((1, 3, 5, 2), (2, 4), (3, 1)),
    ((1, 1, 1, 4), (1, 1), (1, 1)),
    ((0, 4, 4, 2), (2, 2), (2, 2)),
    ((1, 4, 4, 0), (2, 2), (2, 2)),
]
EMPTY = "LiteRT's interpreter refuses empty tensors"


def image(dtype: Any, shape: Any, quantization: Quantization, seed: int = 0) -> Arg:
    low, high = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
    value = of(dtype, *shape, low=low, high=high, seed=seed).value
    return Arg(value, quantization=quantization)


def pool(name: str, label: str, x: Arg, options: Any, **details: Any) -> Case:
    details = {"output_quantization": [x.quantization], **details}
    return Case(name, f"{label}-{x.value.dtype}", [x], options, **details)


def options(
    size: tuple[int, int],
    strides: tuple[int, int] = (1, 1),
    padding: Padding = SAME,
    activation: Act = Act.NONE,
) -> Pool2DOptions:
    return Pool2DOptions(padding, strides[1], strides[0], size[1], size[0], activation)


def geometry_cases() -> list[Case]:
    return [
        pool(
            name,
            f"{shape}-{size}-{padding.name}",
            image(dtype, shape, scaled(0.1, 0 if dtype == np.int16 else 5)),
            options(size, strides, padding),
            litert=EMPTY if 0 in shape else None,
        )
        for name in POOLS
        for dtype in DTYPES
        for shape, size, strides in GEOMETRIES
        for padding in (SAME, VALID)
    ]


def activation_cases() -> list[Case]:
    cases = []
    for name in POOLS:
        for dtype in DTYPES:
            low, high = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
            points = [0] if dtype == np.int16 else [low, high]
            for scale, point, activation in [
                (scale, point, activation)
                for scale in (0.03, 3.0)
                for point in points
                for activation in CLAMPS
            ]:
                x = image(dtype, (1, 6, 5, 3), scaled(scale, point))
                label = f"{activation.name}-{scale}-{point}"
                cases.append(pool(name, label, x, options((2, 3), (2, 1), SAME, activation)))
    return cases


def value_cases() -> list[Case]:
    """Ties of the mean on both sides of zero, and the ends of each range."""
    ties = np.int8([[1, 2], [-1, -2], [3, -4], [-128, -127]]).reshape(1, 4, 2, 1)
    least = [np.full((1, 3, 3, 1), np.iinfo(d).min, d) for d in DTYPES]
    most = [np.full((1, 3, 3, 1), np.iinfo(d).max, d) for d in DTYPES]
    return [
        pool("AVERAGE_POOL_2D", "ties", Arg(ties, quantization=scaled(0.1)), options((1, 2))),
        *(
            pool(name, f"ends-{end[0, 0, 0, 0]}", Arg(end, quantization=scaled(0.1)), o)
            for name in POOLS
            for o in [options((2, 2))]
            for end in (*least, *most)
        ),
    ]


def volume_cases() -> list[Case]:
    cube = Pool3DOptions(b"", (1, 2, 3, 2, 1), (1, 1, 2, 2, 1), "SAME")
    return [
        pool(
            name,
            "volume",
            image(dtype, (1, 3, 4, 5, 2), scaled(0.5, 0)),
            cube,
            litert="a custom operator whose options only TensorFlow's converter writes",
        )
        for name in ("AvgPool3D", "MaxPool3D")
        for dtype in (np.int8, np.int16)
    ]


COMPILED_IN_PART = True
CASES = [*geometry_cases(), *activation_cases(), *value_cases(), *volume_cases()]


ON_GPU = [c for c in CASES if "SAME-int8" in c.label]


def fuzzed(seed: int) -> Case:
    rng = np.random.default_rng(seed)
    dtype = DTYPES[seed % 3]
    low, high = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
    point = 0 if dtype == np.int16 else int(rng.integers(low, high, endpoint=True))
    h, w = (int(n) for n in rng.integers(1, 10, 2))
    size = int(rng.integers(1, h + 1)), int(rng.integers(1, w + 1))
    strides = int(rng.integers(1, 4)), int(rng.integers(1, 4))
    padding, activation = Padding(int(rng.integers(2))), Act(int(rng.integers(4)))
    x = image(dtype, (2, h, w, 3), scaled(2.0 ** rng.uniform(-8, 1), point), seed)
    return pool(POOLS[seed // 3 % 2], f"{seed}", x, options(size, strides, padding, activation))


@pytest.mark.litert
def test_fuzz() -> None:
    cases = [fuzzed(seed) for seed in range(90)]
    for case in cases:
        case.check(case.run_reference(), case.run_litert())
    group = CaseGroup(cases[:18])
    group.check(group.run_lowered(RULES), Case.run_litert)


X = image(np.int8, (1, 4, 4, 2), scaled(0.5, 3))
PER_CHANNEL = Quantization(np.float32([0.5, 0.25]), np.int64([0, 0]), 3)
REFUSED = [
    ("no kernel for", Arg(np.ones((1, 4, 4, 1), np.int32), quantization=scaled(1)), {}),
    ("'in0' has 2 scales", dataclasses.replace(X, quantization=PER_CHANNEL), {}),
    ("without a scale", X, {"output_quantization": [None]}),
    ("quantized differently", X, {"output_quantization": [scaled(0.5, 4)]}),
    ("quantized differently", X, {"output_quantization": [scaled(0.25, 3)]}),
    ("the scale of 'in0' is 0", dataclasses.replace(X, quantization=scaled(0.0)), {}),
    ("the zero point of 'in0'", dataclasses.replace(X, quantization=scaled(1, 300)), {}),
    ("'out0' uint8", X, {"outputs": [np.uint8]}),
    ("more than int32 holds", dataclasses.replace(X, quantization=scaled(1e-30)), {}),
]


@pytest.mark.parametrize(("said", "x", "details"), REFUSED)
def test_refuses(said: str, x: Arg, details: dict[str, Any]) -> None:
    case = pool("MAX_POOL_2D", "", x, options((2, 2), activation=Act.RELU6), **details)
    inputs, outputs = case.specs()
    reason = RULES[case.name].reason(Op(LoweringContext(), case.options, inputs, outputs))
    assert said in (reason or "")


def test_the_square_pool_has_no_integer_kernel() -> None:
    case = pool("L2_POOL_2D", "", X, options((2, 2)))
    assert "no kernel" in case.reason(RULES[case.name])
    with pytest.raises(TypeError, match="float"):
        case.run_reference()


@pytest.mark.parametrize("name", POOLS)
def test_the_reference_needs_scales(name: str) -> None:
    with pytest.raises(TypeError, match="'out0' has no scale"):
        pool(name, "", X, options((2, 2)), output_quantization=[None]).run_reference()
    wide = Arg(np.ones((1, 4, 4, 1), np.int32), quantization=scaled(1))
    with pytest.raises(TypeError, match="'in0' is int32"):
        pool(name, "", wide, options((2, 2))).run_reference()
