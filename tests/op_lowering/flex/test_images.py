"""Images."""

from typing import Any

import numpy as np
import pytest

from jaxdelegate.testing import Arg, Case, assert_close, const, f32, of, value
from tests.op_lowering.flex.test_math import case

MODES = ("legacy", "half_pixel_centers", "align_corners")


def bicubic(x: Arg, height: int, width: int, mode: str) -> Case:
    size = const(np.array([height, width], np.int32))
    attributes = {name: mode == name for name in MODES[1:]}
    label = f"{x.value.dtype}{list(x.value.shape)}-{height}x{width}-{mode}"
    return case(
        "ResizeBicubic", label, [x, size], [np.float32], attributes=attributes, accumulated=16
    )


CASES = [
    *(
        bicubic(f32(2, 5, 4, 3), *size, mode)
        for size in ((9, 7), (3, 2), (5, 4), (1, 1))
        for mode in MODES
    ),
    *(bicubic(f32(1, 1, 2, 1), 3, 5, mode) for mode in MODES),
    *(bicubic(of(np.uint8, 1, 4, 4, 2, low=0, high=255), 6, 6, mode) for mode in MODES[:2]),
    bicubic(of(np.float16, 1, 4, 4, 1), 6, 6, MODES[1]),
]


def crop(method: str, size: tuple[int, int], x: Arg, label: str = "") -> Case:
    """Boxes inside, across the edges, and mirrored."""
    corners = [[0, 0, 0.6, 0.7], [0.2, 0.1, 1.1, 0.9], [0.9, 0.9, 0.1, 0.2], [-0.5, 0, -0.1, 1]]
    boxes, places = const(corners, np.float32), const([0, 1, 1, 0], np.int32)
    attributes = {"method": method, "extrapolation_value": 0.5}
    return case(
        "CropAndResize",
        f"{label}{method}-{list(size)}-{x.value.dtype}",
        [x, boxes, places, const(np.int32(size))],
        [np.float32],
        attributes=attributes,
        accumulated=16,
    )


def projection(
    interpolation: str, fill_mode: str, x: Arg, transforms: list[list[float]], version: int = 3
) -> Case:
    outside = [const(np.float32(0.25))] if version == 3 else []
    inputs = [x, const(transforms, np.float32), const(np.int32([7, 10])), *outside]
    attributes = {
        "dtype": x.value.dtype,
        "interpolation": interpolation,
        "fill_mode": fill_mode,
    }
    return case(
        f"ImageProjectiveTransformV{version}",
        f"{interpolation}-{fill_mode}-{x.value.dtype}-{len(transforms)}",
        inputs,
        attributes=attributes,
        accumulated=64,
    )


def patches(label: str, padding: str, x: Arg, ksizes: Any, strides: Any, rates: Any) -> Case:
    attributes = {
        "ksizes": (1, *ksizes, 1),
        "strides": (1, *strides, 1),
        "rates": (1, *rates, 1),
        "padding": padding,
    }
    return case("ExtractImagePatches", f"{label}-{padding}", [x], attributes=attributes)


