import dataclasses
import math
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest

from jaxdelegate.op_lowering.convolution import algorithms as convolution_algorithms
from jaxdelegate.op_lowering.options import ActivationFunctionType as Act
from jaxdelegate.op_lowering.options import (
    Conv2DOptions,
    Conv3DOptions,
    DepthwiseConv2DOptions,
    ExplicitConv2DOptions,
    Padding,
    TensorType,
    TransposeConvOptions,
)
from jaxdelegate.op_lowering.registry import RULES
from jaxdelegate.op_lowering.rule import LoweringContext, Op
from jaxdelegate.op_lowering.spec import TensorSpec
from jaxdelegate.quant.params import Blockwise, Quantization, integer_range
from jaxdelegate.testing import Arg, Case
from tests.support.quantized import scaled

SAME, VALID = Padding.SAME, Padding.VALID
INT8, UINT8, INT16 = (np.dtype(t) for t in (np.int8, np.uint8, np.int16))
INT4 = np.dtype(ml_dtypes.int4)
CLAMPS = [Act.RELU, Act.RELU_N1_TO_1, Act.RELU6]
VERSIONS = {"CONV_2D": 8, "DEPTHWISE_CONV_2D": 6, "TRANSPOSE_CONV": 5}  # of the reference kernels
Shape = tuple[int, ...]


def integers(rng: np.random.Generator, dtype: Any, shape: Shape) -> np.ndarray:
    low, high = integer_range(np.dtype(dtype))
    return rng.integers(low, high, shape, endpoint=True).astype(dtype)


@dataclasses.dataclass(frozen=True)
class Numbers:
    """Which integers stand for which reals; `spread`: how much the filter's scales differ.

    `steps` is the output's scale in units that let sums fill its range about once.
    """

    x: np.dtype = INT8
    w: np.dtype = INT8
    x_zero: int = 0
    w_zero: int = 0
    y_zero: int = 0
    spread: float = 4.0
    steps: float = 1.0
    bias: Any = None
    bias_type: TensorType = TensorType.FLOAT32

    def tensors(
        self, rng: np.random.Generator, shapes: tuple[Shape, Shape], axis: int, products: int
    ) -> tuple[Arg, Arg, Arg, Quantization]:
        """Input, filter, bias, and the output's quantization."""
        x, w = shapes
        output_channels, x_scale = w[axis], np.float32(0.02)
        count = 1 if self.x == UINT8 or self.spread == 1 else output_channels
        w_scale = np.float32(np.geomspace(1 / self.spread, 1, count) * 0.01)
        sums = math.sqrt(products) * integer_range(self.w)[1] * self.steps
        y_scale = x_scale * w_scale.mean() * sums / 1.5
        bias = self.bias or (np.int64 if self.x == INT16 else np.int32)
        return (
            Arg(integers(rng, self.x, x), quantization=scaled(x_scale, self.x_zero)),
            Arg(integers(rng, self.w, w), True, quantization=scaled(w_scale, self.w_zero, axis)),
            Arg(
                rng.integers(-2000, 2000, output_channels).astype(bias),
                True,
                quantization=scaled(x_scale * w_scale),
            ),
            scaled(y_scale, self.y_zero),
        )


def conv(
    label: str, x: Shape, w: Shape, o: Conv2DOptions, n: Numbers = Numbers(), **details: Any
) -> Case:
    """`w` is [O, h, w, I]."""
    o = dataclasses.replace(o, quantized_bias_type=n.bias_type)
    return _case("CONV_2D", label, (x, w), 0, math.prod(w[1:]), o, n, details)


