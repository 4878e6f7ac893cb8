"""COCO's average precision and recall, computed by pycocotools."""

import contextlib
import dataclasses
import io
from collections.abc import Mapping, Sequence
from typing import Any

from jaxdelegate.evaluation.average_precision import Objects
from jaxdelegate.evaluation.ground_truth import AnnotatedImage
from jaxdelegate.optional import optional_module


@dataclasses.dataclass(frozen=True)
class CocoMetrics:
    """The twelve numbers of COCOeval.summarize for boxes; -1 where nothing is annotated."""

    summary: str  # the lines that pycocotools prints
    ap: float  # mean over IoU 0.50:0.95
    ap_50: float
    ap_75: float
    ap_small: float
    ap_medium: float
    ap_large: float
    ar_1: float  # with at most 1, 10, 100 detections per image
    ar_10: float
    ar_100: float
    ar_small: float
    ar_medium: float
    ar_large: float

    def __str__(self) -> str:
        return self.summary


def coco_metrics(
    images: Sequence[AnnotatedImage],
    detected: Sequence[Objects],
    categories: Sequence[Mapping[str, Any]],
) -> CocoMetrics:
    coco_class = optional_module("pycocotools.coco", "eval").COCO
    evaluation_class = optional_module("pycocotools.cocoeval", "eval").COCOeval
    listed = [
        {"id": i.image_id, "file_name": i.name, "width": i.width, "height": i.height}
        for i in images
    ]
    with contextlib.redirect_stdout(io.StringIO()):
        tables = [
            _coco(coco_class, listed, categories, annotations)
            for annotations in (_annotations(images), _detections(images, detected))
        ]
        evaluation = evaluation_class(*tables, "bbox")
        evaluation.evaluate()
        evaluation.accumulate()
    with contextlib.redirect_stdout(io.StringIO()) as summary:
        evaluation.summarize()
    return CocoMetrics(summary.getvalue().rstrip(), *map(float, evaluation.stats))


def _coco(
    coco_class: Any,
    images: Sequence[Mapping[str, Any]],
    categories: Sequence[Mapping[str, Any]],
    annotations: Sequence[Mapping[str, Any]],
) -> Any:
    coco = coco_class()
    coco.dataset = {"images": images, "categories": categories, "annotations": annotations}
    coco.createIndex()
    return coco


def _annotations(images: Sequence[AnnotatedImage]) -> list[dict[str, Any]]:
    rows = [annotation for image in images for annotation in image.annotations]
    return [
        # pycocotools uses the id 0 for "not matched", so the ids are renumbered from 1
        {
            "area": row["bbox"][2] * row["bbox"][3],
            "iscrowd": 0,
            **{
                k: row[k]
                for k in ("image_id", "category_id", "bbox", "area", "iscrowd")
                if k in row
            },
            "id": i,
        }
        for i, row in enumerate(rows, 1)
    ]


def _detections(
    images: Sequence[AnnotatedImage], detected: Sequence[Objects]
) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for image, objects in zip(images, detected, strict=True):
        parts = (objects.classes.tolist(), objects.boxes.tolist(), objects.scores.tolist())
        for number, (top, left, bottom, right), score in zip(*parts, strict=True):
            box = [left * image.width, top * image.height]
            box += [right * image.width - box[0], bottom * image.height - box[1]]
            rows.append(
                {
                    "id": len(rows) + 1,
                    "image_id": image.image_id,
                    "category_id": number,
                    "bbox": box,
                    "area": box[2] * box[3],
                    "score": score,
                    "iscrowd": 0,
                }
            )
    return rows
