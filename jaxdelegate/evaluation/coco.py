"""Average precision of object detectors, as in TFLite's coco_object_detection task and in COCO.

Semantics: tools/evaluation/stages/object_detection_stage.cc.
"""

import dataclasses
import hashlib
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxdelegate.errors import OptionError, check_least
from jaxdelegate.evaluation.coco_metrics import (
    AveragePrecisions,
    CocoMetrics,
    average_precisions,
    coco_metrics,
)
from jaxdelegate.evaluation.files import DataError, StrPath, list_images, no_images, read_lines
from jaxdelegate.evaluation.ground_truth import (
    AnnotatedImage,
    Instances,
    Objects,
    read_ground_truth_proto,
    read_instances,
)
from jaxdelegate.evaluation.model import ImageModel
from jaxdelegate.evaluation.pipeline import Outputs
from jaxdelegate.evaluation.results import Row, finite
from jaxdelegate.evaluation.run import (
    EvaluationResult,
    ImageRun,
    RunSettings,
    Task,
    open_to_run,
    run_images,
)
from jaxdelegate.text import plural, printable
from jaxdelegate.waiting import waiting

CLASS_OFFSET = 1  # the model's class 0 is the labels' second line, after the background
_POSTPROCESS = "TFLite_Detection_PostProcess"
_SHOWN_IDS = 10
_COLUMNS = {
    "image": "string",
    "image_id": "int64",
    "class_ids": "int32[]",
    "scores": "float[]",
    "boxes": "float[][]",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class CocoResult(EvaluationResult):
    """Average precisions over the images that could be used; `run` has a row for every image.

    A row has image, image_id (null without an instances file), class_ids, scores, boxes (top, left,
    bottom, right, as fractions of the image) and error.
    """

    tflite: AveragePrecisions | None  # None: no ground truth
    coco: CocoMetrics | None  # None: no instances file

    def to_proto(self) -> Any:
        metrics, target = self.run.metrics("object_detection_metrics")
        if self.tflite is not None:
            precision = target.average_precision_metrics
            precision.overall_mean_average_precision = self.tflite.overall
            for threshold, value in zip(
                self.tflite.thresholds, self.tflite.at_threshold, strict=False
            ):
                precision.individual_average_precisions.add(
                    iou_threshold=threshold, average_precision=value
                )
        return metrics

    def predictions(self) -> str:
        """The objects of every image, as TFLite's debug_mode prints them."""
        return "\n".join(f"{_predictions(row)}\n{'=' * 54}\n" for row in self.run.good)

    def __str__(self) -> str:
        lines = [str(self.run)]
        if self.tflite is not None:
            pairs = zip(self.tflite.thresholds, self.tflite.at_threshold, strict=False)
            lines += [f"Average Precision [IOU Threshold={t:g}]: {ap:g}" for t, ap in pairs]
            lines.append(f"Overall mAP: {self.tflite.overall:g}")
        if self.coco is not None:
            lines.append(str(self.coco))
        return "\n".join(lines)


def evaluate_coco(
    model: StrPath,
    images: StrPath,
    model_labels: StrPath | None = None,
    *,
    instances: StrPath | None = None,
    ground_truth_proto: StrPath | None = None,
    allowlist: StrPath | None = None,
    num_images: int = 0,
    class_offset: int = CLASS_OFFSET,
    settings: RunSettings | None = None,
    interpreter: Any = None,
) -> CocoResult:
    """Detect objects in a validation set and compare them with its annotations.

    The arguments are the flags of `jaxdelegate coco_eval`; the model has the outputs of
    TFLite_Detection_PostProcess: boxes, classes, scores, count. As in pycocotools, objects of
    classes that are not among the categories of `instances` do not count; a note has their ids.

    The interpreter is jaxdelegate's or a stock one, not allocated; None: jaxdelegate's with
    JaxDelegate. A list of interpreters, each on another device, takes batches in turn. With a
    runner in the settings it is not used.
    """
    settings = settings or RunSettings()
    truth = _read_truth(images, instances, ground_truth_proto, allowlist, num_images)
    n_classes = _count_classes(model_labels, truth)
    opened = open_to_run(model, interpreter, settings, num_images=len(truth.images), num_outputs=4)
    order = _output_order(os.fspath(model), opened)
    task = _task(truth, order, n_classes, class_offset)
    run = run_images(task, opened, images, settings)
    tflite, coco = _measure(truth, run)
    notes = (*run.notes, *truth.notes, *_unknown_classes(truth, run))
    if tflite is None:
        notes = (*notes, "mAP metrics are meaningless w/o ground truth.")
    return CocoResult(tflite=tflite, coco=coco, run=run, notes=notes)


@dataclasses.dataclass(frozen=True)
class _Truth:
    images: Sequence[AnnotatedImage]
    # What TFLite compares with for each image; None: it skips an image without annotations.
    objects: Sequence[Objects | None] | None  # None: no ground truth
    categories: Sequence[Mapping[str, Any]] | None = None  # None: no instances file
    notes: tuple[str, ...] = ()


def _read_truth(
    folder: StrPath,
    instances: StrPath | None,
    proto: StrPath | None,
    allowlist: StrPath | None,
    num_images: int,
) -> _Truth:
    check_least(0, num_images=num_images)
    if instances is not None and proto is not None:
        raise OptionError("give an instances file or a ground-truth proto, not both")
    if allowlist is not None and instances is None:
        raise OptionError("an allowlist of image ids needs an instances file")
    present = list_images(folder)
    last = num_images or None
    if instances is not None:
        return _truth_of_instances(Path(folder), read_instances(instances, allowlist), last)
    if not present:
        raise no_images(folder)
    images = [AnnotatedImage(name) for name in present[:last]]
    if proto is None:
        return _Truth(images, objects=None)
    annotated = read_ground_truth_proto(proto)
    if annotated.keys().isdisjoint(image.name for image in images):
        raise DataError(f"{os.fspath(proto)}: none of its images is in {os.fspath(folder)!r}")
    known = set(present)
    missing = [name for name in annotated if name not in known]
    notes = []
    if missing:
        count = plural(len(missing), "annotated image")
        notes.append(f"missing: {count}; the first: {missing[0]!r}")
    nothing = Objects.of([], [])
    return _Truth(images, [annotated.get(i.name, nothing) for i in images], notes=tuple(notes))


def _truth_of_instances(folder: Path, instances: Instances, last: int | None) -> _Truth:
    images = instances.images[:last]
    if not images:
        raise DataError("no image is in both the instances file and the allowlist")
    if not any((folder / image.name).is_file() for image in images):
        raise DataError(
            f"none of the {len(images)} images of the instances file is in {str(folder)!r}; "
            f"the first: {images[0].name!r}"
        )
    # As TFLite's script, which keeps annotated images only.
    objects = [image.objects if image.annotations else None for image in images]
    return _Truth(images, objects, instances.categories)


def _count_classes(model_labels: StrPath | None, truth: _Truth) -> int | None:
    """The bound of the class ids, which only labels set: a data set may have a part of them."""
    if model_labels is not None:
        count = len(read_lines(model_labels, "model output labels"))
        if count == 0:
            raise DataError("no classes: the labels are empty")
        return count
    if truth.categories is None:
        raise OptionError("model output labels are needed without an instances file")
    if not truth.categories:
        raise DataError("no classes: the categories are empty")
    return None


def _output_order(source: str, model: ImageModel) -> tuple[int, ...]:
    """Positions of boxes, classes, scores and count among the model's outputs."""
    order: tuple[int, ...] = (0, 1, 2, 3)
    for name, outputs in model.operators:
        if name == _POSTPROCESS and sorted(outputs) == sorted(model.outputs):
            order = tuple(model.outputs.index(i) for i in outputs)
    shapes = [model.output_shapes[i] for i in order]
    boxes, classes, scores, count = shapes
    fits = (
        len(boxes) == 3
        and boxes[2] == 4
        and classes == scores == boxes[:2]
        and int(np.prod(count)) == model.batch_size
        and all(dtype == np.float32 for dtype in model.output_dtypes)
    )
    if not fits:
        raise DataError(
            f"{printable(source)}: expected outputs boxes [1, n, 4], classes [1, n], scores "
            f"[1, n], count [1] of float32, got {[list(s) for s in shapes]}"
        )
    return order


def _task(truth: _Truth, order: tuple[int, ...], n_classes: int | None, class_offset: int) -> Task:
    def row(i: int, outputs: Outputs) -> Row:
        boxes, classes, scores, count = (outputs[k] for k in order)
        n = min(max(int(np.ravel(count)[0]), 0), len(boxes))
        ids = [int(c) + class_offset for c in classes[:n]]
        if n_classes is not None:
            _check_ids(truth.images[i].name, ids, n_classes)
        return {
            "class_ids": ids,
            "scores": [finite(float(x)) for x in scores[:n]],
            "boxes": [[finite(float(x)) for x in box] for box in boxes[:n]],
        }

    ids = None if truth.categories is None else [image.image_id for image in truth.images]
    options = {
        "n_classes": n_classes,
        "class_offset": class_offset,
        "image_ids": hashlib.sha256(str(ids).encode()).hexdigest(),
    }
    known: list[Row] = [{"image": i.name, "image_id": i.image_id} for i in truth.images]
    return Task("coco_eval", known, None, options, _COLUMNS, row)


def _check_ids(name: str, ids: Sequence[int], n_classes: int) -> None:
    for number in ids:
        if not 0 <= number < n_classes:
            raise DataError(
                f"{printable(name)}: the model detects class id {number}; the labels "
                f"have 0 to {n_classes - 1} (class_offset is part of it)"
            )


def _measure(truth: _Truth, run: ImageRun) -> tuple[AveragePrecisions | None, CocoMetrics | None]:
    if truth.objects is None:
        return None, None
    rows = zip(truth.images, truth.objects, run.rows, strict=True)
    good = [(i, objects, _detected(row)) for i, objects, row in rows if row["error"] is None]
    coco = None
    pairs = [(objects, detected) for _, objects, detected in good if objects is not None]
    with waiting("measuring average precision"):
        if truth.categories is not None:
            coco = coco_metrics([i for i, _, _ in good], [d for _, _, d in good], truth.categories)
        return average_precisions([o for o, _ in pairs], [d for _, d in pairs]), coco


def _unknown_classes(truth: _Truth, run: ImageRun) -> list[str]:
    if truth.categories is None:
        return []
    known = {category["id"] for category in truth.categories}
    unknown = Counter(n for row in run.rows for n in row["class_ids"] if n not in known)
    if not unknown:
        return []
    ids = ", ".join(map(str, sorted(unknown)[:_SHOWN_IDS]))
    more = ", ..." if len(unknown) > _SHOWN_IDS else ""
    return [
        f"{unknown.total()} detections have class ids that are not categories of the instances "
        f"file: {ids}{more}. COCO's figures leave them out (class_offset is part of the ids)"
    ]


_EDGES = ("Top", "Bottom", "Left", "Right")


def _predictions(row: Row) -> str:
    lines = [f"Image: {printable(row['image'])}", ""]
    parts = zip(row["class_ids"], row["scores"], row["boxes"], strict=True)
    for i, (number, score, (top, left, bottom, right)) in enumerate(parts):
        lines += [f"Object [{i}]", f"  Score: {_text(score)}", f"  Class-ID: {number}"]
        edges = zip(_EDGES, (top, bottom, left, right), strict=True)
        lines += ["  Bounding Box:", *(f"    Normalized {n}: {_text(x)}" for n, x in edges)]
    return "\n".join(lines)


def _text(x: float | None) -> str:
    return "nan" if x is None else f"{x:g}"


def _detected(row: Row) -> Objects:
    """The objects of a row; numbers that were not finite count as 0."""
    boxes = [[x or 0.0 for x in box] for box in row["boxes"]]
    return Objects.of(row["class_ids"], boxes, [x or 0.0 for x in row["scores"]])
