"""Gradients of convolutions and pools over images and volumes."""

from typing import Any

import numpy as np

from jaxdelegate.testing import Arg, Case, f32, of, value
from tests.op_lowering.flex.test_math import case, numbers

F32 = np.float32


def convolution(
    x: tuple[int, ...],
    w: tuple[int, ...],
    dy: tuple[int, ...],
    padding: str,
    names: tuple[str, ...] = ("Conv2DBackpropInput", "Conv2DBackpropFilter"),
    **attributes: Any,
) -> list[Case]:
    """The gradients of a convolution by its input and its filter."""
    given = {"T": np.dtype(F32), "padding": padding, **attributes}
    label = f"{list(x)}-{list(w)}-{padding}"
    inputs = {
        "Input": [numbers(*x), f32(*w), f32(*dy, seed=1)],
        "Filter": [f32(*x), numbers(*w), f32(*dy, seed=1)],
    }
    return [
        case(
            name,
            label,
            inputs["Input" if "Input" in name else "Filter"],
            [F32],
            attributes=given,
            accumulated=256,
        )
        for name in names
    ]


STEPS: dict[str, Any] = {"strides": (1, 2, 3, 1), "dilations": (1, 1, 1, 1)}
CONVOLUTIONS = [
    *convolution((2, 5, 7, 3), (3, 2, 3, 4), (2, 3, 3, 4), "SAME", **STEPS),
    *convolution((2, 5, 7, 3), (3, 2, 3, 4), (2, 2, 2, 4), "VALID", **STEPS),
    *convolution((1, 6, 6, 2), (3, 3, 2, 2), (1, 6, 6, 2), "SAME", strides=(1, 1, 1, 1)),
    *convolution(
        (1, 5, 5, 2),
        (3, 3, 2, 2),
        (1, 4, 5, 2),
        "EXPLICIT",
        strides=(1, 1, 1, 1),
        explicit_paddings=(0, 0, 0, 1, 1, 1, 0, 0),
    ),
]
# TensorFlow has no such kernels on a CPU.
GROUPED = [
    *convolution((2, 4, 4, 4), (2, 2, 2, 6), (2, 3, 3, 6), "VALID", strides=(1, 1, 1, 1)),
    *convolution(
        (1, 7, 7, 2),
        (3, 3, 2, 2),
        (1, 3, 3, 2),
        "VALID",
        strides=(1, 1, 1, 1),
        dilations=(1, 2, 2, 1),
    ),
]


DEPTHWISE = ("DepthwiseConv2dNativeBackpropInput", "DepthwiseConv2dNativeBackpropFilter")
ONES: dict[str, Any] = {"strides": (1, 1, 1, 1)}
CONVOLUTIONS += [
    *convolution((2, 5, 7, 3), (3, 2, 3, 2), (2, 5, 7, 6), "SAME", DEPTHWISE, **ONES),
    *convolution(
        (2, 5, 6, 3), (3, 3, 3, 1), (2, 2, 2, 3), "VALID", DEPTHWISE, strides=(1, 2, 2, 1)
    ),
    *convolution(
        (1, 5, 5, 2),
        (3, 3, 2, 2),
        (1, 4, 5, 4),
        "EXPLICIT",
        DEPTHWISE,
        explicit_paddings=(0, 0, 0, 1, 1, 1, 0, 0),
        **ONES,
    ),
    *convolution(
        (2, 3, 5, 4, 2),
        (2, 3, 2, 2, 3),
        (2, 2, 3, 4, 3),
        "SAME",
        ("Conv3DBackpropFilterV2",),
        strides=(1, 2, 2, 1, 1),
    ),
]


def pool(label: str, x: Arg, out: tuple[int, int], padding: str, **attributes: Any) -> Case:
    n, _, _, channels = x.value.shape
    y, dy = (of(x.value.dtype, n, *out, channels, seed=s) for s in (1, 2))
    given = {"ksize": (1, 3, 2, 1), "strides": (1, 2, 1, 1), "padding": padding, **attributes}
    return case("MaxPoolGrad", label, [x, y, dy], attributes=given, accumulated=8)


POOLS = [
    pool("same", f32(2, 5, 4, 3), (3, 4), "SAME"),
    pool("valid", f32(2, 5, 4, 3), (2, 3), "VALID"),
    pool("equal", value(np.ones((1, 5, 4, 2), F32)), (3, 4), "SAME"),
]


def volume_pool(label: str, x: Arg, y: Arg, out: tuple[int, int, int], padding: str) -> Case:
    n, *_, channels = x.value.shape
    dy = f32(n, *out, channels)
    given = {"ksize": (1, 2, 3, 2, 1), "strides": (1, 1, 2, 2, 1), "padding": padding}
    given["TInput"] = np.dtype(F32)
    return case("MaxPool3DGrad", label, [x, y, dy], attributes=given, accumulated=8)


def average_pool(
    label: str, x: tuple[int, ...], out: tuple[int, ...], padding: str, **attributes: Any
) -> Case:
    inputs = [numbers(*x), f32(x[0], *out, x[-1])]
    given = {"ksize": (1, 3, 2, 1), "strides": (1, 2, 1, 1), "T": np.dtype(F32), **attributes}
    name = "AvgPoolGrad" if len(x) == 4 else "AvgPool3DGrad"
    return case(name, label, inputs, [F32], attributes={"padding": padding, **given}, accumulated=8)


VOLUME: dict[str, Any] = {"ksize": (1, 2, 3, 2, 1), "strides": (1, 1, 2, 2, 1)}
# Few values, so that several of a window equal its result, which need not be the largest.
STEPPED = [value(f32(2, *sizes, 2).value.round()) for sizes in ((3, 5, 4), (3, 3, 2))]
POOLS += [
    volume_pool("same", *STEPPED, (3, 3, 2), "SAME"),
    volume_pool("valid", STEPPED[0], value(STEPPED[1].value[:, :2, :2]), (2, 2, 2), "VALID"),
    average_pool("same", (2, 5, 4, 3), (3, 4), "SAME"),
    average_pool("valid", (2, 5, 4, 3), (2, 3), "VALID"),
    average_pool("same", (2, 3, 5, 4, 2), (3, 3, 2), "SAME", **VOLUME),
    average_pool("valid", (1, 3, 5, 4, 2), (2, 2, 2), "VALID", **VOLUME),
]
WRONG_POOL = pool("", f32(2, 5, 4, 3), (3, 3), "SAME")
CASES = [*CONVOLUTIONS, *POOLS]
LOWERED = GROUPED
IMPOSSIBLE = [
    WRONG_POOL,
    *convolution((1, 4, 4, 3), (3, 3, 2, 1), (1, 4, 4, 2), "SAME", DEPTHWISE, **ONES),
    average_pool("", (2, 5, 4, 3), (3, 3), "SAME"),
    average_pool("", (2, 5, 4, 3), (3, 4), "SAME", data_format="NCHW"),
    pool("", f32(2, 5, 4, 3), (3, 4), "SAME", data_format="NCHW"),
    pool("", f32(2, 5, 4, 3), (3, 4), "SAME", ksize=(1, 3)),
    *convolution((2, 5, 7, 3), (3, 2, 3, 4), (2, 3, 3, 4), "VALID", **STEPS),
    *convolution((2, 5, 7, 3), (3, 2, 3, 4), (2, 3, 3, 4), "SAME", strides=(1, 2)),
    *convolution((2, 5, 7, 3), (3, 2, 0, 4), (2, 3, 3, 4), "SAME", **STEPS),
]