def depthwise(
    label: str,
    x: Shape,
    w: Shape,
    o: DepthwiseConv2DOptions,
    n: Numbers = Numbers(),
    **details: Any,
) -> Case:
    """`w` is [1, h, w, C * multiplier]."""
    o = dataclasses.replace(o, depth_multiplier=w[3] // x[3])
    return _case("DEPTHWISE_CONV_2D", label, (x, w), 3, math.prod(w[1:3]), o, n, details)


def transposed(
    label: str,
    x: Shape,
    w: Shape,
    out: tuple[int, int],
    o: TransposeConvOptions,
    n: Numbers = Numbers(),
    has_bias: bool = True,
    **details: Any,
) -> Case:
    """`w` is [O, h, w, I]."""
    o = dataclasses.replace(o, quantized_bias_type=n.bias_type)
    case = _case("TRANSPOSE_CONV", label, (x, w), 0, math.prod(w[1:]), o, n, details)
    image, filters, bias = case.inputs
    asked = Arg(np.array([x[0], *out, w[0]], np.int32), is_const=True)
    inputs = [asked, filters, image, bias][: 4 if has_bias else 3]
    return dataclasses.replace(case, inputs=inputs)


def _case(
    name: str,
    label: str,
    shapes: tuple[Shape, Shape],
    axis: int,
    products: int,
    o: Any,
    n: Numbers,
    details: dict[str, Any],
) -> Case:
    rng = np.random.default_rng(len(label) + sum(shapes[0]))
    *inputs, y = n.tensors(rng, shapes, axis, products)
    full = f"{n.x}x{n.w}-{label}"
    details = {"version": VERSIONS[name], "outputs": [n.x], "output_quantization": [y]} | details
    return Case(name, full, inputs, o, **details)


KINDS = {
    "int8": Numbers(x_zero=-7, y_zero=11),
    "uint8": Numbers(UINT8, UINT8, x_zero=121, w_zero=137, y_zero=90),
    "int16": Numbers(INT16),
    "int16-int32-bias": Numbers(INT16, bias=np.int32, bias_type=TensorType.INT32),
    "int4": Numbers(w=INT4, x_zero=3, y_zero=-5),
}
ODD = {  # what is at the end of a range
    "zero-points-low": Numbers(x_zero=-128, y_zero=-128),
    "zero-points-high": Numbers(x_zero=127, y_zero=127),
    "uint8-zero-points-low": Numbers(UINT8, UINT8),
    "uint8-zero-points-high": Numbers(UINT8, UINT8, x_zero=255, w_zero=255, y_zero=255),
    "saturates": Numbers(x_zero=5, steps=1e-5),  # a multiplier far above 1
    "vanishes": Numbers(x_zero=5, steps=1e4),
    "one-scale": Numbers(x_zero=5, spread=1),
    "scales-far-apart": Numbers(x_zero=5, spread=1e6),
    "int16-one-scale": Numbers(INT16, spread=1),
    "int16-scales-far-apart": Numbers(INT16, spread=1e6),
    "int16-vanishes": Numbers(INT16, steps=1e4),
}
PLACES = {
    "same": Conv2DOptions(SAME, 1, 1),
    "same-2": Conv2DOptions(SAME, 2, 2),
    "valid-3x2": Conv2DOptions(VALID, 2, 3),
    "same-dilated": Conv2DOptions(SAME, 1, 1, dilation_w_factor=3, dilation_h_factor=2),
}
ALGORITHMS = {
    "deep": ((2, 7, 6, 20), (5, 3, 3, 20)),
    "few": ((2, 8, 9, 3), (4, 3, 3, 3)),
    "gray": ((1, 9, 8, 1), (6, 5, 5, 1)),
    "pixel": ((2, 5, 7, 20), (6, 1, 1, 20)),
    "groups": ((2, 6, 5, 6), (9, 3, 3, 2)),
    "deep-groups": ((2, 6, 5, 32), (8, 3, 3, 16)),
    "depthwise": ((1, 6, 7, 6), (12, 3, 3, 1)),
}
CONV_2D = [
    *(
        conv(f"{place}-{algorithm}-{kind}", *ALGORITHMS[algorithm], PLACES[place], numbers)
        for kind, numbers in KINDS.items()
        for place, algorithm in (
            *(("same", algorithm) for algorithm in ALGORITHMS),
            ("same-2", "few"),
            ("valid-3x2", "groups"),
            ("same-dilated", "deep"),
        )
        if kind in ("int8", "uint8", "int16") or algorithm == "deep"
    ),
    *(
        conv(f"{label}-{algorithm}", *ALGORITHMS[algorithm], PLACES["same"], numbers)
        for label, numbers in ODD.items()
        for algorithm in (("few", "deep") if numbers.w_zero else ("few",))
    ),
    *(
        conv(f"{act.name}-{kind}", *ALGORITHMS["deep"], Conv2DOptions(SAME, 1, 1, act), KINDS[kind])
        for act in CLAMPS
        for kind in ("int8", "uint8", "int16")
    ),
    conv("int16-int4", *ALGORITHMS["deep"], PLACES["same"], Numbers(INT16, INT4)),
    conv("far-deep", (1, 2, 2, 3000), (3, 1, 1, 3000), PLACES["same"], KINDS["int8"]),
    conv("far-deep-int16", (1, 2, 2, 3000), (3, 1, 1, 3000), PLACES["same"], KINDS["int16"]),
    conv("empty-batch", (0, 5, 5, 2), (3, 3, 3, 2), PLACES["same"], litert="refuses no elements"),
]
DEPTHWISE = [
    *(
        depthwise(
            f"{place}-{multiplier}-{kind}",
            (2, 8, 9, 4),
            (1, 3, 3, 4 * multiplier),
            DepthwiseConv2DOptions(
                o.padding, o.stride_w, o.stride_h, 0, Act.NONE, o.dilation_w_factor
            ),
            numbers,
        )
        for kind, numbers in KINDS.items()
        if kind != "int16-int32-bias"
        for place, multiplier in (("same", 1), ("same-2", 2), ("valid-3x2", 1), ("same-dilated", 2))
        for o in [PLACES[place]]
    ),
    *(
        depthwise(label, (1, 6, 6, 4), (1, 3, 3, 4), DepthwiseConv2DOptions(SAME, 1, 1), numbers)
        for label, numbers in ODD.items()
    ),
    *(
        depthwise(
            f"{kind}-{act.name}",
            (1, 6, 6, 4),
            (1, 3, 3, 4),
            DepthwiseConv2DOptions(SAME, 1, 1, 0, act),
            KINDS[kind],
        )
        for act in CLAMPS
        for kind in ("int8", "uint8", "int16")
    ),
    depthwise(
        "int16-large",
        (1, 18, 18, 2),
        (1, 16, 16, 2),
        DepthwiseConv2DOptions(SAME, 1, 1),
        KINDS["int16"],
    ),
    depthwise(
        "int16-int4",
        (1, 6, 6, 4),
        (1, 3, 3, 4),
        DepthwiseConv2DOptions(SAME, 1, 1),
        Numbers(INT16, INT4),
        litert="the kernel reads packed weights as bytes",
    ),
]
TRANSPOSED = [
    *(
        transposed(f"{label}-{kind}", (2, 4, 3, 5), (6, *size), out, o, numbers)
        for kind, numbers in KINDS.items()
        if kind != "int4"
        for label, size, out, o in (
            ("same", (3, 3, 5), (8, 6), TransposeConvOptions(SAME, 2, 2)),
            ("same-odd", (3, 3, 5), (7, 5), TransposeConvOptions(SAME, 2, 2)),
            ("valid", (2, 3, 5), (11, 5), TransposeConvOptions(VALID, 1, 3)),
            ("apart", (2, 2, 5), (12, 9), TransposeConvOptions(SAME, 3, 3)),
            ("stride-1", (3, 2, 5), (4, 3), TransposeConvOptions(SAME, 1, 1)),
        )
    ),
    *(
        transposed(label, (1, 4, 3, 5), (3, 3, 3, 5), (8, 6), TransposeConvOptions(SAME, 2, 2), n)
        for label, n in ODD.items()
        if "far" not in label
    ),
    *(
        transposed(
            act.name,
            (1, 4, 3, 5),
            (3, 3, 3, 5),
            (8, 6),
            TransposeConvOptions(SAME, 2, 2, act),
            KINDS["int8"],
        )
        for act in CLAMPS
    ),
    transposed(
        "no-bias",
        (1, 4, 3, 5),
        (3, 3, 3, 5),
        (8, 6),
        TransposeConvOptions(SAME, 2, 2),
        KINDS["int8"],
        has_bias=False,
    ),
]
COMPILED_IN_PART = True
CASES = CONV_2D + DEPTHWISE + TRANSPOSED


def late(case: Case) -> Case:
    """The case with a filter that is known only at run time."""
    position = 1
    inputs = list(case.inputs)
    inputs[position] = dataclasses.replace(inputs[position], is_const=False)
    return dataclasses.replace(case, inputs=inputs, label=f"late-{case.label}")


LOWERED = [
    late(case)
    for case in CASES
    if case.label.endswith(("deep-uint8", "deep-int16", "groups-uint8", "few-uint8", "1-uint8"))
]


ON_GPU = [c for c in CASES if "-same-f" in c.label]


def test_large_images_are_not_laid_out_as_patches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convolution_algorithms, "_PATCHES", 0)
    case = conv("deep", *ALGORITHMS["deep"], PLACES["same-2"], KINDS["uint8"])
    case.check(case.run_lowered(RULES[case.name]), case.run_reference())


