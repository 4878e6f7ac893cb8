"""Convolutions with a residual or a nonlinearity after them, by the package's own kernels."""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
import pytest

import jaxdelegate as jd
from jaxdelegate.compile.precision_policy import device_policy
from jaxdelegate.lowering import fake_quantization
from jaxdelegate.op_lowering.options import ActivationFunctionType as Act
from jaxdelegate.op_lowering.options import (
    Conv2DOptions,
    DepthwiseConv2DOptions,
    FusedConvolutionOptions,
    Nonlinearity,
    NoOptions,
    Padding,
)
from jaxdelegate.op_lowering.precision import BFLOAT16, PrecisionPolicy
from jaxdelegate.op_lowering.registry import FUSED
from jaxdelegate.op_lowering.rule import KernelSet, LoweringContext, Op, ResultUse
from jaxdelegate.op_lowering.spec import TensorSpec
from jaxdelegate.quant.params import Quantization
from jaxdelegate.testing import ModelBuilder, assert_close
from jaxdelegate.testing.case import Call, run_together
from jaxdelegate.testing.running import random_inputs, run_once
from jaxdelegate.tuning import measure
from tests.support.combinations import covering
from tests.support.quantized import scaled

CONTEXT = LoweringContext(kernels=KernelSet(cpu=True))
RULE = FUSED["fused_convolution"]
CONV = Conv2DOptions(Padding.SAME, 1, 1)
DEPTHWISE = DepthwiseConv2DOptions(Padding.SAME, 1, 1, depth_multiplier=1)
KINDS = {
    "pixel": (CONV, 1),
    "windows": (CONV, 5),
    "tiles": (CONV, 3),
    "depthwise": (DEPTHWISE, 3),
    "groups": (CONV, 3),
}
GROUPS = 4
ENDINGS = [
    FusedConvolutionOptions(nonlinearity=Nonlinearity.HARD_SWISH),
    FusedConvolutionOptions(nonlinearity=Nonlinearity.SWISH),
    FusedConvolutionOptions(fused_activation_function=Act.NONE),
    FusedConvolutionOptions(fused_activation_function=Act.RELU6),
]


