import dataclasses
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from jaxdelegate.op_lowering.options import ActivationFunctionType as Act
from jaxdelegate.op_lowering.options import (
    Conv2DOptions,
    Conv3DOptions,
    DepthwiseConv2DOptions,
    Padding,
    TransposeConvOptions,
)
from jaxdelegate.op_lowering.registry import RULES
from jaxdelegate.op_lowering.rule import LoweringContext, Op
from jaxdelegate.op_lowering.spec import TensorSpec
from jaxdelegate.quant.params import integer_range
from jaxdelegate.testing import Arg, Case, Tolerance
from tests.support.case_groups import CaseGroup, first_in_groups
from tests.support.quantized import scaled

SAME, VALID = Padding.SAME, Padding.VALID
INT8, UINT8 = np.dtype(np.int8), np.dtype(np.uint8)
INT4 = np.dtype(ml_dtypes.int4)
CLAMPS = [Act.RELU, Act.RELU_N1_TO_1, Act.RELU6]
EXACT: dict[str, Any] = {
    "tolerance": Tolerance(),
    "because": "every step is rounded as the kernel rounds it",
}
Shape = tuple[int, ...]


def images(shape: Shape) -> Arg:
    """Images of very different extents and means."""
    rng = np.random.default_rng(shape)
    extents = np.exp(rng.normal(size=(shape[0], 1, 1, 1)) * 2)
    values = (rng.normal(size=shape) + rng.normal(size=extents.shape)) * extents
    return Arg(values.astype(np.float32))


def filters(dtype: np.dtype, shape: Shape, axis: int, by_channel: bool) -> Arg:
    """Without the lowest integer, which the kernels for x86 take for another."""
    low, high = integer_range(INT8 if dtype == UINT8 else dtype, narrow=True)
    values = np.random.default_rng(shape).integers(low, high, shape, endpoint=True)
    stored = values.astype(np.int8).view(np.uint8) if dtype == UINT8 else values.astype(dtype)
    scale = np.geomspace(0.001, 0.1, shape[axis]) if by_channel else 0.01
    return Arg(stored, is_const=True, quantization=scaled(scale, axis=axis))


def bias(count: int) -> Arg:
    return Arg(np.random.default_rng(count).normal(size=count).astype(np.float32), is_const=True)


def conv(
    label: str,
    x: Shape,
    w: Shape,
    o: Conv2DOptions,
    dtype: np.dtype = INT8,
    *,
    by_channel: bool = True,
    **details: Any,
) -> Case:
    """`w` is [O, h, w, I]."""
    inputs = [images(x), filters(dtype, w, 0, by_channel), bias(w[0])]
    label = f"{dtype}-{'channels' if by_channel else 'one'}-{label}"
    return Case("CONV_2D", label, inputs, o, **({"version": 8} | EXACT | details))