@pytest.mark.parametrize("kind", ["int8", "uint8", "int16"])
def test_large_depthwise_filters(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convolution_algorithms, "_DEPTHWISE_TAPS", 8)
    monkeypatch.setattr(convolution_algorithms, "_GROUPED_TAPS", 8)
    o = DepthwiseConv2DOptions(SAME, 1, 1)
    case = depthwise("large", (1, 6, 6, 2), (1, 3, 3, 4), o, KINDS[kind])
    case.check(case.run_lowered(RULES[case.name]), case.run_reference())


def random_conv(rng: np.random.Generator, numbers: Numbers, seed: int) -> Case:
    groups, depth, per_group = (int(n) for n in rng.integers(1, 5, 3))
    height, width, h, w = (int(n) for n in rng.integers((4, 4, 1, 1), (9, 9, 4, 4)))
    sizes = [int(n) for n in rng.integers(1, 4, 2)], [int(n) for n in rng.choice([1, 1, 2], 2)]
    act = rng.choice([Act.NONE, *CLAMPS])
    o = Conv2DOptions(SAME, *sizes[0], Act(act), *sizes[1])
    shapes = (2, height, width, groups * depth), (groups * per_group, h, w, depth)
    numbers = dataclasses.replace(numbers, steps=float(np.exp(rng.normal())))
    return conv(f"random-{seed}", *shapes, o, numbers)


