"""Generated pictures and sounds are reproducible and fit their truth."""

from collections.abc import Callable

import numpy as np
import pytest

from sample_tasks import canvas, pictures, sounds
from sample_tasks.pictures import Picture
from sample_tasks.tasks import TASKS

MAKERS = pytest.mark.parametrize(
    "make",
    [pictures.one_shape, pictures.several_shapes, pictures.masked_shapes, pictures.stick_figure],
)


@MAKERS
def test_a_seed_gives_the_same_picture(make: Callable[..., Picture]) -> None:
    image = make(1).image
    assert (image.shape, image.dtype) == ((256, 256, 3), np.uint8)
    np.testing.assert_array_equal(make(1).image, image)
    assert np.any(make(2).image != image)


def test_all_shapes_occur() -> None:
    made = {pictures.one_shape(seed, 32).truth.labels[0].name for seed in range(60)}
    assert made == set(pictures.SHAPES)


@pytest.mark.parametrize("seed", range(5))
def test_boxes_hold_the_shapes(seed: int) -> None:
    """Outside the boxes is only background, which varies less than the picture."""
    picture = pictures.several_shapes(seed, 128)
    outside = np.ones((128, 128), bool)
    for box in picture.truth.boxes:
        assert 0 <= box.left < box.right <= 1
        assert 0 <= box.top < box.bottom <= 1
        columns = slice(int(128 * box.left), int(128 * box.right) + 1)
        outside[int(128 * box.top) : int(128 * box.bottom) + 1, columns] = False
    pixels = picture.image.astype(float)
    assert 1 <= len(picture.truth.boxes) <= 5
    assert pixels[outside].std(axis=0).sum() < pixels.reshape(-1, 3).std(axis=0).sum()


@pytest.mark.parametrize("seed", range(5))
def test_a_mask_marks_pixels_unlike_the_background(seed: int) -> None:
    picture = pictures.masked_shapes(seed, 128)
    mask = picture.truth.mask
    assert mask is not None
    ground = picture.image[mask == 0].astype(float).mean(axis=0)
    for label in np.unique(mask)[1:]:
        away = np.linalg.norm(picture.image[mask == label] - ground, axis=1)
        assert np.median(away) > 40


@pytest.mark.parametrize("seed", range(5))
def test_joints_are_on_the_figure(seed: int) -> None:
    picture = pictures.stick_figure(seed)
    color = picture.image[_at(picture, "left hip")].astype(float)
    for point in picture.truth.key_points:
        assert np.linalg.norm(picture.image[_at(picture, point.name)] - color) < 40, point.name


def _at(picture: Picture, joint: str) -> tuple[int, int]:
    (point,) = (p for p in picture.truth.key_points if p.name == joint)
    return int(256 * point.y), int(256 * point.x)


def test_images_of_any_size_are_resized() -> None:
    for task in TASKS.values():
        x = task.inputs(np.full((30, 70, 3), 255, np.uint8))
        assert (x.shape, x.dtype) == ((1, task.size, task.size, 3), np.float32)
        np.testing.assert_allclose(x, 1, rtol=1e-6)


@pytest.mark.parametrize(
    "image", [np.zeros((4, 4), np.uint8), np.zeros((4, 4, 4), np.uint8), np.zeros((4, 4, 3))]
)
def test_other_arrays_are_not_images(image: np.ndarray) -> None:
    with pytest.raises(ValueError, match=r"an image is uint8 \[height, width, 3\], got"):
        TASKS["pose"].inputs(image)


def test_resizing_equals_pillow() -> None:
    pillow = pytest.importorskip("PIL.Image")
    image = np.random.default_rng(0).integers(0, 256, (50, 70, 3), np.uint8)
    for height, width in ((20, 64), (90, 64)):
        want = pillow.fromarray(image).resize((width, height), pillow.Resampling.BILINEAR)
        got = canvas.resized(image, height, width)
        assert np.abs(got - np.asarray(want)).max() < 1  # which rounds twice


def test_sounds() -> None:
    sound = sounds.sound(1)
    np.testing.assert_array_equal(sounds.sound(1).samples, sound.samples)
    assert sound.samples.dtype == np.float32
    loud = np.zeros(len(sound.samples), bool)
    for word in sound.spoken:
        loud[int(word.start * sounds.RATE) : int(word.end * sounds.RATE)] = True
    assert np.abs(sound.samples[loud]).mean() > 3 * np.abs(sound.samples[~loud]).mean()


def test_features_follow_the_pitch() -> None:
    t = np.arange(sounds.RATE) / sounds.RATE
    low, high = (sounds.features(np.sin(2 * np.pi * f * t)) for f in (400, 1600))
    assert low.shape == (50, sounds.BANDS)
    assert low.mean(axis=0).argmax() < high.mean(axis=0).argmax()


def test_heard_words_last_some_frames() -> None:
    labels = np.zeros(30, int)
    labels[5:7] = 2  # too short
    labels[12:17] = 3
    (word,) = sounds.heard(np.eye(len(sounds.LABELS))[labels])
    assert word.name == sounds.LABELS[3]
    assert word.seconds == pytest.approx(13 * sounds.FRAME / sounds.RATE)