PICTURES = f32(2, 9, 8, 3)
TURNED = [[1.1, 0.2, -1.3, -0.1, 0.9, 0.55, 0.001, 0], [1, 0, 2.25, 0, 1, -1.25, 0, 0.01]]
# Between pixels, where a derivative exists.
SMALL = f32(1, 4, 4, 2)
INSIDE = value([[1 / 6, 1 / 6, 5 / 6, 5 / 6]], np.float32)
SHIFTED = value([[1, 0, 0.5, 0, 1, 0.5, 0, 0]], np.float32)
BETWEEN = [
    crop("bilinear", (2, 2), SMALL, "between-").with_inputs({1: INSIDE, 2: value([0], np.int32)}),
    *(
        projection("BILINEAR", "CONSTANT", SMALL, [], version).with_inputs(
            {1: SHIFTED, 2: const(np.int32([2, 2]))}
        )
        for version in (2, 3)
    ),
]
CASES += [
    *BETWEEN,
    *(
        crop(method, size, PICTURES)
        for method in ("bilinear", "nearest")
        for size in ((5, 6), (1, 1))
    ),
    crop("bilinear", (3, 4), of(np.uint8, 2, 5, 4, 2, low=0, high=255)),
    *(
        projection(interpolation, fill_mode, PICTURES, TURNED)
        for interpolation in ("BILINEAR", "NEAREST")
        for fill_mode in ("CONSTANT", "REFLECT", "WRAP", "NEAREST")
    ),
    projection("NEAREST", "CONSTANT", of(np.uint8, 2, 5, 6, 1, low=0, high=255), TURNED[:1]),
    projection("BILINEAR", "CONSTANT", of(np.float64, 1, 1, 1, 1), TURNED[1:]),
    projection("BILINEAR", "REFLECT", PICTURES, TURNED[:1], version=2),
    *(patches("plain", p, PICTURES, (3, 2), (2, 3), (1, 1)) for p in ("SAME", "VALID")),
    *(patches("dilated", p, PICTURES, (2, 3), (1, 2), (3, 2)) for p in ("SAME", "VALID")),
    patches("int32", "SAME", of(np.int32, 1, 4, 4, 2), (2, 2), (2, 2), (1, 1)),
    patches("empty", "SAME", f32(0, 4, 4, 2), (2, 2), (2, 2), (1, 1)),
]
OUTSIDE = crop("nearest", (2, 2), f32(1, 4, 4, 1))
CUBIC_CROP = crop("bicubic", (2, 2), PICTURES)
MIRROR = projection("NEAREST", "MIRROR", PICTURES, TURNED)
BOTH = case(
    "ResizeBicubic",
    "",
    [f32(1, 2, 2, 1), const(np.int32([3, 3]))],
    attributes=dict.fromkeys(MODES[1:], True),
)
NOTHING = bicubic(f32(1, 2, 2, 1), 0, 3, MODES[0])
REFUSED = {
    "exclude each other": BOTH,
    "no pixels": NOTHING,
    "depends on data": BOTH.with_inputs({1: value(np.int32([3, 3]))}),
    "the method 'bicubic'": CUBIC_CROP,
    "the fill_mode 'MIRROR'": MIRROR,
}
STOPPED = {
    "align_corners and half_pixel_centers": BOTH,
    "to [0, 3]": NOTHING,
    "image 1 of 1": OUTSIDE,
    "the method 'bicubic'": CUBIC_CROP,
    "'MIRROR'": MIRROR,
}
IMPOSSIBLE = [
    crop("nearest", (2, 2), f32(4, 4, 1)),
    crop("nearest", (2, 2), PICTURES).with_inputs({2: value([0], np.int32)}),
    projection("NEAREST", "WRAP", PICTURES, [*TURNED, *TURNED]),
    patches("", "SAME", f32(2, 4, 4), (2, 2), (2, 2), (1, 1)),
    patches("", "EXPLICIT", PICTURES, (2, 2), (2, 2), (1, 1)),
    patches("", "VALID", PICTURES, (30, 2), (2, 2), (1, 1)),
]


@pytest.mark.parametrize(
    ("mode", "y"),
    [
        # TensorFlow 2.17.1: tf.raw_ops.ResizeBicubic(images=[[[[0], [1], [4]]]], size=[1, 5], ...)
        ("legacy", [0.0, 0.2876721, 1.624627, 3.495461, 4.323894]),
        ("half_pixel_centers", [-0.07552557, 0.2166924, 1.0, 2.99124, 4.2265763]),
        ("align_corners", [0.0, 0.21875, 1.0, 2.59375, 4.0]),
    ],
)
def test_values_of_tensorflow(mode: str, y: list[float]) -> None:
    x = value(np.float32([0, 1, 4]).reshape(1, 1, 3, 1))
    (found,) = bicubic(x, 1, 5, mode).run_reference()
    assert_close([found.reshape(-1)], [np.float32(y)])