class Example:
    """x [2, 9, 7, channels], a filter, a bias and a residual."""

    def __init__(
        self, kind: str, channels: int, output_channels: int, epilogue: FusedConvolutionOptions
    ):
        random = np.random.default_rng(channels + output_channels)
        convolution, size = KINDS[kind]
        output_channels = channels if kind in ("depthwise", "groups") else output_channels
        groups = {"depthwise": channels, "groups": GROUPS}.get(kind, 1)
        self.options = dataclasses.replace(epilogue, convolution=convolution)
        x = random.normal(0, 2, (2, 9, 7, channels))
        o, i = (
            (1, output_channels) if kind == "depthwise" else (output_channels, channels // groups)
        )
        w = random.normal(0, 1, (o, size, size, i))
        arrays = (
            x,
            w,
            random.normal(0, 3, output_channels),
            random.normal(0, 3, (2, 9, 7, output_channels)),
        )
        self.arrays = [np.float32(a) for a in arrays]
        constants = (None, *self.arrays[1:3], None)
        self.specs = [
            TensorSpec(str(n), a.shape, a.dtype, const=c)
            for n, (a, c) in enumerate(zip(self.arrays, constants, strict=True))
        ]
        self.y = TensorSpec("y", (2, 9, 7, output_channels), np.dtype(np.float32))

    def why_not(self, context: LoweringContext = CONTEXT, count: int = 4) -> str | None:
        return RULE.reason(Op(context, self.options, tuple(self.specs[:count]), (self.y,)))

    def algorithms(self, count: int = 4) -> list[str]:
        rule: Any = RULE
        return list(
            rule.algorithms(Op(CONTEXT, self.options, tuple(self.specs[:count]), (self.y,)))
        )

    def call(self, algorithm: str | None, count: int, context: LoweringContext = CONTEXT) -> Call:
        context = dataclasses.replace(context, algorithm=algorithm)
        lowered = RULE.lower(Op(context, self.options, tuple(self.specs[:count]), (self.y,)))
        return lowered.__call__, self.arrays[:count]

    def run(
        self, algorithm: str | None, count: int, context: LoweringContext = CONTEXT
    ) -> np.ndarray:
        ((y,),) = run_together([self.call(algorithm, count, context)])
        return y

    def product(self, x: np.ndarray, w: np.ndarray) -> np.ndarray:
        """`w` is a filter's tap, [N, K]; [1, N] if the convolution is depthwise."""
        if isinstance(self.options.convolution, DepthwiseConv2DOptions):
            return x * w[0]
        groups = x.shape[-1] // w.shape[-1]
        parts = zip(np.split(x, groups, -1), np.split(w, groups, 0), strict=True)
        return np.concatenate([pixels @ taps.T for pixels, taps in parts], -1)

    def sums(self) -> np.ndarray:
        """In float64, without the residual."""
        x, w, bias, _ = (np.float64(a) for a in self.arrays)
        pad = w.shape[1] // 2
        x = np.pad(x, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
        y = np.zeros(self.y.shape) + bias
        for i, j in np.ndindex(w.shape[1:3]):
            part = x[:, i : i + 9, j : j + 7]
            y += self.product(part, w[:, i, j])
        return y


def ended(o: FusedConvolutionOptions, x: np.ndarray) -> np.ndarray:
    if o.nonlinearity is Nonlinearity.HARD_SWISH:
        return x * np.clip(x + 3, 0, 6) / 6
    if o.nonlinearity is Nonlinearity.SWISH:
        return x / (1 + np.exp(-x))
    return np.clip(x, 0, 6) if o.fused_activation_function is Act.RELU6 else x


COUNTS = pytest.mark.parametrize("count", [3, 4], ids=["alone", "residual"])


def check(examples: Sequence[Example], count: int, calls: Sequence[Call]) -> None:
    """Compare calls that compute each of the examples in turn."""
    for example, (got,) in zip(itertools.cycle(examples), run_together(calls), strict=False):
        sums = example.sums() + (example.arrays[3] if count == 4 else 0)
        want = np.float32(ended(example.options, sums))
        assert_close([got], [want], accumulated=16 * int(np.prod(example.arrays[1].shape[1:])))


@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize("kind", KINDS)
@COUNTS
def test_the_epilogue_of_a_convolution(kind: str, count: int) -> None:
    sizes = [(16, 16), (20, 33), (40, 5)]
    examples = [Example(kind, *size, epilogue) for size in sizes for epilogue in ENDINGS]
    assert all(example.why_not(count=count) is None for example in examples)
    algorithm = "native_winograd" if kind == "tiles" else None
    check(examples, count, [example.call(algorithm, count) for example in examples])


@pytest.mark.parametrize(("kind", "count"), covering([*KINDS], [3, 4]))
def test_every_algorithm_computes_the_same(kind: str, count: int) -> None:
    examples = [Example(kind, 16, 16, epilogue) for epilogue in ENDINGS]
    algorithms = [
        algorithm
        for algorithm in examples[0].algorithms(count)
        if not algorithm.startswith("native")
    ]
    assert "xla" in algorithms
    check(
        examples,
        count,
        [example.call(algorithm, count) for algorithm in algorithms for example in examples],
    )


def test_the_kernels_algorithm_is_the_first() -> None:
    assert example_algorithms("pixel") == ["native", "dot", "xla", "tap_sum"]
    assert example_algorithms("groups")[0] == "native"
    assert example_algorithms("depthwise")[0] == "native"


def example_algorithms(kind: str) -> list[str]:
    return Example(kind, 16, 16, ENDINGS[0]).algorithms()


@pytest.mark.usefixtures("built")
def test_what_is_measured_as_faster_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, ...]] = []

    def timer(runs: Mapping[str, Any], default: str) -> dict[str, list[float]]:
        asked.append((default, *runs))
        return {name: [0.5 if name == "xla" else 1.0] * 5 for name in runs}

    monkeypatch.setattr(measure, "interleaved", timer)
    delegate = jd.JaxDelegate(platform="cpu", inference_preference="sustained_speed")
    got, want = (outputs_of(swish_network(), d) for d in (delegate, jd.JaxDelegate(platform="cpu")))
    (choice,) = delegate.tuner.report().choices.items()
    assert choice[0].startswith("fused_convolution ")
    assert (choice[1].algorithm, choice[1].default) == ("xla", "native")
    assert asked[0][0] == "native"
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def swish_network() -> bytes:
    rng, builder = np.random.default_rng(0), ModelBuilder()
    x = builder.input((1, 9, 9, 16), np.float32, "x")
    w = builder.constant(rng.normal(size=(16, 5, 5, 16)).astype(np.float32), "w")
    bias = builder.constant(rng.normal(size=16).astype(np.float32), "bias")
    y, z = builder.tensor((1, 9, 9, 16)), builder.tensor((1, 9, 9, 16))
    builder.operator("CONV_2D", [x, w, bias], [y], CONV)
    builder.operator("HARD_SWISH", [y], [z], NoOptions())
    builder.outputs(z)
    return builder.build()


def outputs_of(model: bytes, delegate: jd.JaxDelegate) -> np.ndarray:
    interpreter = jd.Interpreter(model_content=model, experimental_delegates=[delegate])
    interpreter.allocate_tensors()
    (y,) = run_once(interpreter, random_inputs(interpreter.get_input_details()))
    return y


