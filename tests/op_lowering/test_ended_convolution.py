"""Convolutions with a residual or a curve behind them, by the package's own kernels."""

import dataclasses
from typing import Any

import jax
import numpy as np
import pytest

from jaxdelegate.op_lowering.options import ActivationFunctionType as Act
from jaxdelegate.op_lowering.options import (
    Conv2DOptions,
    Curve,
    DepthwiseConv2DOptions,
    EndedConvolutionOptions,
    Padding,
)
from jaxdelegate.op_lowering.precision import BFLOAT16, PrecisionPolicy
from jaxdelegate.op_lowering.registry import FUSED
from jaxdelegate.op_lowering.rule import LoweringContext
from jaxdelegate.op_lowering.spec import TensorSpec
from jaxdelegate.testing import assert_close

CONTEXT = LoweringContext(native_kernels=True)
RULE = FUSED["ended_convolution"]
CONV = Conv2DOptions(Padding.SAME, 1, 1)
DEPTHWISE = DepthwiseConv2DOptions(Padding.SAME, 1, 1, depth_multiplier=1)
KINDS = {"pixel": (CONV, 1), "windows": (CONV, 5), "tiles": (CONV, 3), "depthwise": (DEPTHWISE, 3)}
ENDINGS = [
    EndedConvolutionOptions(curve=Curve.HARD_SWISH),
    EndedConvolutionOptions(curve=Curve.SWISH),
    EndedConvolutionOptions(fused_activation_function=Act.NONE),
    EndedConvolutionOptions(fused_activation_function=Act.RELU6),
]


class Example:
    """x [2, 9, 7, channels], a filter, a bias and a residual."""

    def __init__(self, kind: str, channels: int, units: int, ending: EndedConvolutionOptions):
        random = np.random.default_rng(channels + units)
        convolution, size = KINDS[kind]
        units = channels if kind == "depthwise" else units
        self.options = dataclasses.replace(ending, convolution=convolution)
        x = random.normal(0, 2, (2, 9, 7, channels))
        o, i = (1, units) if kind == "depthwise" else (units, channels)
        w = random.normal(0, 1, (o, size, size, i))
        arrays = (x, w, random.normal(0, 3, units), random.normal(0, 3, (2, 9, 7, units)))
        self.arrays = [np.float32(a) for a in arrays]
        constants = (None, *self.arrays[1:3], None)
        self.specs = [
            TensorSpec(str(n), a.shape, a.dtype, const=c)
            for n, (a, c) in enumerate(zip(self.arrays, constants, strict=True))
        ]
        self.y = TensorSpec("y", (2, 9, 7, units), np.dtype(np.float32))

    def why_not(self, context: LoweringContext = CONTEXT, count: int = 4) -> str | None:
        return RULE.reason(context, self.options, tuple(self.specs[:count]), (self.y,))

    def run(self, way: str | None, count: int) -> np.ndarray:
        context = dataclasses.replace(CONTEXT, way=way)
        specs = tuple(self.specs[:count])
        lowered = RULE.lower(context, self.options, specs, (self.y,))
        with jax.enable_x64(True):
            return np.asarray(jax.jit(lowered.__call__)(*self.arrays[:count])[0])

    def sums(self) -> np.ndarray:
        """In float64, without the residual."""
        x, w, bias, _ = (np.float64(a) for a in self.arrays)
        pad = w.shape[1] // 2
        x = np.pad(x, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
        y = np.zeros(self.y.shape) + bias
        for i, j in np.ndindex(w.shape[1:3]):
            part = x[:, i : i + 9, j : j + 7]
            is_depthwise = isinstance(self.options.convolution, DepthwiseConv2DOptions)
            y += part * w[0, i, j] if is_depthwise else part @ w[:, i, j].T
        return y


def ended(o: EndedConvolutionOptions, x: np.ndarray) -> np.ndarray:
    if o.curve is Curve.HARD_SWISH:
        return x * np.clip(x + 3, 0, 6) / 6
    if o.curve is Curve.SWISH:
        return x / (1 + np.exp(-x))
    return np.clip(x, 0, 6) if o.fused_activation_function is Act.RELU6 else x


@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sizes", [(16, 16), (20, 33), (40, 5)], ids=str)
@pytest.mark.parametrize("ending", ENDINGS, ids=["hard_swish", "swish", "none", "relu6"])
@pytest.mark.parametrize("count", [3, 4], ids=["alone", "residual"])
def test_the_end_of_a_convolution(
    kind: str, sizes: tuple[int, int], ending: EndedConvolutionOptions, count: int
) -> None:
    example = Example(kind, *sizes, ending)
    assert example.why_not(count=count) is None
    sums = example.sums() + (example.arrays[3] if count == 4 else 0)
    got = example.run("native_winograd" if kind == "tiles" else None, count)
    products = int(np.prod(example.arrays[1].shape[1:]))
    want = np.float32(ended(example.options, sums))
    assert_close([got], [want], accumulated=16 * products)


@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize("curve", [Curve.HARD_SWISH, Curve.SWISH])
def test_curves_are_exact_everywhere(curve: Curve) -> None:
    example = Example("pixel", 16, 16, EndedConvolutionOptions(curve=curve))
    special = [0, -0.0, 1e-30, -1e-30, 1e30, -1e4]
    values = np.linspace(-100, 100, 2 * 9 * 7 * 16 - len(special))
    x = np.float32(np.concatenate([values, special]))
    one = np.eye(16, dtype=np.float32)[:, None, None, :]
    example.arrays[:3] = [x.reshape(2, 9, 7, 16), one, np.zeros(16, np.float32)]
    example.specs[1] = dataclasses.replace(example.specs[1], const=one)
    want = ended(example.options, np.float64(np.clip(x, -700, None)))
    got = example.run("native", 3).reshape(-1)
    np.testing.assert_allclose(got, want, rtol=5e-7, atol=1e-33)


def test_infinities_and_nan_pass(instruction_set: str) -> None:
    del instruction_set
    example = Example("pixel", 16, 16, EndedConvolutionOptions(curve=Curve.SWISH))
    example.arrays[0][:] = np.nan
    example.arrays[3][:] = np.inf
    assert np.isnan(example.run(None, 3)).all()
    example.arrays[0][:] = 0
    assert np.isposinf(example.run(None, 4)).all()


REFUSED: dict[str, Any] = {
    "our kernels do not compute it": {"context": LoweringContext()},
    "residual and result differ": {"residual": (2, 9, 7, 1)},
    "RELU stands between": {"inner": Act.RELU},
    "does not apply a fused TANH": {"outer": Act.TANH},
}


@pytest.mark.parametrize("sentence", REFUSED)
def test_what_it_refuses(sentence: str) -> None:
    case = REFUSED[sentence]
    example = Example("pixel", 16, 16, ENDINGS[2])
    inner = dataclasses.replace(CONV, fused_activation_function=case.get("inner", Act.NONE))
    outer = case.get("outer", Act.NONE)
    example.options = dataclasses.replace(
        example.options, convolution=inner, fused_activation_function=outer
    )
    shape = case.get("residual", example.specs[3].shape)
    example.specs[3] = dataclasses.replace(example.specs[3], shape=shape)
    assert sentence in (example.why_not(case.get("context", CONTEXT)) or "")


def test_where_a_factor_is_shortened_they_stay_apart() -> None:
    short = dataclasses.replace(CONTEXT, precision=PrecisionPolicy(operand=BFLOAT16))
    assert Example("pixel", 16, 16, ENDINGS[0]).why_not(short) is not None
