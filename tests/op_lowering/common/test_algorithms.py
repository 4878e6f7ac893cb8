"""Operators with several algorithms: every one computes the same; keys of choices."""

import contextlib
import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdelegate as jd
from jaxdelegate.op_lowering.common.algorithms import chosen, operator_key
from jaxdelegate.op_lowering.options import ActivationFunctionType as Act
from jaxdelegate.op_lowering.options import (
    Conv2DOptions,
    Conv3DOptions,
    Convolution2DTransposeBiasOptions,
    DepthwiseConv2DOptions,
    FullyConnectedOptions,
    Padding,
    Pool2DOptions,
    Pool3DOptions,
    TransposeConvOptions,
)
from jaxdelegate.op_lowering.registry import RULES
from jaxdelegate.op_lowering.rule import LoweringContext
from jaxdelegate.testing import Arg, Case, const, f32, of
from jaxdelegate.testing.case import run_together
from tests.support.quantized import scaled

SAME, VALID = Padding.SAME, Padding.VALID


def mode_of(case: Case) -> Any:
    """Integer mode where that is meant: short convolutions of floats have one algorithm there."""
    specs = [spec for spec in (*case.specs()[0], *case.specs()[1]) if spec is not None]
    return "integer" if any(spec.is_quantized for spec in specs) else "float_view"


def conv(label: str, x: tuple[int, ...], w: tuple[int, ...], o: Conv2DOptions) -> Case:
    """`w` is [O, h, w, I]."""
    inputs = [f32(*x), const(f32(*w, seed=1)), const(f32(w[0], seed=2))]
    return Case("CONV_2D", label, inputs, o, version=3, accumulated=math.prod(w[1:]))


