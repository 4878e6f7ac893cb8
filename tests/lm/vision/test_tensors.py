"""Images to the tensors that encoders take, as LiteRT-LM prepares them."""

import functools

import numpy as np
import pytest

from jaxdelegate.errors import GenerationError
from jaxdelegate.lm.vision.resizing import resized
from jaxdelegate.lm.vision.tensors import scaled, tensors_of
from jaxdelegate.lm.vision.vision_graph import ENCODER, ImageForm, VisionGraph
from jaxdelegate.lm.vision.vision_model import VisionModel
from tests.support.vision_models import (
    PATCH,
    POOL,
    SIDE,
    adapter,
    patch_encoder,
    picture,
    pixel_encoder,
)


@functools.cache
def graph(*, has_patches: bool = True, most: int = 0, patch: int = 0) -> VisionGraph:
    parts = {
        ENCODER: patch_encoder() if has_patches else pixel_encoder(),
        "vision_adapter": adapter() if has_patches else adapter((4,)),
    }
    form = ImageForm(most, patch)
    return VisionModel(parts, "bundle", {"platform": "cpu"}, ":nocache", form).graph


def pixels(width: int, height: int) -> np.ndarray:
    return np.asarray(picture(width, height))


# 12 places of 3 x 3 patches of 2 x 2 pixels: an area of 432 pixels, in sides of 6.
SIZES = {  # width and height, to columns and rows of patches
    (12, 12): (9, 9),
    (18, 24): (9, 12),
    (6, 6): (9, 9),
    (1, 1): (9, 9),
    (640, 480): (12, 9),
    (480, 640): (9, 12),
    (100, 10): (30, 3),
    (10, 100): (3, 30),
    (1000, 3): (36, 3),
    (3, 1000): (3, 36),
}


@pytest.mark.parametrize(("size", "patches"), SIZES.items())
def test_patches_keep_the_shape_of_an_image(size: tuple[int, int], patches: tuple[int, int]):
    width, height = size
    found = tensors_of(pixels(width, height), graph())
    columns, rows = patches
    assert found.places == columns * rows // POOL**2
    assert found.positions is not None
    there = found.positions[: columns * rows]
    assert there.tolist() == [[x, y] for y in range(rows) for x in range(columns)]
    assert (found.positions[columns * rows :] == -1).all()
    assert not found.pixels[columns * rows :].any()
    wanted = resized(pixels(width, height), rows * PATCH, columns * PATCH)
    for patch, (x, y) in zip(found.pixels, there, strict=False):
        own = wanted[y * PATCH : (y + 1) * PATCH, x * PATCH : (x + 1) * PATCH]
        np.testing.assert_array_equal(patch, own.ravel())


def test_small_images_take_the_smaller_step():
    few = graph(most=4 * POOL**2)
    assert [step.count for step in few.steps] == [4, 12]
    assert tensors_of(pixels(12, 12), few).step.count == 4
    assert tensors_of(pixels(12, 12), graph()).step.count == 12


def test_an_image_that_is_too_small_for_a_place():
    with pytest.raises(GenerationError, match="expected a larger one, got 40 x 40 pixels"):
        tensors_of(pixels(40, 40), graph(most=1))


def test_an_encoder_of_pixels_gets_the_whole_image():
    found = tensors_of(pixels(30, 20), graph(has_patches=False))
    assert (found.places, found.positions) == (4, None)
    wanted = resized(pixels(30, 20), SIDE, SIDE)
    np.testing.assert_array_equal(found.pixels, wanted)
    np.testing.assert_array_equal(
        scaled(wanted, ImageForm()), wanted.astype(np.float32) / np.float32(255)
    )


def test_what_the_bundle_declares_limits_patches():
    assert tensors_of(pixels(100, 100), graph(most=6 * POOL**2)).places <= 6
    assert graph(most=10**6).most_patches == 12 * POOL**2
    assert graph(most=6 * POOL**2 * PATCH**2, patch=1).most_patches == 6 * POOL**2
    assert graph(most=6 * POOL**2, patch=PATCH).limited(4).most_patches == 4 * POOL**2