def depthwise(label: str, x: Shape, w: Shape, o: DepthwiseConv2DOptions, **details: Any) -> Case:
    """`w` is [1, h, w, C * multiplier]."""
    o = dataclasses.replace(o, depth_multiplier=w[3] // x[3])
    inputs = [images(x), filters(INT8, w, 3, True), bias(w[3])]
    return Case("DEPTHWISE_CONV_2D", label, inputs, o, **({"version": 6} | EXACT | details))


def transposed(label: str, out: Shape, o: TransposeConvOptions, by_channel: bool = True) -> Case:
    asked = Arg(np.array(out, np.int32), is_const=True)
    w = filters(INT8, (out[3], 3, 2, 5), 0, by_channel)
    inputs = [asked, w, images((out[0], 4, 3, 5)), bias(out[3])]
    return Case("TRANSPOSE_CONV", label, inputs, o, outputs=[np.float32], version=5, **EXACT)


PLACES = {
    "same": Conv2DOptions(SAME, 1, 1),
    "same-2": Conv2DOptions(SAME, 2, 2),
    "valid-3x2": Conv2DOptions(VALID, 2, 3),
    "same-dilated": Conv2DOptions(SAME, 1, 1, dilation_w_factor=3, dilation_h_factor=2),
}
ALGORITHMS = {
    "deep": ((2, 7, 6, 20), (5, 3, 3, 20)),
    "few": ((2, 8, 9, 3), (4, 3, 3, 3)),
    "pixel": ((2, 5, 7, 20), (6, 1, 1, 20)),
    "groups": ((2, 6, 5, 6), (9, 3, 3, 2)),
    "deep-groups": ((2, 6, 5, 32), (8, 3, 3, 16)),
}
CASES = [
    *(conv(algorithm, *shapes, PLACES["same"]) for algorithm, shapes in ALGORITHMS.items()),
    *(
        conv(f"{place}-{algorithm}", *ALGORITHMS[algorithm], o, by_channel=by_channel)
        for place, o in PLACES.items()
        for algorithm in ("deep", "few")
        for by_channel in (False, True)
    ),
    *(
        conv(algorithm, *ALGORITHMS[algorithm], PLACES["same"], dtype, by_channel=by_channel)
        for dtype, by_channel in ((UINT8, False), (INT4, False), (INT4, True))
        for algorithm in ("deep", "few", "pixel")
    ),
    *(conv(act.name, *ALGORITHMS["deep"], Conv2DOptions(SAME, 1, 1, act)) for act in CLAMPS),
    conv(
        "one-scale-groups",
        *ALGORITHMS["groups"],
        PLACES["same"],
        by_channel=False,
        litert="the kernel reads scales beyond the only one",
    ),
    conv("no-images", (0, 5, 5, 2), (3, 3, 3, 2), PLACES["same"], litert="refuses no elements"),
    *(
        depthwise(
            f"{place}-{multiplier}",
            (2, 8, 9, 4),
            (1, 3, 3, 4 * multiplier),
            DepthwiseConv2DOptions(
                o.padding, o.stride_w, o.stride_h, 0, Act.NONE, o.dilation_w_factor
            ),
        )
        for place, o in PLACES.items()
        for multiplier in (1, 2)
    ),
    *(
        depthwise(act.name, (1, 6, 6, 4), (1, 3, 3, 4), DepthwiseConv2DOptions(SAME, 1, 1, 0, act))
        for act in CLAMPS
    ),
    transposed("same", (2, 8, 6, 7), TransposeConvOptions(SAME, 2, 2)),
    transposed("valid", (2, 12, 4, 7), TransposeConvOptions(VALID, 1, 3)),
    transposed("one-scale", (1, 8, 6, 7), TransposeConvOptions(SAME, 2, 2), by_channel=False),
    *(transposed(a.name, (1, 8, 6, 7), TransposeConvOptions(SAME, 2, 2, a)) for a in CLAMPS),
]


def late(case: Case) -> Case:
    """The case with a filter that is known only at run time."""
    inputs = list(case.inputs)
    inputs[1] = dataclasses.replace(inputs[1], is_const=False)
    return dataclasses.replace(case, inputs=inputs, label=f"late-{case.label}")


LATE = [late(case) for case in CASES if case.label.endswith(("-few", "-pixel", "same-2"))]


EXACTLY = [dataclasses.replace(case, **EXACT) for case in CASES + LATE]
FIRST = EXACTLY[: len(ALGORITHMS)] + EXACTLY[len(ALGORITHMS) :: 3]


@pytest.mark.parametrize("group", first_in_groups(FIRST, EXACTLY), ids=str)
def test_lowering_matches_the_reference(group: CaseGroup) -> None:
    group.check_lowerings(RULES)


ON_GPU = [c for c in CASES if c.label.endswith("few")]


def spec(shape: Shape, dtype: Any, scale: Any = None, axis: int = 0) -> TensorSpec:
    q = None if scale is None else scaled(scale, axis=axis)
    return TensorSpec("t", shape, np.dtype(dtype), q)


OPTIONS = Conv2DOptions(SAME, 1, 1)
DEPTHWISE = DepthwiseConv2DOptions(SAME, 1, 1)
X, B, Y = (spec(s, np.float32) for s in ((1, 6, 6, 4), (8,), (1, 6, 6, 8)))
REFUSED = [
    ("CONV_2D", OPTIONS, X, spec((8, 3, 3, 4), np.int16, 0.1), B, "quantized int16"),
    ("CONV_2D", OPTIONS, X, spec((8, 3, 3, 4), np.int8, [0.1] * 4, 3), B, "4 scales"),
    ("CONV_2D", OPTIONS, X, spec((8, 3, 3, 4), np.uint8, [0.1, 0.2] * 4), B, "takes one scale"),
    ("CONV_2D", OPTIONS, X, spec((8, 3, 3, 4), np.int8, 0.1), spec((8,), np.int32), "is int32"),
    ("DEPTHWISE_CONV_2D", DEPTHWISE, X, spec((1, 3, 3, 8), INT4, 0.1), B, "quantized int4"),
    ("DEPTHWISE_CONV_2D", DEPTHWISE, X, spec((1, 3, 3, 8), np.uint8, 0.1), B, "quantized uint8"),
]


@pytest.mark.parametrize(("name", "options", "x", "w", "b", "said"), REFUSED)
def test_refuses(
    name: str, options: Any, x: TensorSpec, w: TensorSpec, b: TensorSpec, said: str
) -> None:
    context = LoweringContext(quant_mode="integer")
    assert said in (RULES[name].reason(Op(context, options, (x, w, b), (Y,))) or "")


def test_convolutions_in_3d_have_no_dynamic_range_kernel() -> None:
    x, w = spec((1, 4, 4, 4, 2), np.float32), spec((2, 2, 2, 2, 3), np.int8, 0.1)
    b, y = spec((3,), np.float32), spec((1, 4, 4, 4, 3), np.float32)
    context, options = LoweringContext(quant_mode="integer"), Conv3DOptions(SAME, 1, 1, 1)
    got = RULES["CONV_3D"].reason(Op(context, options, (x, w, b), (y,)))
    assert "no kernel for" in (got or "")