@pytest.mark.litert
@pytest.mark.parametrize("kind", KINDS)
def test_random_convolutions_equal_litert(kind: str, rng: np.random.Generator) -> None:
    for seed in range(20):
        case = random_conv(rng, KINDS[kind], seed)
        reference = case.run_reference()
        case.check(reference, case.run_litert())
        if seed < 3:
            case.check(case.run_lowered(RULES[case.name]), reference)


def test_filters_stay_int8() -> None:
    case = conv("deep", *ALGORITHMS["deep"], PLACES["same"], KINDS["uint8"])
    lowered: Any = RULES["CONV_2D"].lower(case.op(LoweringContext()))
    x, w, b = case.arrays()
    prepared = lowered.prepare[1](w)
    assert (prepared.dtype, prepared.shape) == (np.int8, (1, 180, 5))
    with jax.enable_x64(True):
        case.check([np.asarray(jax.jit(lowered.run)(x, prepared, b)[0])], case.run_reference())


def spec(shape: Shape, dtype: Any, scale: Any = 0.1, zero: int = 0, axis: int = 0) -> TensorSpec:
    q = None if scale is None else scaled(scale, zero, axis)
    return TensorSpec("t", shape, np.dtype(dtype), q)


def tensors(**replaced: TensorSpec) -> tuple[TensorSpec, ...]:
    known = {
        "x": spec((1, 6, 6, 4), np.int8),
        "w": spec((8, 3, 3, 4), np.int8),
        "b": spec((8,), np.int32, 0.01),
        "y": spec((1, 6, 6, 8), np.int8),
    }
    return tuple((known | replaced).values())