@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize("nonlinearity", [Nonlinearity.HARD_SWISH, Nonlinearity.SWISH])
def test_curves_are_exact_everywhere(nonlinearity: Nonlinearity) -> None:
    example = Example("pixel", 16, 16, FusedConvolutionOptions(nonlinearity=nonlinearity))
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
    example = Example("pixel", 16, 16, FusedConvolutionOptions(nonlinearity=Nonlinearity.SWISH))
    example.arrays[0][:] = np.nan
    example.arrays[3][:] = np.inf
    assert np.isnan(example.run(None, 3)).all()
    example.arrays[0][:] = 0
    assert np.isposinf(example.run(None, 4)).all()


REFUSED: dict[str, Any] = {
    "neither our kernels nor cuDNN": {"context": LoweringContext()},
    "residual and result differ": {"residual": (2, 9, 7, 1)},
    "has a fused RELU": {"inner": Act.RELU},
    "does not apply a fused TANH": {"outer": Act.TANH},
}


@pytest.mark.parametrize("said", REFUSED)
def test_refuses(said: str) -> None:
    case = REFUSED[said]
    example = Example("pixel", 16, 16, ENDINGS[2])
    inner = dataclasses.replace(CONV, fused_activation_function=case.get("inner", Act.NONE))
    outer = case.get("outer", Act.NONE)
    example.options = dataclasses.replace(
        example.options, convolution=inner, fused_activation_function=outer
    )
    shape = case.get("residual", example.specs[3].shape)
    example.specs[3] = dataclasses.replace(example.specs[3], shape=shape)
    assert said in (example.why_not(case.get("context", CONTEXT)) or "")


# ---- by cuDNN, whose part XLA:CPU takes here

GPU = LoweringContext(platform="gpu")
GPU_FLOAT16 = LoweringContext(platform="gpu", precision=device_policy("float16"))


@pytest.mark.parametrize("kind", ["pixel", "windows"])
@pytest.mark.parametrize("epilogue", ENDINGS[2:], ids=["none", "relu6"])
def test_a_residual_on_a_gpu(kind: str, epilogue: FusedConvolutionOptions) -> None:
    example = Example(kind, 16, 24, epilogue)
    assert example.why_not(GPU) is None
    sums = example.sums() + example.arrays[3]
    want = ended(example.options, sums)
    products = int(np.prod(example.arrays[1].shape[1:]))
    got = example.run(None, 4, GPU)
    assert_close([got], [np.float32(want)], accumulated=16 * products)
    short = example.run(None, 4, GPU_FLOAT16)
    assert short.dtype == np.float16
    assert np.abs(short - want).max() < 2e-3 * np.abs(sums).max()


@pytest.mark.parametrize(
    ("kind", "epilogue"), [("depthwise", ENDINGS[2]), ("pixel", ENDINGS[0]), ("pixel", ENDINGS[1])]
)
def test_epilogues_that_cudnn_does_not_compute(
    kind: str, epilogue: FusedConvolutionOptions
) -> None:
    assert "nor cuDNN" in (Example(kind, 16, 16, epilogue).why_not(GPU) or "")


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_cudnn_computes_no_epilogue_of_integers(dtype: Any) -> None:
    example = Example("pixel", 16, 16, ENDINGS[2])
    scale = scaled(0.5)
    stored = {"dtype": np.dtype(dtype), "quantization": scale}
    example.specs = [dataclasses.replace(spec, **stored, const=None) for spec in example.specs]
    example.specs[2] = dataclasses.replace(
        example.specs[2],
        dtype=np.dtype(np.int32),
        quantization=scaled(0.25),
    )
    example.y = dataclasses.replace(example.y, **stored)
    assert "nor cuDNN" in (example.why_not(GPU) or "")


def test_operators_stay_separate_where_operands_are_rounded() -> None:
    short = dataclasses.replace(CONTEXT, precision=PrecisionPolicy(operand=BFLOAT16))
    assert Example("pixel", 16, 16, ENDINGS[0]).why_not(short) is not None


@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize("algorithm", [None, "xla"])
@COUNTS
def test_the_final_result_goes_on_a_grid(algorithm: str | None, count: int) -> None:
    """After the residual and the nonlinearity; XLA's results are not put on the grid."""
    examples = [Example("windows", 5, 17, epilogue) for epilogue in ENDINGS]
    spec = dataclasses.replace(
        examples[0].y,
        dtype=np.dtype(np.int8),
        quantization=Quantization(np.float32([0.1]), np.r_[-9]),
    )
    ended = dataclasses.replace(CONTEXT, result=ResultUse(grid=fake_quantization.grid_of(spec)))
    plain, got = (
        [y for (y,) in run_together([e.call(algorithm, count, context) for e in examples])]
        for context in (CONTEXT, ended)
    )
    with jax.enable_x64(True):
        want = jax.jit(lambda ys: [fake_quantization.simulate(y, spec) for y in ys])(plain)
    for y, floats, z in zip(got, plain, map(np.asarray, want), strict=True):
        np.testing.assert_array_equal(y, floats if algorithm == "xla" else z)
        assert np.any(floats != z)
