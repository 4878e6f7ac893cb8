import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxdelegate.evaluation.files import DataError
from jaxdelegate.evaluation.ground_truth import read_ground_truth_proto, read_instances

DATA: dict[str, Any] = {
    "images": [
        {"id": 7, "file_name": "b.jpg", "width": 200, "height": 100},
        {"id": 3, "file_name": "a.jpg", "width": 50, "height": 80},
    ],
    "annotations": [
        {"id": 1, "image_id": 7, "category_id": 18, "bbox": [20, 10, 100, 50], "iscrowd": 1},
        {"id": 2, "image_id": 7, "category_id": 1, "bbox": [150, 10, 51, 50]},
        {"id": 3, "image_id": 7, "category_id": 2, "bbox": [0, 0, 200.0, 100.0]},
    ],
    "categories": [{"id": 1, "name": "person"}, {"id": 18, "name": "dog"}],
}


def written(folder: Path, data: Any) -> Path:
    path = folder / "instances_val2017.json"
    path.write_text(json.dumps(data))
    return path


def test_images_by_name_and_boxes_as_fractions(tmp_path: Path) -> None:
    found = read_instances(written(tmp_path, DATA))
    assert [(i.name, i.image_id, len(i.annotations)) for i in found.images] == [
        ("a.jpg", 3, 0), ("b.jpg", 7, 3),
    ]  # fmt: skip
    objects = found.images[1].objects  # without the box that leaves the image, with the crowd
    assert objects.classes.tolist() == [18, 2]
    np.testing.assert_allclose(objects.boxes, [[0.1, 0.1, 0.6, 0.6], [0, 0, 1, 1]])
    assert objects.scores.tolist() == [1, 1]
    assert found.images[0].objects.boxes.shape == (0, 4)


def test_the_allowlist(tmp_path: Path) -> None:
    (tmp_path / "ids.txt").write_text("7\n12\n")
    found = read_instances(written(tmp_path, DATA), tmp_path / "ids.txt")
    assert [i.image_id for i in found.images] == [7]
    (tmp_path / "ids.txt").write_text("7\nb\n")
    with pytest.raises(DataError, match=r"ids.txt': line 2: expected an image id, got 'b'"):
        read_instances(tmp_path / "instances_val2017.json", tmp_path / "ids.txt")


def changed(*path: Any, to: Any) -> Any:
    data = json.loads(json.dumps(DATA))
    at = data
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = to
    return data


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ([], "expected an object with images"),
        ({}, "images: expected a list, got NoneType"),
        (changed("images", 0, "id", to="7"), r'images\[0\].id: expected an integer, got "7"'),
        (changed("images", 0, "id", to=True), r"images\[0\].id: expected an integer, got true"),
        (changed("images", 1, to=5), r"images\[1\].id: expected an integer, got null"),
        (
            changed("images", 0, "width", to=0),
            r"\[0\].width: expected a positive integer, got 0",
        ),
        (changed("images", 0, "id", to=3), "images: duplicate id"),
        *(
            (
                changed("images", 0, "file_name", to=name),
                r"images\[0\].file_name: expected a path inside",
            )
            for name in (
                "../secret.jpg",
                "/etc/secret.jpg",
                "a/../../b.jpg",
                "..\\b.jpg",
                "b\0.jpg",
            )
        ),
        (
            changed("annotations", 2, "bbox", to=[1, 2, 3]),
            r"\[2\].bbox: expected \[x, y,",
        ),
        (changed("annotations", 2, "bbox", to=[1, 2, 3, "4"]), r"annotations\[2\].bbox: expected"),
        (changed("annotations", 1, "image_id", to=4), "annotations: no image has the id 4"),
        (changed("categories", to=None), "categories: expected a list, got NoneType"),
    ],
)
def test_errors_name_the_field(tmp_path: Path, data: Any, text: str) -> None:
    with pytest.raises(DataError, match=text) as caught:
        read_instances(written(tmp_path, data))
    assert "\n" not in str(caught.value)


def test_files_that_are_not_json(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"\xff{")
    with pytest.raises(DataError, match="expected JSON"):
        read_instances(tmp_path / "x")
    with pytest.raises(DataError, match="No such file"):
        read_instances(tmp_path / "y")


TEXT = """
detection_results {
  objects {
    class_id: 18
    bounding_box {
      normalized_top: 0.25 normalized_bottom: 0.5 normalized_left: 0.125 normalized_right: 1
    }
  }
  image_name: "a.jpg"
  image_id: 3
}
detection_results { image_name: "b.jpg" }
"""


def wire() -> bytes:
    """In the wire format: field number << 3 | type, lengths, little-endian floats."""

    def field(number: int, content: bytes) -> bytes:
        return bytes([number << 3 | 2, len(content)]) + content

    floats = [bytes([n << 3 | 5]) + np.float32(x).tobytes() for n, x in (
        (1, 0.25), (2, 0.5), (3, 0.125), (4, 1),
    )]  # fmt: skip
    instance = bytes([1 << 3, 18]) + field(2, b"".join(floats))
    first = field(1, instance) + field(2, b"a.jpg") + bytes([3 << 3, 3])
    return field(1, first) + field(1, field(2, b"b.jpg"))


@pytest.mark.parametrize(("name", "content"), [("x.pbtxt", TEXT.encode()), ("x.pb", wire())])
def test_tflites_ground_truth_in_both_forms(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    found = read_ground_truth_proto(tmp_path / name)
    assert set(found) == {"a.jpg", "b.jpg"}
    assert found["a.jpg"].classes.tolist() == [18]
    assert found["a.jpg"].boxes.tolist() == [[0.25, 0.125, 0.5, 1]]
    assert found["b.jpg"].boxes.shape == (0, 4)


@pytest.mark.parametrize(("name", "content"), [("x.pbtxt", b"objects {"), ("x.pb", b"\x0a\xff")])
def test_a_damaged_ground_truth(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=f"{name}: expected an ObjectDetection") as caught:
        read_ground_truth_proto(tmp_path / name)
    assert "\n" not in str(caught.value)