WIDE = {"x": spec((1, 6, 6, 4), np.int16), "y": spec((1, 6, 6, 8), np.int16)}
BYTES = {
    "x": spec((1, 6, 6, 4), np.uint8),
    "w": spec((8, 3, 3, 4), np.uint8),
    "y": spec((1, 6, 6, 8), np.uint8),
}
BLOCKS = Quantization(np.zeros(0, np.float32), np.zeros(0, np.int64), blockwise=Blockwise(0, -1, 2))
REFUSED: list[tuple[dict[str, TensorSpec], str]] = [
    ({"x": spec((1, 6, 6, 4), np.int32)}, "quantized int32"),
    ({"x": spec((1, 6, 6, 4), np.int8, [0.1] * 4, axis=3)}, "4 scales"),
    ({"x": spec((1, 6, 6, 4), np.int8, 0.0)}, "the scale of"),
    ({"x": spec((1, 6, 6, 4), np.int8, 0.1, 200)}, "zero point"),
    ({"y": spec((1, 6, 6, 8), np.int16)}, "quantized int16"),
    ({"y": spec((1, 6, 6, 8), np.int8, None)}, "without a scale"),
    ({"w": spec((8, 3, 3, 4), np.uint8)}, "quantized uint8"),
    ({"w": spec((8, 3, 3, 4), np.int8, None)}, "without a scale"),
    ({"w": spec((8, 3, 3, 4), np.int8, [0.1] * 4, axis=3)}, "do not fit its 8 channels"),
    ({"w": spec((8, 3, 3, 4), np.int8, [0.1] * 8, axis=1)}, "do not fit its 8 channels"),
    ({"w": spec((8, 3, 3, 4), np.int8, [-0.1] * 8)}, "is negative or not finite"),
    ({"w": spec((8, 3, 3, 4), np.int8, 0.1, 3)}, "has zero points"),
    ({"w": TensorSpec("t", (8, 3, 3, 4), INT8, BLOCKS)}, "block"),
    ({"b": spec((8,), np.int64)}, "int64"),
    ({"b": spec((8,), np.int32, 0.01, 3)}, "has a zero point"),
    ({"y": spec((1, 6, 6, 8), np.int8, 1e-30)}, "sums are shifted by"),
    ({**WIDE, "x": spec((1, 6, 6, 4), np.int16, 0.1, 4)}, "the kernel expects 0"),
    ({**WIDE, "y": spec((1, 6, 6, 8), np.int16, 1e-5)}, "sums are shifted by 10 bits"),
    ({**BYTES, "w": spec((8, 3, 3, 4), np.uint8, [0.1] * 8)}, "8 scales"),
    ({**BYTES, "b": spec((8,), np.int32, 0.3)}, "not that of the products"),
    ({**BYTES, "b": spec((8,), np.int32, None), "y": spec((1, 6, 6, 8), np.uint8)}, "not that of"),
]
OPTIONS = Conv2DOptions(SAME, 1, 1)


