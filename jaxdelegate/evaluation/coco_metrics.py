"""Average precision by TFLite's definition and by COCO's, both computed by pycocotools."""

import contextlib
import dataclasses
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from jaxdelegate.evaluation.ground_truth import AnnotatedImage, Objects
from jaxdelegate.optional import optional_module

IOU_THRESHOLDS = tuple(float(np.float32(0.5) + i * np.float32(0.05)) for i in range(10))
_ALL_SIZES = (-np.inf, np.inf)  # areas; that of a box with a side below 0 is negative
_RECALLS = 100  # and recall 0
_ROUNDING = 1e-4  # of a recall, in steps: a recall that is reached exactly counts

_Row = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class AveragePrecisions:
    thresholds: tuple[float, ...]
    at_threshold: tuple[float, ...]  # empty without classes
    overall: float


def average_precisions(
    truth: Sequence[Objects],
    detected: Sequence[Objects],
    thresholds: Sequence[float] = IOU_THRESHOLDS,
) -> AveragePrecisions:
    """TFLite's average precisions over images, whose objects are in `truth` and in `detected`.

    Semantics: tools/evaluation/stages/utils/image_metrics.cc and object_detection_average_
    precision_stage.cc, whose sums are float32: figures agree to 1e-6. It differs from COCO's:
    crowds are treated like other objects; classes that were only detected count as 0; the number
    of detections is not limited. `thresholds` are of intersection over union.
    """
    images, every = range(len(truth)), [*truth, *detected]
    classes = sorted({int(n) for objects in every for n in objects.classes})
    if not classes:
        return AveragePrecisions(tuple(thresholds), (), 0.0)
    tables = [_rows(zip(images, objects, strict=True)) for objects in (truth, detected)]
    evaluation = _evaluation([{"id": i} for i in images], [{"id": n} for n in classes], *tables)
    evaluation.params.iouThrs = np.round(thresholds, 6)
    evaluation.params.recThrs = (np.arange(_RECALLS + 1) - _ROUNDING) / _RECALLS
    evaluation.params.maxDets = [max(len(tables[1]), 1)]
    evaluation.params.areaRng, evaluation.params.areaRngLbl = [_ALL_SIZES], ["all"]
    _evaluate(evaluation)
    # [thresholds, classes], the mean over recalls; -1 without ground truth.
    table = np.maximum(evaluation.eval["precision"][..., 0, 0].mean(1), 0.0)
    return AveragePrecisions(tuple(thresholds), tuple(table.mean(1).tolist()), float(table.mean()))


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
    listed = [
        {"id": i.image_id, "file_name": i.name, "width": i.width, "height": i.height}
        for i in images
    ]
    scaled = [
        (i.image_id, dataclasses.replace(o, boxes=o.boxes.astype(float) * i.sides))
        for i, o in zip(images, detected, strict=True)
    ]
    evaluation = _evaluation(listed, categories, _annotations(images), _rows(scaled))
    _evaluate(evaluation)
    with contextlib.redirect_stdout(io.StringIO()) as summary:
        evaluation.summarize()
    return CocoMetrics(summary.getvalue().rstrip(), *map(float, evaluation.stats))


def _evaluation(
    images: Sequence[Mapping[str, Any]],
    categories: Sequence[Mapping[str, Any]],
    truth: Sequence[_Row],
    detected: Sequence[_Row],
) -> Any:
    coco_class = optional_module("pycocotools.coco", "eval").COCO
    tables = coco_class(), coco_class()
    for table, rows in zip(tables, (truth, detected), strict=True):
        table.dataset = {"images": images, "categories": categories, "annotations": rows}
        with contextlib.redirect_stdout(io.StringIO()):
            table.createIndex()
    return optional_module("pycocotools.cocoeval", "eval").COCOeval(*tables, "bbox")


def _evaluate(evaluation: Any) -> None:
    with contextlib.redirect_stdout(io.StringIO()):
        evaluation.evaluate()
        evaluation.accumulate()


def _annotations(images: Sequence[AnnotatedImage]) -> list[_Row]:
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


def _rows(images: Iterable[tuple[int | None, Objects]]) -> list[_Row]:
    rows: list[_Row] = []
    for image, objects in images:
        parts = (objects.classes.tolist(), objects.boxes.tolist(), objects.scores.tolist())
        for number, (top, left, bottom, right), score in zip(*parts, strict=True):
            box = [left, top, right - left, bottom - top]
            more = {"area": box[2] * box[3], "score": score, "iscrowd": 0}
            rows.append(
                {"id": len(rows) + 1, "image_id": image, "category_id": number, "bbox": box} | more
            )
    return rows
