"""Annotated images: COCO's instances json, and the messages of TFLite's preprocess_coco_minival."""

import dataclasses
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf import text_format
from google.protobuf.message import DecodeError

from jaxdelegate import protos
from jaxdelegate.evaluation.files import DataError, StrPath, bad_line, read_lines

_TEXT_SUFFIXES = (".pbtxt", ".textproto", ".txt")


@dataclasses.dataclass(frozen=True)
class Objects:
    classes: np.ndarray  # [n] int
    boxes: np.ndarray  # [n, 4] float32: top, left, bottom, right, as fractions of the image
    scores: np.ndarray  # [n] float32; 1 for annotations

    @classmethod
    def of(
        cls,
        classes: Sequence[int],
        boxes: Sequence[Sequence[float]],
        scores: Sequence[float] | None = None,
    ) -> "Objects":
        n = len(classes)
        return cls(
            np.asarray(classes, np.int64).reshape(n),
            np.asarray(boxes, np.float32).reshape(n, 4),
            np.ones(n, np.float32) if scores is None else np.asarray(scores, np.float32),
        )


@dataclasses.dataclass(frozen=True)
class AnnotatedImage:
    """An image and its annotations as in COCO's file; a name alone without that file."""

    name: str
    image_id: int | None = None
    width: int = 0
    height: int = 0
    annotations: tuple[Mapping[str, Any], ...] = ()

    @property
    def sides(self) -> tuple[int, int, int, int]:
        """What scales a box of fractions to pixels."""
        return self.height, self.width, self.height, self.width

    @property
    def objects(self) -> Objects:
        """The objects that TFLite keeps: crowds too, but no box that extends beyond the image."""
        kept = [a for a in self.annotations if self._contains(a["bbox"])]
        boxes = [
            [
                a["bbox"][1] / self.height,
                a["bbox"][0] / self.width,
                (a["bbox"][1] + a["bbox"][3]) / self.height,
                (a["bbox"][0] + a["bbox"][2]) / self.width,
            ]
            for a in kept
        ]
        return Objects.of([a["category_id"] for a in kept], boxes)

    def _contains(self, box: Sequence[float]) -> bool:
        left, top, width, height = box
        return max(left, left + width) <= self.width and max(top, top + height) <= self.height


@dataclasses.dataclass(frozen=True)
class Instances:
    images: tuple[AnnotatedImage, ...]
    categories: tuple[Mapping[str, Any], ...]


def read_instances(path: StrPath, allowlist: StrPath | None = None) -> Instances:
    """Read an instances json such as instances_val2017.json.

    `allowlist` has the ids of the images to keep, one per line (mscoco_minival_ids.txt).
    """
    source = os.fspath(path)
    data = _read_json(path)
    allowed = None if allowlist is None else _read_ids(allowlist)
    images = _table(source, data, "images", ("id", "file_name", "width", "height"))
    ids = {int(image["id"]) for image in images}
    if len(ids) != len(images):
        raise DataError(f"{source}: images: duplicate id")
    annotations: dict[int, list[Mapping[str, Any]]] = {i: [] for i in ids}
    for row in _table(source, data, "annotations", ("image_id", "category_id", "bbox")):
        if row["image_id"] not in annotations:
            raise DataError(f"{source}: annotations: no image has the id {row['image_id']}")
        annotations[row["image_id"]].append(row)
    annotated = [
        AnnotatedImage(
            i["file_name"], i["id"], i["width"], i["height"], tuple(annotations[i["id"]])
        )
        for i in images
        if allowed is None or i["id"] in allowed
    ]
    categories = _table(source, data, "categories", ("id", "name"))
    return Instances(tuple(sorted(annotated, key=lambda image: image.name)), tuple(categories))


def _read_json(path: StrPath) -> Mapping[str, Any]:
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"instances file: {error}") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"instances file {os.fspath(path)!r}: expected JSON: {error}") from error
    if not isinstance(data, dict):
        raise DataError(f"instances file {os.fspath(path)!r}: expected an object with images")
    return data


def _table(
    source: str, data: Mapping[str, Any], key: str, fields: Sequence[str]
) -> list[Mapping[str, Any]]:
    rows = data.get(key)
    if not isinstance(rows, list):
        raise DataError(f"{source}: {key}: expected a list, got {type(rows).__name__}")
    for i, row in enumerate(rows):
        for field in fields:
            value = row.get(field) if isinstance(row, dict) else None
            is_valid, expected = _CHECKS[field]
            if not is_valid(value):
                shown = json.dumps(value)[:40]
                raise DataError(f"{source}: {key}[{i}].{field}: expected {expected}, got {shown}")
    return rows


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_inner_path(value: Any) -> bool:
    """Whether a path stays inside the folder of images: the file may be untrusted."""
    if not isinstance(value, str) or "\0" in value:
        return False
    return not os.path.isabs(value) and ".." not in value.replace("\\", "/").split("/")


def _is_box(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) == 4
        and all(isinstance(x, float) or _is_integer(x) for x in value)
    )


_CHECKS: dict[str, tuple[Callable[[Any], bool], str]] = {
    **dict.fromkeys(("id", "image_id", "category_id"), (_is_integer, "an integer")),
    **dict.fromkeys(
        ("width", "height"), (lambda value: _is_integer(value) and value > 0, "a positive integer")
    ),
    "name": (lambda value: isinstance(value, str), "a string"),
    "file_name": (_is_inner_path, "a path inside the folder of images"),
    "bbox": (_is_box, "[x, y, width, height]"),
}


def _read_ids(path: StrPath) -> set[int]:
    ids = set()
    for i, line in enumerate(read_lines(path, "allowlist"), 1):
        if not line.strip().isdecimal():
            raise bad_line("allowlist", path, i, "an image id", line)
        ids.add(int(line))
    return ids


def read_ground_truth_proto(path: StrPath) -> dict[str, Objects]:
    """Objects by image name from an ObjectDetectionGroundTruth message.

    It is a text message if the suffix is .pbtxt, .textproto or .txt, otherwise a binary one.
    """
    source = os.fspath(path)
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise DataError(f"ground-truth proto: {error}") from error
    truth = protos.message("tflite.evaluation.ObjectDetectionGroundTruth")
    try:
        if Path(path).suffix in _TEXT_SUFFIXES:
            text_format.Parse(content.decode(), truth)
        else:
            truth.ParseFromString(content)
    except (DecodeError, text_format.ParseError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())
        raise DataError(
            f"{source}: expected an ObjectDetectionGroundTruth message: {reason}"
        ) from error
    return {result.image_name: _objects(result) for result in truth.detection_results}


def _objects(result: Any) -> Objects:
    boxes = [o.bounding_box for o in result.objects]
    return Objects.of(
        [o.class_id for o in result.objects],
        [
            [b.normalized_top, b.normalized_left, b.normalized_bottom, b.normalized_right]
            for b in boxes
        ],
    )
