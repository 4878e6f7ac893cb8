"""Colors of images."""

import numpy as np

from jaxdelegate.testing import Arg, Case, f32, value
from tests.op_lowering.flex.test_math import case


def adjusted(name: str, x: Arg, number: float) -> Case:
    return case(f"Adjust{name}", str(number), [x, value(np.float32(number))])


IMAGE = f32(2, 5, 4, 3, low=0, high=1)
PLAIN = value(
    [[[0, 0, 0], [1, 1, 1], [0.5, 0.5, 0.5], [1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 0]]],
    np.float32,
)
CASES = [
    case("RGBToHSV", "image", [IMAGE]),
    case("RGBToHSV", "plain", [PLAIN]),
    case("HSVToRGB", "image", [IMAGE]),
    case("HSVToRGB", "plain", [PLAIN]),
    case("HSVToRGB", "outside", [f32(2, 5, 3, low=-1, high=2)]),
    *(adjusted("Hue", x, d) for x in (IMAGE, PLAIN) for d in (0.25, -0.75)),
    *(adjusted("Saturation", IMAGE, scale) for scale in (0, 0.5, 3)),
    *(adjusted("Contrastv2", f32(2, 5, 4, 2), factor) for factor in (0.5, 2)),
]
IMPOSSIBLE = [
    case("RGBToHSV", "", [f32(2, 4)]),
    adjusted("Hue", f32(5, 3), 1),
    case("AdjustContrastv2", "", [f32(5, 3, 1), f32(2)]),
]
