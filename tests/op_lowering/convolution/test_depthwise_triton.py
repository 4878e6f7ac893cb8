"""The Triton kernel of depthwise convolutions, interpreted on a CPU, and lowered for a GPU."""

import dataclasses
import functools
import math
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest
from jax.experimental import pallas as pl

from jaxdelegate.compile.precision_policy import device_policy
from jaxdelegate.compile.target import Target
from jaxdelegate.lowering import fake_quantization
from jaxdelegate.op_lowering.common.window import Window
from jaxdelegate.op_lowering.convolution.algorithms import Convolution
from jaxdelegate.op_lowering.convolution.depthwise_triton import TRITON, depthwise, on_grid
from jaxdelegate.op_lowering.options import ActivationFunctionType as Act
from jaxdelegate.op_lowering.options import (
    DepthwiseConv2DOptions,
    FusedConvolutionOptions,
    Nonlinearity,
    Padding,
)
from jaxdelegate.op_lowering.registry import FUSED, RULES
from jaxdelegate.op_lowering.rule import KernelSet, Lowered, LoweringContext, Op
from jaxdelegate.op_lowering.spec import TensorSpec
from jaxdelegate.testing import Case, const, f32
from jaxdelegate.testing.case import run_together
from tests.support.absent_gpu import lowered_for_gpu
from tests.support.quantized import scaled

SAME, VALID = Padding.SAME, Padding.VALID
GPU = LoweringContext(platform="gpu", kernels=KernelSet(triton=True))
NAMED = dataclasses.replace(GPU, algorithm=TRITON)
RULE = RULES["DEPTHWISE_CONV_2D"]


def case(
    label: str,
    x: tuple[int, ...],
    size: tuple[int, int],
    options: DepthwiseConv2DOptions,
    *,
    has_bias: bool = True,
    multiplier: int = 1,
) -> Case:
    channels = x[3] * multiplier
    inputs = [f32(*x), const(f32(1, *size, channels, seed=1))]
    inputs += [const(f32(channels, seed=2))] if has_bias else []
    options = dataclasses.replace(options, depth_multiplier=multiplier)
    return Case("DEPTHWISE_CONV_2D", label, inputs, options, accumulated=math.prod(size), version=2)


# Tiles that end beyond the image, parts of channels, pads on no, one or two sides.
SHAPES = [
    case("tiles", (2, 9, 21, 8), (3, 3), DepthwiseConv2DOptions(SAME, 1, 1)),
    case("parts", (2, 5, 7, 144), (3, 3), DepthwiseConv2DOptions(SAME, 1, 1, 1, Act.RELU6)),
    case("three", (1, 4, 3, 192), (3, 3), DepthwiseConv2DOptions(SAME, 1, 1, 1, Act.RELU)),
    case("uneven pads", (1, 8, 10, 24), (3, 3), DepthwiseConv2DOptions(SAME, 2, 2)),
    case("valid", (2, 9, 8, 16), (5, 2), DepthwiseConv2DOptions(VALID, 2, 3)),
    case("pixel", (3, 4, 4, 8), (1, 1), DepthwiseConv2DOptions(VALID, 1, 1), has_bias=False),
    case("one", (1, 3, 3, 64), (3, 3), DepthwiseConv2DOptions(VALID, 1, 1), has_bias=False),
    case(
        "dilated",
        (1, 9, 8, 40),
        (3, 3),
        DepthwiseConv2DOptions(SAME, 1, 1, dilation_w_factor=2, dilation_h_factor=3),
    ),
]


@pytest.fixture
def _interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pl, "pallas_call", functools.partial(pl.pallas_call, interpret=True))


@pytest.mark.usefixtures("_interpreted")
@pytest.mark.parametrize("example", SHAPES, ids=str)
def test_matches_the_reference(example: Case) -> None:
    example.check(example.run_lowered(RULE, NAMED), example.run_reference())


@pytest.mark.usefixtures("_interpreted")
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_reads_reduced_values_and_rounds_once(dtype: Any) -> None:
    """Sums, bias and filters are float32; values beyond the range become the largest."""
    x = np.random.default_rng(0).normal(0, 2, (2, 5, 6, 8)).astype(dtype)
    w = np.random.default_rng(1).normal(0, 2, (1, 3, 3, 8)).astype(np.float32)
    bias = np.linspace(-3, 3, 8, dtype=np.float32)
    bias[0] = 1e38
    lowered, c = lowered_as(Act.NONE, x.shape, w, bias, device_policy(np.dtype(dtype).name))
    ((y,),) = run_together([(lowered, [x, w, bias])])
    filters = w.reshape(9, 8)
    ((whole,),) = run_together(
        [(lambda *a: (depthwise(c, lambda v: v, np.dtype(np.float32), *a),), [x, filters, bias])]
    )
    most = np.float32(ml_dtypes.finfo(dtype).max)
    assert y.dtype == dtype
    np.testing.assert_array_equal(y, np.clip(whole, -most, most).astype(dtype))
    np.testing.assert_array_equal(np.isfinite(y.astype(np.float32)), True)


def lowered_as(
    activation: Act, x: tuple[int, ...], w: np.ndarray, bias: np.ndarray, precision: Any
) -> tuple[Lowered, Convolution]:
    context = dataclasses.replace(NAMED, precision=precision)
    specs = [TensorSpec("x", x, np.dtype(np.float32))]
    specs += [TensorSpec("c", a.shape, a.dtype, const=a) for a in (w, bias)]
    options = DepthwiseConv2DOptions(SAME, 1, 1, 1, activation)
    lowered: Any = RULE.lower(Op(context, options, tuple(specs), (specs[0],)))
    assert lowered.takes_reduced
    windows = tuple(Window(n, k, 1, SAME) for n, k in zip(x[1:3], w.shape[1:3], strict=True))
    return lowered, Convolution(windows, x[3], 1, x[3], x[0])


