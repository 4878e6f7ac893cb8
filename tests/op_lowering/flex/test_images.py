"""Images."""

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
}
STOPPED = {"align_corners and half_pixel_centers": BOTH, "to [0, 3]": NOTHING}


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
