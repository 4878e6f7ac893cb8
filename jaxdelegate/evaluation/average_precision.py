"""Average precision by TFLite's definition.

Semantics: tools/evaluation/stages/utils/image_metrics.cc and object_detection_average_precision_
stage.cc, in float32. It differs from COCO's: a detection is matched with the unmatched ground truth
that it overlaps most, and crowds are treated like other objects; classes that were only detected
count as 0; the number of detections is not limited.
"""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

RECALL_POINTS = 100  # and recall 0
IOU_THRESHOLDS = tuple(float(np.float32(0.5) + i * np.float32(0.05)) for i in range(10))


@dataclasses.dataclass(frozen=True)
class Objects:
    """Objects that are annotated or detected in one image, or in several."""

    classes: np.ndarray  # [n] int
    boxes: np.ndarray  # [n, 4] float32: top, left, bottom, right, as fractions of the image
    scores: np.ndarray  # [n] float32; 1 for annotations
    images: np.ndarray  # [n] int, ascending: the index of the image of each

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
            np.zeros(n, np.int64),
        )

    @classmethod
    def merged(cls, images: Sequence["Objects"]) -> "Objects":
        """The objects of all images, each of which has one image."""
        parts = [Objects.of([], []), *images]
        return cls(
            np.concatenate([o.classes for o in parts]),
            np.concatenate([o.boxes for o in parts]),
            np.concatenate([o.scores for o in parts]),
            np.repeat(np.arange(len(images)), [len(o.classes) for o in images]),
        )

    def only(self, number: int) -> "Objects":
        """The objects of a class."""
        mask = self.classes == number
        return Objects(self.classes[mask], self.boxes[mask], self.scores[mask], self.images[mask])

    def in_image(self, image: int) -> slice:
        """The positions of an image's objects."""
        return slice(*np.searchsorted(self.images, (image, image + 1)))


@dataclasses.dataclass(frozen=True)
class AveragePrecisions:
    """The mean over classes at each threshold, and over thresholds and classes."""

    thresholds: tuple[float, ...]
    at_threshold: tuple[float, ...]  # empty without classes
    overall: float


def average_precisions(
    truth: Sequence[Objects],
    detected: Sequence[Objects],
    thresholds: Sequence[float] = IOU_THRESHOLDS,
    on_class: Callable[[], object] = lambda: None,
) -> AveragePrecisions:
    """TFLite's average precisions over images, whose objects are in `truth` and in `detected`.

    `thresholds` are of intersection over union; `on_class` is called after each class.
    """
    limits = np.asarray(thresholds, np.float32)
    all_truth, all_detected = Objects.merged(truth), Objects.merged(detected)
    classes = np.union1d(all_truth.classes, all_detected.classes)
    table = np.zeros((len(classes), len(thresholds)), np.float32)
    for i, number in enumerate(classes):
        table[i] = _of_class(all_truth.only(number), all_detected.only(number), limits)
        on_class()
    if not len(classes):
        return AveragePrecisions(tuple(thresholds), (), 0.0)
    sums = _sum(table) / np.float32(len(classes))
    overall = _sum(table.T.reshape(-1, 1))[0] / np.float32(table.size)
    return AveragePrecisions(tuple(thresholds), tuple(sums.tolist()), float(overall))


def _sum(values: np.ndarray) -> np.ndarray:
    """The sum of the rows, accumulated in order in float32."""
    total: np.ndarray = np.cumsum(values, axis=0, dtype=np.float32)[-1]
    return total


def _of_class(truth: Objects, detected: Objects, thresholds: np.ndarray) -> np.ndarray:
    """Average precision at each threshold; 0 without ground truth."""
    n_truth, scores = len(truth.classes), detected.scores
    if n_truth == 0 or not len(scores):
        return np.zeros(len(thresholds), np.float32)
    order = np.argsort(-scores, kind="stable")
    is_hit = _hits(truth, detected, thresholds)[:, order]
    hits = np.cumsum(is_hit, axis=1).astype(np.float32)
    precision = hits / np.arange(1, len(order) + 1, dtype=np.float32)
    recall = hits / np.float32(n_truth)
    return np.array([of_curve(p, r) for p, r in zip(precision, recall, strict=True)], np.float32)


def _hits(truth: Objects, detected: Objects, thresholds: np.ndarray) -> np.ndarray:
    """Which detections are correct: [thresholds, n]."""
    hits = np.zeros((len(thresholds), len(detected.classes)), np.bool_)
    for image in np.unique(truth.images):
        part = detected.in_image(image)
        boxes, scores = detected.boxes[part], detected.scores[part]
        hits[:, part] = _hits_in_image(
            truth.boxes[truth.in_image(image)], boxes, scores, thresholds
        )
    return hits


def _hits_in_image(
    truth: np.ndarray, boxes: np.ndarray, scores: np.ndarray, thresholds: np.ndarray
) -> np.ndarray:
    """Which boxes are correct: [thresholds, n]. Boxes choose by score; each truth counts once."""
    hits = np.zeros((len(thresholds), len(boxes)), np.bool_)
    overlaps = intersection_over_union(boxes, truth)
    is_left = np.ones((len(thresholds), len(truth)), np.bool_)
    rows = np.arange(len(thresholds))
    for i in np.argsort(-scores, kind="stable"):
        overlap = np.where(is_left, overlaps[i], np.float32(-1))
        best = overlap.argmax(axis=1)
        hits[:, i] = overlap[rows, best] >= thresholds
        is_left[rows[hits[:, i]], best[hits[:, i]]] = False
    return hits


def intersection_over_union(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The [n, m] float32 overlaps of boxes [n, 4] and [m, 4]; 0 where both are empty."""
    a, b = a[:, None], b[None]
    inner = np.minimum(a[..., 2:], b[..., 2:]) - np.maximum(a[..., :2], b[..., :2])
    sizes = [np.maximum(box[..., 2:] - box[..., :2], np.float32(0)) for box in (a, b)]
    shared = np.maximum(inner, np.float32(0)).prod(axis=-1)
    union = sizes[0].prod(axis=-1) + sizes[1].prod(axis=-1) - shared
    overlap: np.ndarray = np.divide(shared, union, out=np.zeros_like(shared), where=union > 0)
    return overlap


def of_curve(precision: np.ndarray, recall: np.ndarray) -> float:
    """The mean of the best precision at or after each of 101 recalls; recall must not decrease."""
    best = np.maximum.accumulate(precision[::-1])[::-1]
    levels = np.arange(RECALL_POINTS, -1, -1, dtype=np.float32)
    first = np.searchsorted(recall * np.float32(RECALL_POINTS), levels, side="left")
    reached = np.append(best, np.float32(0))[first]
    return float(_sum(reached[:, None])[0] / np.float32(RECALL_POINTS + 1))