@pytest.mark.usefixtures("_interpreted")
@pytest.mark.parametrize("nonlinearity", list(Nonlinearity))
@pytest.mark.parametrize("count", [3, 4], ids=["alone", "residual"])
def test_applies_residual_and_nonlinearity(nonlinearity: Nonlinearity, count: int) -> None:
    """Equals the separate operators, which a GPU without the kernel would run."""
    bare = DepthwiseConv2DOptions(SAME, 1, 1, 1)
    options = FusedConvolutionOptions(convolution=bare, nonlinearity=nonlinearity)
    shapes = [(2, 7, 5, 16), (1, 3, 3, 16), (16,), (2, 7, 5, 16)][:count]
    arrays = [f32(*shape, seed=i).value for i, shape in enumerate(shapes)]
    specs = tuple(TensorSpec(str(i), a.shape, a.dtype) for i, a in enumerate(arrays))
    rule = FUSED["fused_convolution"]
    calls = [
        (
            rule.lower(Op(dataclasses.replace(GPU, algorithm=name), options, specs, specs[:1])),
            arrays,
        )
        for name in (TRITON, "tap_sum")
    ]
    (got,), (want,) = run_together(calls)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_ends_on_the_grid_of_a_quantized_tensor() -> None:
    """Rounds like the float view: ties away from zero, NaN to the lowest value."""
    scale, zero_point = np.float32(0.037), 11
    spec = TensorSpec("y", (4000,), np.dtype(np.int8), scaled(scale, zero_point))
    grid = fake_quantization.grid_of(spec)
    assert grid is not None
    ties = (np.arange(-140, 120) + np.float32(0.5)) * scale
    x = np.concatenate([ties, np.nextafter(ties, 99), [np.nan, np.inf, -np.inf]]).astype(np.float32)
    ((got,), (want,)) = run_together(
        [
            (lambda v: (on_grid(v, grid),), [x]),
            (lambda v: (fake_quantization.simulate(v, spec),), [x]),
        ]
    )
    np.testing.assert_array_equal(got, want)


@pytest.mark.usefixtures("_interpreted")
def test_runs_over_a_batch_of_inputs() -> None:
    """Microbatches on a GPU are a jax.vmap."""
    c = Convolution((Window(4, 3, 1, SAME), Window(5, 3, 1, SAME)), 8, 1, 8, 2)
    x, w = f32(3, 2, 4, 5, 8).value, f32(9, 8, seed=1).value
    run = functools.partial(depthwise, c, lambda v: v, np.dtype(np.float32))
    got = jax.vmap(run, (0, None))(x, w)
    np.testing.assert_allclose(got, [run(one, w) for one in x], rtol=1e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_triton_takes_it(dtype: Any) -> None:
    """Lowered for a GPU, which needs none."""
    c = Convolution((Window(14, 3, 2, SAME), Window(14, 3, 2, SAME)), 48, 1, 48, 4)
    run = functools.partial(depthwise, c, jax.nn.hard_swish, np.dtype(dtype))
    arrays = [f32(4, 14, 14, 48).value.astype(dtype), f32(9, 48).value, f32(48).value]
    text = lowered_for_gpu(run, *arrays)
    assert "__gpu$xla.gpu.triton" in text
    assert "stablehlo.convolution" not in text


def algorithms(example: Case, context: LoweringContext = GPU) -> list[str]:
    rule: Any = RULE
    inputs, outputs = example.specs()
    return list(rule.algorithms(Op(context, example.op_options, inputs, outputs)))


def test_is_the_default_for_long_operators_and_a_candidate_for_others() -> None:
    options = DepthwiseConv2DOptions(SAME, 1, 1)
    long = case("", (64, 64, 64, 32), (3, 3), options)
    assert algorithms(long)[0] == TRITON
    assert algorithms(SHAPES[0])[0] == "tap_sum"
    assert TRITON in algorithms(SHAPES[0])


LEFT = {
    "channels": case("", (2, 9, 9, 12), (3, 3), DepthwiseConv2DOptions(SAME, 1, 1)),
    "filters": case("", (2, 9, 9, 8), (3, 3), DepthwiseConv2DOptions(SAME, 1, 1), multiplier=2),
    "taps": case("", (2, 9, 9, 8), (9, 9), DepthwiseConv2DOptions(SAME, 1, 1)),
}


@pytest.mark.parametrize("example", LEFT.values(), ids=LEFT)
def test_does_not_take_other_convolutions(example: Case) -> None:
    assert TRITON not in algorithms(example)
    example.check(example.run_lowered(RULE, NAMED), example.run_reference())


def test_other_contexts_do_not_get_it() -> None:
    assert TRITON not in algorithms(SHAPES[0], LoweringContext(platform="gpu"))
    assert not GPU.on_gpu(GPU.precision).kernels.triton


@pytest.mark.parametrize(
    ("capability", "runs"), [("8.0", True), ("12.0", True), ("7.5", False), ("gfx90a", False)]
)
def test_needs_a_gpu_from_ampere_on(capability: str, runs: bool) -> None:
    target = Target("cpu", 0)
    assert not target.runs_triton
    target.platform = "gpu"
    target.__dict__["device"] = type("Device", (), {"compute_capability": capability})()
    assert target.runs_triton is runs
