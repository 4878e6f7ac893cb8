import dataclasses
import math
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest

from jaxdelegate.compile.precision_policy import device_policy, emulated_policy
from jaxdelegate.op_lowering.common.window import Window
from jaxdelegate.op_lowering.convolution.algorithms import (
    Convolution,
    algorithm,
    shares,
    tap_sum,
    xla_units_first,
)
from jaxdelegate.op_lowering.convolution.candidates import float_algorithms
from jaxdelegate.op_lowering.options import ActivationFunctionType as Act
from jaxdelegate.op_lowering.options import (
    Conv2DOptions,
    Conv3DOptions,
    DepthwiseConv2DOptions,
    Padding,
)
from jaxdelegate.op_lowering.registry import RULES
from jaxdelegate.op_lowering.rule import Lowered, LoweringContext, Op
from jaxdelegate.op_lowering.spec import TensorSpec
from jaxdelegate.reference.registry import KERNELS
from jaxdelegate.testing import Arg, Case, const, f32, of
from jaxdelegate.testing.case import run_together
from tests.support.quantized import scaled

SAME, VALID = Padding.SAME, Padding.VALID
FLOAT32_ONLY = "the kernel takes float32 only"
NEEDS_BIAS = "the kernel wants a bias"


def conv(
    label: str,
    x: tuple[int, ...],
    w: tuple[int, ...],
    options: Conv2DOptions,
    *,
    dtype: Any = np.float32,
    has_bias: bool = True,
    **details: Any,
) -> Case:
    """`w` is [O, h, w, I]."""
    inputs = [of(dtype, *x), const(of(dtype, *w, seed=1))]
    inputs += [const(of(dtype, w[0], seed=2))] if has_bias else []
    litert = None if dtype is np.float32 else FLOAT32_ONLY
    details = {"litert": litert if has_bias else NEEDS_BIAS} | details
    return Case(
        "CONV_2D", label, inputs, options, accumulated=math.prod(w[1:]), version=3, **details
    )