def depthwise(label: str, x: tuple[int, ...], w: tuple[int, ...], **more: Any) -> Case:
    """`w` is [h, w, C * multiplier]."""
    o = DepthwiseConv2DOptions(SAME, depth_multiplier=w[2] // x[3], **more)
    inputs = [f32(*x), const(f32(1, *w, seed=1)), const(f32(w[2], seed=2))]
    return Case("DEPTHWISE_CONV_2D", label, inputs, o, version=2, accumulated=math.prod(w[:2]))


def conv_3d(label: str, x: tuple[int, ...], w: tuple[int, ...], o: Conv3DOptions) -> Case:
    inputs = [f32(*x), const(f32(*w, seed=1)), const(f32(w[4], seed=2))]
    return Case("CONV_3D", label, inputs, o, accumulated=math.prod(w[:4]))


def transposed(
    label: str, out: tuple[int, ...], w: tuple[int, ...], x: tuple[int, ...], stride: int, how: Any
) -> Case:
    o = TransposeConvOptions(how, stride, stride, Act.RELU)
    inputs = [const(out, np.int32), const(f32(*w, seed=1)), f32(*x), const(f32(w[0], seed=2))]
    k = math.prod(w[1:])
    return Case("TRANSPOSE_CONV", label, inputs, o, [np.float32], version=3, accumulated=k)


def transposed_bias(label: str, x: tuple[int, ...], w: tuple[int, ...], stride: int) -> Case:
    o = Convolution2DTransposeBiasOptions(padding=SAME, stride_w=stride, stride_h=stride)
    inputs = [f32(*x), const(f32(*w, seed=1)), const(f32(w[0], seed=2))]
    name = "Convolution2DTransposeBias"
    return Case(name, label, inputs, o, accumulated=math.prod(w[1:]))


def pool(name: str, label: str, x: tuple[int, ...], size: int, stride: int, how: Any) -> Case:
    o = Pool2DOptions(how, stride, stride, size, size)
    return Case(name, label, [f32(*x)], o, accumulated=size * size)


def pool_3d(name: str, x: tuple[int, ...]) -> Case:
    o = Pool3DOptions(padding="SAME", ksize=(1, 2, 2, 2, 1), strides=(1, 2, 1, 2, 1))
    return Case(name, "2x2x2", [f32(*x)], o, accumulated=8)


def product(label: str, x: tuple[int, ...], w: tuple[int, ...]) -> Case:
    inputs = [f32(*x), const(f32(*w, seed=1)), const(f32(w[0], seed=2))]
    return Case("FULLY_CONNECTED", label, inputs, FullyConnectedOptions(Act.RELU), accumulated=w[1])


def quantized(shape: tuple[int, ...], seed: int, scale: float, zero: int, low: int) -> Arg:
    q = scaled(scale, zero)
    arg = of(np.int8, *shape, low=low, high=127, seed=seed)
    return dataclasses.replace(arg, quantization=q, is_const=seed > 0)


def conv_int8(label: str, x: tuple[int, ...], w: tuple[int, ...], o: Conv2DOptions) -> Case:
    inputs = [quantized(x, 0, 0.02, 5, -128), quantized(w, 1, 0.01, 0, -127)]
    scales = [scaled(0.1, -3)]
    return Case("CONV_2D", label, inputs, o, version=3, output_quantization=scales)


def depthwise_int8(label: str, x: tuple[int, ...], w: tuple[int, ...]) -> Case:
    o = DepthwiseConv2DOptions(SAME, 2, 2, depth_multiplier=w[2] // x[3])
    inputs = [quantized(x, 0, 0.02, 5, -128), quantized((1, *w), 1, 0.01, 0, -127)]
    scales = [scaled(0.1, -3)]
    return Case("DEPTHWISE_CONV_2D", label, inputs, o, version=3, output_quantization=scales)


def conv_dynamic_range(
    label: str, x: tuple[int, ...], w: tuple[int, ...], o: Conv2DOptions
) -> Case:
    inputs = [f32(*x), quantized(w, 1, 0.01, 0, -127)]
    return Case("CONV_2D", label, inputs, o, version=3, accumulated=math.prod(w[1:]))


CHOICES = [
    conv("3x3", (2, 9, 8, 5), (7, 3, 3, 5), Conv2DOptions(SAME, 1, 1, Act.RELU)),
    conv("3x3-by-2", (1, 9, 8, 3), (8, 3, 3, 3), Conv2DOptions(SAME, 2, 2, Act.RELU6)),
    conv("3x3-valid", (1, 7, 6, 4), (5, 3, 3, 4), Conv2DOptions(VALID, 1, 1)),
    conv("valid", (1, 7, 7, 2), (4, 3, 2, 2), Conv2DOptions(VALID, 2, 1)),
    conv("dilated", (1, 11, 9, 3), (4, 3, 3, 3), Conv2DOptions(SAME, 1, 1, Act.NONE, 2, 2)),
    conv("pointwise", (2, 5, 4, 6), (8, 1, 1, 6), Conv2DOptions(SAME, 1, 1, Act.RELU)),
    conv("pointwise-by-2", (2, 5, 4, 6), (8, 1, 1, 6), Conv2DOptions(VALID, 2, 2)),
    conv("grouped", (2, 6, 5, 8), (6, 3, 3, 4), Conv2DOptions(SAME, 1, 1)),
    conv("grouped-pointwise", (1, 6, 5, 8), (12, 1, 1, 2), Conv2DOptions(SAME, 1, 1)),
    depthwise("3x3", (2, 7, 6, 5), (3, 3, 5), stride_w=1, stride_h=1),
    depthwise("5x5-by-2", (1, 9, 8, 4), (5, 5, 4), stride_w=2, stride_h=2),
    depthwise("multiplier", (1, 6, 6, 3), (3, 3, 6), stride_w=1, stride_h=1),
    depthwise("blocks", (2, 7, 6, 32), (3, 5, 32), stride_w=1, stride_h=1),
    depthwise("blocks-by-2", (1, 9, 8, 192), (3, 3, 192), stride_w=2, stride_h=2),
    conv_3d("3x3x3", (1, 4, 5, 6, 2), (3, 3, 3, 2, 4), Conv3DOptions(SAME, 1, 1, 1)),
    conv_3d("pointwise", (1, 4, 5, 6, 3), (1, 1, 1, 3, 4), Conv3DOptions(SAME, 1, 1, 1)),
    transposed("apart", (1, 8, 6, 4), (4, 2, 2, 3), (1, 4, 3, 3), 2, SAME),
    transposed("overlapping", (2, 8, 6, 4), (4, 3, 3, 3), (2, 4, 3, 3), 2, SAME),
    transposed("valid", (1, 9, 7, 2), (2, 3, 3, 4), (1, 4, 3, 4), 2, VALID),
    transposed("gaps", (1, 12, 9, 2), (2, 2, 2, 4), (1, 4, 3, 4), 3, SAME),
    transposed_bias("3x3", (1, 4, 5, 3), (2, 3, 3, 3), 2),
    transposed_bias("2x2", (1, 4, 5, 3), (2, 2, 2, 3), 2),
    pool("MAX_POOL_2D", "3x3-by-2", (2, 9, 8, 5), 3, 2, SAME),
    pool("MAX_POOL_2D", "2x2", (1, 8, 6, 5), 2, 2, VALID),
    pool("AVERAGE_POOL_2D", "3x3", (2, 7, 8, 3), 3, 1, SAME),
    pool("AVERAGE_POOL_2D", "global", (2, 7, 7, 3), 7, 7, VALID),
    pool("L2_POOL_2D", "2x2", (1, 7, 6, 3), 2, 2, SAME),
    pool_3d("AvgPool3D", (1, 4, 5, 6, 3)),
    pool_3d("MaxPool3D", (1, 4, 5, 6, 3)),
    product("rows", (5, 12), (7, 12)),
    product("row", (1, 12), (7, 12)),
    conv_int8("int8-3x3", (2, 9, 8, 5), (7, 3, 3, 5), Conv2DOptions(SAME, 1, 1, Act.RELU)),
    conv_int8("int8-grouped", (1, 7, 6, 4), (6, 3, 3, 2), Conv2DOptions(SAME, 2, 2)),
    conv_int8("int8-pointwise", (2, 5, 4, 6), (8, 1, 1, 6), Conv2DOptions(SAME, 1, 1)),
    depthwise_int8("int8-3x3", (2, 7, 6, 5), (3, 3, 5)),
    conv_dynamic_range("hybrid", (2, 6, 5, 4), (3, 3, 3, 4), Conv2DOptions(SAME, 1, 1)),
]


def algorithms_of(case: Case, platform: str) -> Mapping[str, Any]:
    rule = RULES[case.name]
    context = LoweringContext(platform=platform, quant_mode=mode_of(case))  # type: ignore[arg-type]
    return rule.algorithms(case.op(context)) if rule.algorithms is not None else {}


@pytest.mark.parametrize("case", CHOICES, ids=str)
def test_every_algorithm_computes_the_same(case: Case) -> None:
    names = dict.fromkeys((*algorithms_of(case, "cpu"), *algorithms_of(case, "gpu")))
    context = LoweringContext(op_version=case.version, quant_mode=mode_of(case))
    calls = [
        case.lowered_call(RULES[case.name], dataclasses.replace(context, algorithm=algorithm))
        for algorithm in names
    ]
    want = case.run_reference()
    for algorithm, got in zip(names, run_together(calls), strict=True):
        with annotated(algorithm):
            case.check(got, want)


@contextlib.contextmanager
def annotated(algorithm: str) -> Iterator[None]:
    try:
        yield
    except AssertionError as error:
        error.add_note(f"algorithm {algorithm!r}")
        raise


@pytest.mark.parametrize("case", CHOICES, ids=str)
def test_the_default_comes_first(case: Case) -> None:
    """On each platform, the first algorithm of the list runs without a choice."""
    assert len(algorithms_of(case, "cpu")) > 1
    for platform in ("cpu", "gpu"):
        context = LoweringContext(platform=platform, quant_mode=mode_of(case))  # type: ignore[arg-type]
        named = dataclasses.replace(context, algorithm=next(iter(algorithms_of(case, platform))))
        texts = [lowered_text(case, c) for c in (context, named)]
        assert texts[0] == texts[1]


def lowered_text(case: Case, context: LoweringContext) -> str:
    lowered = RULES[case.name].lower(case.op(context))
    with jax.enable_x64(True):
        arrays = [None if a is None else jnp.asarray(a) for a in case.arrays()]
        return str(jax.make_jaxpr(lambda: lowered(*arrays))())


def test_algorithms_differ() -> None:
    """A name that changes nothing would be measured in vain."""
    case = CHOICES[0]
    contexts = [LoweringContext(algorithm=algorithm) for algorithm in algorithms_of(case, "cpu")]
    texts = {lowered_text(case, context) for context in contexts}
    assert len(texts) == len(contexts) >= 3


def test_an_unknown_name_is_the_default() -> None:
    algorithms = {"a": 1, "b": 2}
    assert [chosen(algorithms, name) for name in ("a", "b", "gone", None)] == [1, 2, 1, 1]


def test_what_never_pays_is_not_offered() -> None:
    large = (1, 512, 512, 64)
    case = conv("large", large, (8, 5, 5, 64), Conv2DOptions(SAME, 1, 1))
    # Neither 1600 terms nor 1.6 GB of patches.
    assert list(algorithms_of(case, "gpu")) == ["xla_units_first"]


@pytest.mark.parametrize(
    ("case", "first"),
    [
        (
            depthwise("wide", (1, 7, 7, 960), (5, 5, 960), stride_w=1, stride_h=1),
            "tap_sum_by_block",
        ),
        (depthwise("narrow", (1, 28, 28, 240), (5, 5, 240), stride_w=1, stride_h=1), "tap_sum"),
        (depthwise("uneven", (1, 7, 7, 1000), (5, 5, 1000), stride_w=1, stride_h=1), "tap_sum"),
        (
            conv("mostly-writing", (1, 150, 150, 8), (48, 1, 1, 8), Conv2DOptions(SAME, 1, 1)),
            "tap_sum",
        ),
        (conv("pointwise", (1, 75, 75, 8), (48, 1, 1, 8), Conv2DOptions(SAME, 1, 1)), "dot"),
        (conv("valid-rgb", (1, 99, 99, 3), (32, 3, 3, 3), Conv2DOptions(VALID, 2, 2)), "tap_sum"),
    ],
    ids=str,
)
def test_what_a_cpu_runs_by_default(case: Case, first: str) -> None:
    assert next(iter(algorithms_of(case, "cpu"))) == first


# ---- keys


def key_of(case: Case, **context: Any) -> str:
    return operator_key(case.name, case.op(LoweringContext(**context)))


@pytest.mark.usefixtures("bfloat16_dots")
def test_keys_depend_on_geometry_and_context_but_not_on_values() -> None:
    def make(h: int = 9, stride: int = 1, seed: int = 0) -> Case:
        case = conv("", (1, h, 8, 3), (4, 3, 3, 3), Conv2DOptions(SAME, stride, stride))
        w = const(f32(4, 3, 3, 3, seed=seed))
        return dataclasses.replace(case, inputs=[case.inputs[0], w, case.inputs[2]])

    key = key_of(make())
    assert key == key_of(make(seed=7))
    bfloat16 = jd.JaxDelegate(compute_dtype="bfloat16").lowering_context.precision
    others = [
        key_of(make(h=10)),
        key_of(make(stride=2)),
        key_of(make(), platform="gpu"),
        key_of(make(), quant_mode="integer"),
        key_of(make(), precision=bfloat16),
    ]
    assert len({key, *others}) == 1 + len(others)
