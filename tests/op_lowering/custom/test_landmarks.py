"""MediaPipe's operators of face meshes."""

from typing import Any

import numpy as np
import pytest
from flatbuffers import flexbuffers

from jaxdelegate.op_lowering.options import custom_options
from jaxdelegate.testing import Arg, Case, assert_close, f32, of, value

MEDIAPIPE = "a custom operator of MediaPipe"
FACE = value(np.float32([[[40, 60, 1], [90, 72, 2], [66, 30, 3], [70, 110, 4], [51, 47, 5]]]))
FLAT = value(FACE.value.reshape(1, 1, 1, 15))
CROP = {
    "left_rotation_idx": 0,
    "right_rotation_idx": 1,
    "target_rotation_radians": 0.25,
    "subset_idxs": [1, 2, 3, 4],
    "output_height": 16,
    "output_width": 24,
    "scale_x": 1.5,
    "scale_y": 1.25,
}
FIRST_CROP = {
    "dimensions": 3,
    "landmarks_range": 192,
    "left_rotation_idx": 0,
    "right_rotation_idx": 1,
    "bbox_size_multiplier": 1.5,
    "input_hw": [48, 40],
    "output_hw": [16, 24],
    "subset": [1, 2, 3],
}
IDENTITY = np.eye(4, dtype=np.float32)[None]
TURN = np.float32([[0.8, -0.3, 0, 2.3], [0.35, 0.7, 0, 0.4], [0, 0, 1, 0], [0, 0, 0, 1]])[None]


def case(name: str, label: str, inputs: list[Arg], entries: dict[str, Any], version: int) -> Case:
    data = bytes(flexbuffers.Dumps(entries)) if entries else b""
    options = custom_options(name, data)
    return Case(name, label, inputs, options, litert=MEDIAPIPE, version=version)


def to_matrix(label: str, x: Arg = FACE, **entries: Any) -> Case:
    entries, version = ({**FIRST_CROP, **entries}, 1) if x.value.ndim == 4 else (CROP | entries, 2)
    return case("Landmarks2TransformMatrix", label, [x], entries, version)


def landmarks(label: str, x: Arg, matrix: np.ndarray = TURN, **entries: Any) -> Case:
    version = 1 if x.value.ndim == 4 else 2
    return case("TransformLandmarks", label, [x, value(matrix)], entries, version)


def pixels(label: str, x: Arg, matrix: np.ndarray, **entries: Any) -> Case:
    version = 1 if "output_size" in entries else 2
    return case("TransformTensorBilinear", label, [x, value(matrix)], entries, version)


IMAGE = f32(1, 5, 7, 3)
SMALL = {"output_height": 4, "output_width": 6}
LOWERED = [
    to_matrix("v2"),
    to_matrix("v2-one", subset_idxs=[2]),
    to_matrix("v1", FLAT),
    to_matrix("v2-double", of(np.float64, 1, 5, 3)),
    to_matrix("v1-far", value(FLAT.value * 3000)),
    landmarks("v2-2", f32(1, 5, 2)),
    landmarks("v2-3", f32(1, 5, 3)),
    landmarks("v1", f32(1, 2, 1, 6), dimensions=3, scale=2.5),
    landmarks("v1-2", f32(1, 1, 1, 6), dimensions=2),
    landmarks("v2-none", f32(1, 0, 3)),
    pixels("v2", IMAGE, TURN, **SMALL),
    pixels("v2-same", IMAGE, IDENTITY, output_height=5, output_width=7),
    pixels("v2-larger", IMAGE, IDENTITY, output_height=8, output_width=9),
    pixels("v1", IMAGE, TURN, mode="bilinear", output_size=[4, 6]),
    pixels("outside", IMAGE, TURN * np.float32(20), **SMALL),
]
MATRIX_3X3 = np.eye(3, dtype=np.float32)
REFUSED = {
    "no landmarks are in the crop": to_matrix("", subset_idxs=[]),
    "landmarks 0 to 5 are read of 5": to_matrix("", subset_idxs=[5]),
    "landmarks -1 to 4 are read of 5": to_matrix("", left_rotation_idx=-1),
    "does not hold (x, y, z)": to_matrix("", f32(1, 5, 4)),
    "is int32": to_matrix("", of(np.int32, 1, 5, 3)),
    "is not one image of rank 3 or 4": to_matrix("", f32(2, 5, 3)),
    "a crop of 0 x 24 pixels": to_matrix("", output_height=0),
    "scaled by 1.25 x 0.0": to_matrix("", scale_x=0.0),
    "sizes [48, 40] and [1, 24]": to_matrix("", FLAT, output_hw=[1, 24]),
    "the range is 0": to_matrix("", FLAT, landmarks_range=0),
    "landmarks of 4 dimensions": landmarks("", f32(1, 3, 4)),
    "the scale is 0": landmarks("", f32(1, 1, 1, 6), scale=0.0),
    "is not a matrix [4, 4]": landmarks("", f32(1, 3, 2), MATRIX_3X3),
    "mode 'nearest' is not 'bilinear'": pixels("", IMAGE, TURN, mode="nearest", output_size=[4, 6]),
}
STOPPED = {
    "the subset is empty": REFUSED["no landmarks are in the crop"],
    "landmarks [0, 1, 5] of": REFUSED["landmarks 0 to 5 are read of 5"],
    "[-1, 1, 1, 2, 3, 4] of": REFUSED["landmarks -1 to 4 are read of 5"],
    ("not float32 or", TypeError): REFUSED["is int32"],
    "not one image": REFUSED["is not one image of rank 3 or 4"],
    "0 x 24": REFUSED["a crop of 0 x 24 pixels"],
    "sizes [48, 40, 1, 24]": REFUSED["sizes [48, 40] and [1, 24]"],
    "the range 0": REFUSED["the range is 0"],
    "of 4 dimensions": REFUSED["landmarks of 4 dimensions"],
    "scale 0.0": REFUSED["the scale is 0"],
    "not [4, 4]": REFUSED["is not a matrix [4, 4]"],
    "mode 'nearest'": REFUSED["mode 'nearest' is not 'bilinear'"],
}
IMPOSSIBLE = [pixels("none", IMAGE, TURN), pixels("flat", f32(5, 7, 3), TURN, **SMALL)]


@pytest.mark.parametrize("version", [1, 2])
def test_the_middle_of_a_crop_is_that_of_its_landmarks(version: int) -> None:
    """The landmarks are level, from (10, 20) to (50, 40); the scale does not matter."""
    points = np.float32([[[10, 20, 0], [50, 20, 0], [30, 40, 0]]])
    sizes = {"target_rotation_radians": 0.0, "subset_idxs": [0, 1, 2]}
    made = to_matrix("", value(points), **sizes)
    if version == 1:
        made = to_matrix(
            "", value(points.reshape(1, 1, 1, 9)), subset=[0, 1, 2], input_hw=[193, 193]
        )
    (matrix,) = made.run_reference()
    middle = (12, 8) if version == 2 else (23 / 2, 15 / 2)
    assert_close([(matrix[0] @ np.float32([*middle, 0, 1]))[:2]], [np.float32([30, 30])])


def test_an_identity_moves_nothing() -> None:
    (image,) = LOWERED[11].run_reference()
    np.testing.assert_array_equal(image, IMAGE.value)
    points = landmarks("", f32(1, 5, 3), IDENTITY)
    np.testing.assert_array_equal(points.run_reference()[0], points.inputs[0].value)  # type: ignore[union-attr]
