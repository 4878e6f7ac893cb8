"""Resizing as stb_image_resize2 does it: splines in linear light, by a reference in float64."""

import numpy as np
import pytest

from jaxdelegate.lm.vision.resizing import resized
from tests.support.vision_models import picture

# Of stb_image_resize2 2.18: red values of 5 x 3 pixels `(37 * n) % 256`, as 3 x 4.
KNOWN = [[70, 185, 154], [92, 126, 189], [123, 96, 175], [146, 138, 98]]


def _linear(values: np.ndarray) -> np.ndarray:
    shares = values / 255
    return np.where(shares <= 0.04045, shares / 12.92, ((shares + 0.055) / 1.055) ** 2.4)


def _spline(x: np.ndarray) -> np.ndarray:
    x = np.abs(x)
    inner, outer = 1.5 * x**3 - 2.5 * x**2 + 1, -0.5 * x**3 + 2.5 * x**2 - 4 * x + 2
    return np.where(x < 1, inner, np.where(x < 2, outer, 0))


def _matrix(old: int, new: int) -> np.ndarray:
    """float64 [new, old]: edges go on, and a spline is as wide as the larger of both pixels."""
    matrix, width = np.zeros((new, old)), max(old / new, 1)
    for row in range(new):
        center = (row + 0.5) * old / new
        places = np.arange(np.floor(center - 2 * width) - 1, center + 2 * width + 2)
        weights = _spline((places + 0.5 - center) / width)
        np.add.at(matrix[row], np.clip(places, 0, old - 1).astype(int), weights / weights.sum())
    return matrix


def _expected(pixels: np.ndarray, height: int, width: int) -> np.ndarray:
    """Values before they are rounded: float64 [height, width, 3]."""
    rows, columns = _matrix(pixels.shape[0], height), _matrix(pixels.shape[1], width)
    light = np.einsum("hy,wx,yxc->hwc", rows, columns, _linear(pixels)).clip(0, 1)
    return 255 * np.where(light <= 0.0031308, 12.92 * light, 1.055 * light ** (1 / 2.4) - 0.055)


@pytest.mark.parametrize(
    ("old", "new"),
    [((20, 30), (48, 48)), ((48, 48), (20, 30)), ((1, 1), (6, 12)), ((7, 100), (12, 9))],
)
def test_values_are_the_nearest_or_close_to_it(old: tuple[int, int], new: tuple[int, int]):
    pixels = np.asarray(picture(old[1], old[0], seed=1))
    found, wanted = resized(pixels, *new), _expected(pixels, *new)
    # The library's line in each eighth of an octave is up to 0.05 off the curve of sRGB.
    assert np.abs(found - wanted).max() < 0.56


def test_all_values_stay_in_an_image_of_one_value():
    for value in range(256):
        image = np.full((5, 7, 3), value, np.uint8)
        assert (resized(image, 9, 4) == value).all()


def test_the_same_size_changes_nothing():
    pixels = np.asarray(picture(20, 10))
    assert resized(pixels, 10, 20) is pixels


def test_values_of_the_library():
    pixels = (37 * np.arange(5 * 3 * 3) % 256).astype(np.uint8).reshape(3, 5, 3)
    assert resized(pixels, 4, 3)[..., 0].tolist() == KNOWN