def reason(name: str, o: Any, x: TensorSpec, w: TensorSpec, b: TensorSpec, y: TensorSpec) -> str:
    return RULES[name].reason(Op(LoweringContext(quant_mode="integer"), o, (x, w, b), (y,))) or ""


@pytest.mark.parametrize(("replaced", "said"), REFUSED)
def test_refuses(replaced: dict[str, TensorSpec], said: str) -> None:
    assert said in reason("CONV_2D", OPTIONS, *tensors(**replaced))


@pytest.mark.parametrize(
    ("bias_type", "dtype", "said"),
    [
        (TensorType.INT32, np.int64, "quantized_bias_type INT32"),
        (TensorType.INT64, np.int32, "quantized_bias_type INT64"),
        (TensorType.INT8, np.int64, "quantized_bias_type is INT8"),
    ],
)
def test_refuses_other_biases(bias_type: TensorType, dtype: Any, said: str) -> None:
    o = dataclasses.replace(OPTIONS, quantized_bias_type=bias_type)
    bias = spec((8,), dtype, 0.01)
    assert said in reason("CONV_2D", o, *tensors(**WIDE, b=bias))
    assert not reason("CONV_2D", OPTIONS, *tensors(**WIDE, b=bias))


def test_refuses_sums_beyond_int32_pieces() -> None:
    x, w = spec((1, 1, 1, 1 << 17), np.int16), spec((8, 1, 1, 1 << 17), np.int8)
    said = reason("CONV_2D", OPTIONS, x, w, spec((8,), np.int64), spec((1, 1, 1, 8), np.int16))
    assert said == "sums of 131072 products of int16"


def test_convolutions_in_3d_have_no_integer_kernel() -> None:
    x, w = spec((1, 4, 4, 4, 2), np.int8), spec((2, 2, 2, 2, 3), np.int8)
    b, y = spec((3,), np.int32), spec((1, 4, 4, 4, 3), np.int8)
    assert "no kernel for" in reason("CONV_3D", Conv3DOptions(SAME, 1, 1, 1), x, w, b, y)


def test_the_reference_refuses_other_dtypes() -> None:
    case = conv("deep", *ALGORITHMS["deep"], PLACES["same"], KINDS["int8"])
    mixed = dataclasses.replace(case, outputs=[np.int16])
    with pytest.raises(TypeError, match="no kernel for quantized int16"):
        mixed.run_reference()
    shifted = conv("deep", *ALGORITHMS["deep"], PLACES["same"], Numbers(INT16, x_zero=3))
    with pytest.raises(ValueError, match="zero point of int16"):
        shifted.run_reference()


@pytest.mark.parametrize("window", [1, 3])
@pytest.mark.parametrize("kind", ["int8", "uint8", "int16"])
def test_padding_that_is_written_out(kind: str, window: int) -> None:
    """The zero point surrounds the image."""
    numbers = KINDS[kind]
    case = conv("padded", (2, 7, 6, 5), (4, window, window, 5), PLACES["valid-3x2"], numbers)
    pads = ((1, 2), (0, 1))
    x, *others = case.inputs
    assert x is not None
    around = np.pad(x.value, ((0, 0), *pads, (0, 0)), constant_values=numbers.x_zero)
    padded = dataclasses.replace(
        case, inputs=[dataclasses.replace(x, value=around.astype(x.value.dtype)), *others]
    )
    context = LoweringContext(op_version=case.version, quant_mode="integer")
    fields = {f.name: getattr(case.options, f.name) for f in dataclasses.fields(Conv2DOptions)}
    rule, outputs = RULES["CONV_2D"], padded.specs()[1]
    lowered = rule.lower(
        Op(context, ExplicitConv2DOptions(**fields, pads=pads), case.specs()[0], outputs)
    )
    with jax.enable_x64(True):
        got = jax.jit(lambda x: lowered(x, *case.arrays()[1:]))(x.value)
    case.check([np.asarray(got[0])], padded.run_reference())
