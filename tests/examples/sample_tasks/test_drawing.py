"""Drawings change exactly the pixels that they should."""

import numpy as np
import pytest

from sample_tasks.annotations import Annotation, Box, KeyPoint, Label

drawing = pytest.importorskip("sample_tasks.drawing", reason="needs Pillow")
GRAY = np.full((200, 300, 3), 128, np.uint8)


def changed(annotation: Annotation, image: np.ndarray = GRAY) -> np.ndarray:
    before = image.copy()
    result = drawing.draw(image, annotation)
    np.testing.assert_array_equal(image, before)
    assert (result.shape, result.dtype) == (image.shape, np.uint8)
    return np.any(result != image, axis=-1)


def test_nothing_found_changes_nothing() -> None:
    assert not changed(Annotation()).any()


def test_labels_are_a_strip_at_the_lower_left() -> None:
    where = changed(Annotation(labels=(Label("star", 0.9), Label("ring", 0.1))))
    assert where[-1, 0]
    assert not where[:100].any()
    assert not where[:, 150:].any()


def test_a_box_is_a_frame() -> None:
    where = changed(Annotation(boxes=(Box(Label("star", 0.9), 0.25, 0.5, 0.75, 0.9),)))
    left, right, top, bottom = 75, 224, 100, 179
    assert where[top, left:right].all()
    assert where[bottom, left:right].all()
    assert where[top:bottom, left].all()
    assert where[top:bottom, right].all()
    assert not where[top + 5 : bottom - 5, left + 5 : right - 5].any()


def test_a_text_without_room_above_is_inside() -> None:
    where = changed(Annotation(boxes=(Box(Label("star", 0.9), 0.0, 0.0, 0.5, 0.5),)))
    assert where[:10, :20].all()


@pytest.mark.parametrize("corners", [(-1, -1, 2, 2), (0.9, 0.9, 1.5, 1.5), (2, 2, 3, 3)])
def test_boxes_beyond_the_image_are_clipped(corners: tuple[float, float, float, float]) -> None:
    changed(Annotation(boxes=(Box(Label("star", 0.9), *corners),)))


def test_a_mask_is_stretched_and_translucent() -> None:
    mask = np.array([[0, 0], [0, 2]])
    annotation = Annotation(mask=mask, mask_names=("background", "circle", "star"))
    where = changed(annotation)
    assert where[100:, 150:].all()
    assert not where[:100].any()
    assert where[-1, 0]  # the legend
    light = drawing.draw(np.full_like(GRAY, 200), annotation)[110, 160].astype(int)
    assert np.all(light - drawing.draw(GRAY, annotation)[110, 160] > 20)  # the image shines through


def test_a_figure_has_bones_between_its_joints() -> None:
    points = (KeyPoint("a", 0.2, 0.5, 0.9), KeyPoint("b", 0.8, 0.5, 0.9))
    where = changed(Annotation(key_points=points, bones=(("a", "b"),)))
    assert where[100, 60:240].all()
    assert not where[:80].any()


def test_uncertain_joints_are_not_drawn() -> None:
    points = (KeyPoint("a", 0.2, 0.5, 0.9), KeyPoint("b", 0.8, 0.5, 0.1))
    where = changed(Annotation(key_points=points, bones=(("a", "b"),)))
    assert where[100, 60]
    assert not where[:, 80:].any()
