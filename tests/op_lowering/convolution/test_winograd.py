"""Where 3x3 convolutions are computed by tiles, and how exact they are."""

import dataclasses
from typing import Any

import numpy as np
import pytest

import jaxdelegate as jd
from jaxdelegate.op_lowering.common.window import Window
from jaxdelegate.op_lowering.convolution.algorithms import Convolution
from jaxdelegate.op_lowering.convolution.candidates import float_algorithms
from jaxdelegate.op_lowering.convolution.rule import RULES
from jaxdelegate.op_lowering.options import Conv2DOptions, Padding
from jaxdelegate.op_lowering.rule import LoweringContext
from jaxdelegate.testing import Arg, Case, const, f32

SAME = Padding.SAME


def square(
    n: int, depth: int, output_channels: int, *, stride: int = 1, images: int = 1
) -> Convolution:
    """A 3x3 convolution of an image of n x n pixels."""
    window = Window(n, 3, stride, SAME)
    return Convolution((window, window), depth, depth, output_channels, images)


def default_of(c: Convolution, platform: str = "cpu") -> str:
    return next(iter(float_algorithms(platform, c, can_transform=True)))


@pytest.mark.parametrize(
    "c", [square(56, 64, 64), square(14, 256, 256), square(35, 96, 96), square(28, 128, 32)]
)
def test_default_where_it_is_faster(c: Convolution) -> None:
    assert default_of(c) == "winograd"
    assert default_of(c, "gpu") == "xla_units_first"


@pytest.mark.parametrize(
    "c",
    [
        pytest.param(square(56, 64, 64, stride=2), id="strides"),
        pytest.param(square(128, 16, 16), id="few channels"),
        pytest.param(square(7, 128, 32), id="little work"),
        pytest.param(square(7, 512, 512), id="few tiles for many filters"),
        pytest.param(square(224, 64, 64), id="much memory"),
        pytest.param(square(56, 64, 64, images=8), id="much memory, of several images"),
    ],
)
def test_not_default_where_it_is_slower(c: Convolution) -> None:
    assert default_of(c) != "winograd"


def result_of(algorithm: str, x: Arg, w: Arg) -> np.ndarray:
    case = Case("CONV_2D", "", [x, w], Conv2DOptions(SAME, 1, 1), version=3)
    return np.asarray(case.run_lowered(RULES["CONV_2D"], LoweringContext(algorithm=algorithm))[0])


def exact(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """The convolution in float64; `w` is [O, 3, 3, I]."""
    n, height, width, _ = x.shape
    padded = np.pad(x.astype(np.float64), [(0, 0), (1, 1), (1, 1), (0, 0)])
    y = np.zeros((n, height, width, w.shape[0]))
    for i, j in np.ndindex(3, 3):
        y += padded[:, i : i + height, j : j + width] @ w[:, i, j].T.astype(np.float64)
    return y


def test_as_exact_as_the_convolution_itself() -> None:
    x, w = f32(1, 13, 12, 96), const(f32(32, 3, 3, 96, seed=1))
    want = exact(x.value, w.value)
    errors = {
        algorithm: np.abs(result_of(algorithm, x, w) - want).max()
        for algorithm in ("winograd", "xla")
    }
    assert 0 < errors["winograd"] < 2 * errors["xla"] < 1e-5 * np.abs(want).max()


def offered(x: Arg, w: Arg, **context: Any) -> list[str]:
    case = Case("CONV_2D", "", [x, w], Conv2DOptions(SAME, 1, 1), version=3)
    algorithms = RULES["CONV_2D"].algorithms
    assert algorithms is not None
    return list(algorithms(case.op(LoweringContext(**context))))


@pytest.mark.usefixtures("bfloat16_dots")
def test_filters_are_transformed_where_that_costs_nothing() -> None:
    x, w = f32(1, 32, 32, 64), f32(64, 3, 3, 64, seed=1)
    assert offered(x, const(w))[0] == "winograd"
    assert "winograd" not in offered(x, w)  # found at run time
    assert "winograd" not in offered(x, const(w), platform="gpu")
    short = jd.JaxDelegate(compute_dtype="bfloat16").lowering_context.precision
    always = dataclasses.replace(short, reduces_convolutions=True)
    assert "winograd" not in offered(x, const(w), precision=always)