def depthwise(
    label: str,
    x: tuple[int, ...],
    w: tuple[int, int, int],
    options: DepthwiseConv2DOptions,
    *,
    dtype: Any = np.float32,
    has_bias: bool = True,
    **details: Any,
) -> Case:
    """`w` is [h, w, C * multiplier]."""
    options = dataclasses.replace(options, depth_multiplier=w[2] // x[3])
    inputs = [of(dtype, *x), const(of(dtype, 1, *w, seed=1))]
    inputs += [const(of(dtype, w[2], seed=2))] if has_bias else []
    details = {"litert": None if dtype is np.float32 else FLOAT32_ONLY} | details
    return Case(
        "DEPTHWISE_CONV_2D",
        label,
        inputs,
        options,
        accumulated=math.prod(w[:2]),
        version=2,
        **details,
    )


def conv_3d(
    label: str, x: tuple[int, ...], w: tuple[int, ...], options: Conv3DOptions, **details: Any
) -> Case:
    """`w` is [d, h, w, I, O]."""
    inputs = [f32(*x), const(f32(*w, seed=1)), const(f32(w[4], seed=2))]
    return Case("CONV_3D", label, inputs, options, accumulated=math.prod(w[:4]), **details)


PLACES = {
    "same": Conv2DOptions(SAME, 1, 1),
    "valid": Conv2DOptions(VALID, 1, 1),
    "same-2": Conv2DOptions(SAME, 2, 2),
    "valid-3x2": Conv2DOptions(VALID, 2, 3),
    "same-dilated": Conv2DOptions(SAME, 1, 1, dilation_w_factor=3, dilation_h_factor=2),
    "same-dilated-2": Conv2DOptions(SAME, 2, 2, dilation_w_factor=2, dilation_h_factor=2),
    "valid-dilated": Conv2DOptions(VALID, 1, 2, dilation_w_factor=1, dilation_h_factor=2),
}
# What a CPU does in ways of its own: few products, one pixel, groups of one, few or many channels.
ALGORITHMS = {
    "deep": ((2, 7, 6, 20), (5, 3, 3, 20)),
    "narrow": ((2, 7, 6, 8), (5, 3, 3, 8)),
    "few": ((2, 8, 9, 3), (4, 3, 3, 3)),
    "gray": ((1, 9, 8, 1), (6, 5, 5, 1)),
    "pixel": ((2, 5, 7, 20), (6, 1, 1, 20)),
    "row": ((2, 5, 7, 8), (3, 1, 5, 8)),
    "even": ((1, 6, 6, 12), (3, 2, 4, 12)),
    "depthwise": ((1, 6, 7, 6), (12, 3, 3, 1)),
    "groups": ((2, 6, 5, 6), (9, 3, 3, 2)),
    "deep-groups": ((2, 6, 5, 16), (8, 3, 3, 8)),
    "pixel-groups": ((2, 6, 5, 60), (9, 1, 1, 20)),
    "wide-groups": ((1, 6, 5, 64), (4, 3, 3, 32)),
}
CONV_2D = [
    conv(f"{place}-{algorithm}", *shapes, options)
    for place, options in PLACES.items()
    for algorithm, shapes in ALGORITHMS.items()
    if place in ("same", "same-2")
    or algorithm in ("deep", "narrow", "few", "groups", "deep-groups")
]
CONV_2D += [
    *(
        conv(f"{act.name}-{algorithm}", *ALGORITHMS[algorithm], Conv2DOptions(SAME, 1, 1, act))
        for act in (Act.RELU, Act.RELU_N1_TO_1, Act.RELU6)
        for algorithm in ("deep", "few")
    ),
    *(
        conv(
            f"{np.dtype(dtype).name}-{algorithm}",
            *ALGORITHMS[algorithm],
            PLACES["same-2"],
            dtype=dtype,
        )
        for dtype in (np.float16, ml_dtypes.bfloat16)
        for algorithm in ("deep", "few", "pixel", "deep-groups")
    ),
    conv("no-bias", *ALGORITHMS["deep"], PLACES["same"], has_bias=False),
    conv("empty-batch", (0, 5, 5, 2), (3, 3, 3, 2), PLACES["same"]),
    conv("nothing-fits", (1, 4, 4, 2), (3, 5, 5, 2), PLACES["valid"]),
    conv("nothing-fits-by-far", (1, 4, 4, 2), (3, 6, 6, 2), Conv2DOptions(VALID, 2, 2)),
    conv("filter-larger-than-image", (1, 2, 3, 2), (3, 5, 5, 2), PLACES["same"]),
    conv("stride-beyond-filter", (1, 7, 8, 5), (3, 2, 2, 5), Conv2DOptions(SAME, 3, 3)),
    Case(
        "CONV_2D",
        "run-time-filter",
        [f32(1, 5, 5, 8), f32(4, 3, 3, 8, seed=1), f32(4, seed=2)],
        PLACES["same"],
        accumulated=72,
    ),
    Case(
        "CONV_2D",
        "float16-filter",
        [f32(1, 5, 5, 8), const(of(np.float16, 4, 3, 3, 8)), const(f32(4, seed=2))],
        PLACES["same"],
        accumulated=72,
        litert=FLOAT32_ONLY,
    ),
    Case(
        "CONV_2D",
        "bias-of-rank-4",
        [f32(1, 5, 5, 8), const(f32(4, 3, 3, 8, seed=1)), const(f32(1, 1, 1, 4, seed=2))],
        PLACES["same"],
        accumulated=72,
    ),
]
DEPTHWISE = [
    *(
        depthwise(
            f"{place}-{channels}x{multiplier}-{h}x{w}",
            (2, 8, 9, channels),
            (h, w, channels * multiplier),
            DepthwiseConv2DOptions(
                o.padding,
                o.stride_w,
                o.stride_h,
                0,
                Act.NONE,
                o.dilation_w_factor,
                o.dilation_h_factor,
            ),
        )
        for place, o in PLACES.items()
        for channels, multiplier, h, w in ((4, 1, 3, 3), (3, 2, 3, 2), (1, 5, 2, 3))
    ),
    *(
        depthwise(act.name, (1, 6, 6, 4), (3, 3, 4), DepthwiseConv2DOptions(SAME, 1, 1, 0, act))
        for act in (Act.RELU, Act.RELU_N1_TO_1, Act.RELU6)
    ),
    *(
        depthwise(
            np.dtype(dtype).name,
            (1, 6, 6, 4),
            (3, 3, 8),
            DepthwiseConv2DOptions(SAME, 2, 2),
            dtype=dtype,
        )
        for dtype in (np.float16, ml_dtypes.bfloat16)
    ),
    depthwise("large", (1, 20, 20, 2), (17, 17, 2), DepthwiseConv2DOptions(SAME, 1, 1)),
    depthwise(
        "no-bias", (1, 6, 6, 4), (3, 3, 4), DepthwiseConv2DOptions(SAME, 1, 1), has_bias=False
    ),
    depthwise("empty-batch", (0, 6, 6, 4), (3, 3, 4), DepthwiseConv2DOptions(SAME, 1, 1)),
    depthwise("nothing-fits", (1, 4, 4, 4), (5, 5, 4), DepthwiseConv2DOptions(VALID, 1, 1)),
]
CONV_3D = [
    conv_3d("same", (2, 4, 5, 6, 3), (2, 3, 3, 3, 4), Conv3DOptions(SAME, 1, 1, 1)),
    conv_3d("valid", (1, 4, 5, 6, 12), (2, 2, 3, 12, 4), Conv3DOptions(VALID, 1, 1, 1)),
    conv_3d("same-strides", (1, 5, 6, 7, 12), (3, 2, 3, 12, 4), Conv3DOptions(SAME, 2, 3, 2)),
    conv_3d(
        "same-dilated",
        (1, 6, 7, 8, 6),
        (2, 3, 2, 6, 4),
        Conv3DOptions(SAME, 1, 1, 1, Act.RELU6, 2, 3, 1),
    ),
    conv_3d("pixel", (1, 3, 4, 5, 20), (1, 1, 1, 20, 4), Conv3DOptions(VALID, 2, 1, 1, Act.RELU)),
    conv_3d("empty-batch", (0, 3, 4, 5, 2), (2, 2, 2, 2, 4), Conv3DOptions(SAME, 1, 1, 1)),
]
CASES = CONV_2D + DEPTHWISE + CONV_3D


ON_GPU = [c for c in CASES if "same-2" in c.label or "float16" in c.label or c in CONV_3D]


def gpu_program(activation: Act, stride: int = 1, size: int = 1, precision: str = "float16") -> str:
    """The StableHLO of CONV_2D on [1, 8, 8, 16], as it is lowered for a GPU."""
    context = LoweringContext(platform="gpu", precision=device_policy(precision))
    options = Conv2DOptions(SAME, stride, stride, activation)
    w, bias = np.ones((32, size, size, 16), np.float32), np.ones(32, np.float32)
    n_out = 8 // stride
    specs = (
        spec((1, 8, 8, 16)),
        TensorSpec("w", w.shape, w.dtype, const=w),
        TensorSpec("b", bias.shape, bias.dtype, const=bias),
    )
    lowered = RULES["CONV_2D"].lower(Op(context, options, specs, (spec((1, n_out, n_out, 32)),)))
    assert isinstance(lowered, Lowered)
    arrays = [lowered.prepare[i](a) if i in lowered.prepare else a for i, a in ((1, w), (2, bias))]
    x = jax.ShapeDtypeStruct((1, 8, 8, 16), precision)
    return jax.jit(lowered.run).lower(x, *arrays).as_text()


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_a_gpu_reads_filters_as_cudnn_does_and_ends_short(precision: str) -> None:
    """Neither a filter nor a bias is transposed or converted in the program, nor the result."""
    text = gpu_program(Act.RELU, size=3, precision=precision)
    assert "dim_numbers = [b, 0, 1, f]x[o, 0, 1, i]->[b, 0, 1, f]" in text
    assert "transpose" not in text
    assert "stablehlo.convert" not in text
    assert "f32" not in text


@pytest.mark.parametrize(
    ("activation", "stride", "size", "operation"),
    [
        (Act.RELU6, 1, 1, "dot_general"),
        (Act.RELU_N1_TO_1, 1, 1, "dot_general"),
        (Act.RELU6, 2, 1, "convolution"),
        (Act.RELU6, 1, 3, "convolution"),
        (Act.RELU, 1, 1, "dot_general"),  # at the end of float16's range
        (Act.NONE, 1, 1, "dot_general"),
        (Act.NONE, 1, 3, "convolution"),
    ],
)
def test_a_gpu_clamps_at_the_end_of_matrix_products(
    activation: Act, stride: int, size: int, operation: str
) -> None:
    text = gpu_program(activation, stride, size)
    found = [name for name in ("dot_general", "convolution") if f"stablehlo.{name}" in text]
    assert found == [operation]


@pytest.mark.parametrize(
    ("images", "size", "run"),
    [(1, 5, tap_sum), (1, 17, xla_units_first), (900, 3, tap_sum), (900, 5, xla_units_first)],
)
def test_a_short_depthwise_convolution_is_one_kernel_on_a_gpu(
    images: int, size: int, run: Any
) -> None:
    windows = (Window(32, size, 1, SAME, 1), Window(32, size, 1, SAME, 1))
    assert algorithm("gpu", Convolution(windows, 64, 1, 64, images))[1] is run


def pointwise(size: int, depth: int, filters: int, batch: int = 1) -> Convolution:
    return Convolution((Window(size, 1, 1, SAME, 1),) * 2, depth, depth, filters, batch)


@pytest.mark.parametrize(
    ("c", "count"),
    [  # ResNet50's last layers; an H100 has 132 processors
        (pointwise(7, 2048, 512), 8),
        (pointwise(7, 512, 2048), 2),
        (pointwise(14, 1024, 256), 4),
        (pointwise(14, 256, 1024), 1),  # a short sum
        (pointwise(7, 2048, 512, batch=16), 1),  # 104 tiles
        (pointwise(7, 2049, 512), 1),
        (Convolution((Window(7, 3, 1, SAME, 1),) * 2, 2048, 2048, 512), 1),
        (Convolution((Window(7, 1, 1, SAME, 1),) * 2, 2048, 1024, 512), 1),
    ],
)
def test_programs_of_a_gpu_share_a_long_sum_of_few_tiles(c: Convolution, count: int) -> None:
    assert shares(c) == count
    assert ("split_dot" in float_algorithms("gpu", c)) == (count > 1)
    assert "split_dot" not in float_algorithms("cpu", c)
    first = {next(iter(float_algorithms("gpu", c, is_clamped=True, splits=on))) for on in (0, 1)}
    assert ("split_dot" in first) == (count > 1)
    assert next(iter(float_algorithms("gpu", c, splits=True))) != "split_dot"  # cuDNN's epilogue


@pytest.mark.parametrize("stride", [1, 2])
def test_shared_sums_are_added(stride: int) -> None:
    options = Conv2DOptions(VALID, stride, stride, Act.RELU)
    inputs = [f32(2, 5, 4, 512), const(f32(8, 1, 1, 512, seed=1)), const(f32(8, seed=2))]
    case = Case("CONV_2D", "", inputs, options, version=3, accumulated=512)
    context = LoweringContext(platform="gpu", algorithm="split_dot")
    case.check(case.run_lowered(RULES["CONV_2D"], context), case.run_reference())


def emulated(channels: Any, filters: Any, bias: Any, activation: Act = Act.NONE) -> Any:
    """CONV_2D in float16 on one pixel, with an emulation of a GPU's roundings."""
    x = np.float32(channels).reshape(1, 1, 1, -1)
    w = np.float32(filters).reshape(-1, 1, 1, x.size)
    w = np.pad(w, ((0, 0), (1, 1), (1, 1), (0, 0)))  # one pixel alone would be a matrix product
    arrays = (x, w, np.float32(bias))
    specs = [TensorSpec("t", a.shape, a.dtype, const=None if a is x else a) for a in arrays]
    context = LoweringContext().on_gpu(emulated_policy("float16"))
    options = Conv2DOptions(SAME, 1, 1, activation)
    lowered = RULES["CONV_2D"].lower(Op(context, options, specs, (spec((1, 1, 1, len(w))),)))
    return lowered(*arrays)[0]


def test_an_emulation_rounds_once_as_cudnn_does() -> None:
    """After sum, bias and clamp: only then do values that are too large become infinite."""
    got = emulated([2048, 1], [[1, 1], [32, 0], [32, 0]], [-2048, 0, -6e4], Act.RELU)
    assert got.dtype == np.float16
    np.testing.assert_array_equal(got.ravel(), [1, np.inf, 5536])  # of 1, 65536 and 5536


@pytest.mark.parametrize(("name", "depth"), [("DEPTHWISE_CONV_2D", 1), ("CONV_2D", 2)])
@pytest.mark.parametrize(("size", "filters"), [(32, 3), (300, 5)])  # a sum of taps, and cuDNN's
def test_groups_end_in_float32_on_a_gpu(name: str, depth: int, size: int, filters: int) -> None:
    """In the kernel after cuDNN's, which runs anyway: no infinity, and no rounded bias."""
    is_depthwise = name == "DEPTHWISE_CONV_2D"
    x = np.ones((1, size, size, 64), np.float32)
    x[0, 0, 0, 0] = 60000
    shape = (1, filters, filters, 64) if is_depthwise else (64, filters, filters, depth)
    w = np.ones(shape, np.float32)
    x[0, 1, 1, 0] = 60000  # 2 x 60000 is beyond float16
    bias = np.full(64, 2049, np.float32)
    bias[0] = 0
    specs = [TensorSpec("t", a.shape, a.dtype, const=None if a is x else a) for a in (x, w, bias)]
    options = (DepthwiseConv2DOptions if is_depthwise else Conv2DOptions)(SAME, 1, 1)
    context = LoweringContext(platform="gpu", precision=device_policy("float16"))
    lowered = RULES[name].lower(Op(context, options, specs, (spec(x.shape),)))
    ((y,),) = run_together([(lowered, [x, w, bias])])
    assert y.dtype == np.float32
    assert np.all(np.isfinite(y))
    assert y[0, 5, 5, -1] == filters * filters * depth + 2049


def spec(shape: tuple[int, ...], dtype: Any = np.float32, **details: Any) -> TensorSpec:
    return TensorSpec("w", shape, np.dtype(dtype), **details)


SCALE = scaled(0.5)
IMAGE, FILTER = spec((1, 6, 6, 4)), spec((8, 3, 3, 4))
OPTIONS = Conv2DOptions(SAME, 1, 1)
REFUSED = [
    (OPTIONS, spec((1, 6, 6, 4), np.float64), FILTER, "is float64, not one of"),
    (OPTIONS, spec((1, 6, 6, 4), np.int32), FILTER, "is int32, not one of"),
    (Conv2DOptions(SAME, 1, 1, Act.TANH), IMAGE, FILTER, "does not apply a fused TANH"),
    (Conv2DOptions(SAME, 1, 1, Act.SIGN_BIT), IMAGE, FILTER, "does not apply a fused SIGN_BIT"),
]
IMPOSSIBLE = [
    (OPTIONS, spec((6, 6, 4)), FILTER, "must have 4 dimensions"),
    (OPTIONS, spec((1, 0, 6, 4)), FILTER, "empty dimension"),
    (OPTIONS, IMAGE, spec((8, 3, 3, 0)), "empty dimension"),
    (OPTIONS, IMAGE, spec((8, 3, 3, 3)), "do not split into groups of 3"),
    (OPTIONS, IMAGE, spec((7, 3, 3, 2)), "do not split into groups of 2"),
    (OPTIONS, IMAGE, spec((9, 3, 3, 4)), "bias"),
    (Conv2DOptions(SAME, 0, 1), IMAGE, FILTER, "must be positive"),
    (Conv2DOptions(VALID, 1, 1, dilation_w_factor=0), IMAGE, FILTER, "must be positive"),
    (Conv2DOptions(VALID, 1, 1), IMAGE, spec((8, 8, 8, 4)), "does not fit into 6"),
]


def reason(name: str, options: Any, *inputs: TensorSpec) -> str:
    rule = RULES[name]
    return rule.reason(Op(LoweringContext(), options, inputs, (inputs[0],))) or ""


@pytest.mark.parametrize(("options", "x", "w", "said"), REFUSED + IMPOSSIBLE)
def test_refuses(options: Any, x: TensorSpec, w: TensorSpec, said: str) -> None:
    assert said in reason("CONV_2D", options, x, w, spec((8,)))


@pytest.mark.parametrize(("options", "x", "w", "said"), IMPOSSIBLE)
def test_impossible_shapes_are_a_value_error(
    options: Any, x: TensorSpec, w: TensorSpec, said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        KERNELS["CONV_2D"].shapes(options, (x, w, spec((8,))))


def test_refuses_depthwise_filters_of_other_forms() -> None:
    options = DepthwiseConv2DOptions(SAME, 1, 1)
    assert "[1, H, W, O]" in reason("DEPTHWISE_CONV_2D", options, IMAGE, spec((2, 3, 3, 4)))
    assert "groups" in reason("DEPTHWISE_CONV_2D", options, IMAGE, spec((1, 3, 3, 6)))
    assert "channels" in reason(
        "CONV_3D", Conv3DOptions(SAME, 1, 1, 1), spec((1, 4, 4, 4, 6)), spec((2, 2, 2, 3, 4))
    )


def test_a_fused_tanh_does_nothing_in_the_kernel() -> None:
    inputs = [f32(1, 3, 3, 2), const(f32(2, 1, 1, 2, seed=1)), const(f32(2, seed=2))]
    tanh, none = (
        Case("CONV_2D", act.name, inputs, Conv2DOptions(SAME, 1, 1, act))
        for act in (Act.TANH, Act.NONE)
    )
    tanh.check(tanh.run_reference(), none.run_reference())
    tanh.check(tanh.run_reference(), tanh.run_litert())


def test_the_reference_refuses_a_filter_without_its_scale() -> None:
    x = Arg(np.ones((1, 3, 3, 2), np.int8), quantization=SCALE)
    case = Case("CONV_2D", "int8", [x, const(np.ones((2, 1, 1, 2), np.int8))], OPTIONS)
    with pytest.raises(TypeError, match="int8 'in1' has no scale"):
        case.run_reference()


def test_constants_are_laid_out_ahead() -> None:
    case = conv("deep", *ALGORITHMS["deep"], PLACES["same"])
    lowered: Any = RULES["CONV_2D"].lower(case.op(LoweringContext()))
    x, w, b = case.arrays()
    with jax.enable_x64(True):
        prepared = lowered.prepare[1](w)
        assert prepared.shape == (3, 3, 20, 5)
        case.check([np.asarray(y) for y in lowered.run(x, prepared, b)], case.run_reference())


def random_shape(rng: np.random.Generator, *choices: Any) -> tuple[int, ...]:
    return tuple(int(rng.choice(values)) for values in choices)


def test_why_not_is_total(rng: np.random.Generator) -> None:
    channels, sizes, windows = (1, 2, 4), range(7), range(5)
    accepted = 0
    for _ in range(300):
        options = Conv2DOptions(
            Padding(rng.integers(2)),
            *random_shape(rng, (0, 1, 2, 3), (1, 2, 3)),
            Act.NONE,
            *random_shape(rng, (0, 1, 2), (1, 2)),
        )
        x = spec(random_shape(rng, range(3), sizes, sizes, channels))
        w = spec(random_shape(rng, channels, windows, windows, channels))
        try:
            shape = KERNELS["CONV_2D"].shapes(options, (x, w))[0]
        except ValueError:
            assert reason("CONV_2D", options, x, w)
            continue
        out = spec(shape or ())
        assert RULES["CONV_2D"].reason(Op(LoweringContext(), options, (x, w), (out,))) is None
        lowered = RULES["CONV_2D"].lower(Op(LoweringContext(), options, (x, w), (out,)))
        arrays = (jax.ShapeDtypeStruct(s.shape, s.dtype) for s in (x, w))
        assert jax.eval_shape(lowered, *arrays)[0].shape == out.shape
        accepted += 1
    assert accepted > 30
