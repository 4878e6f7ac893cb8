"""CombinedNonMaxSuppression (core/kernels/image/non_max_suppression_op.cc)."""

import numpy as np

from jaxdelegate.op_lowering.flex.reference_kernels import kernels
from jaxdelegate.op_lowering.records.flex import FlexOptions
from jaxdelegate.op_lowering.spec import Specs
from jaxdelegate.reference.kernel import Array, ResultShapes


def suppressed_shapes(o: FlexOptions, inputs: Specs) -> ResultShapes:
    boxes, scores, each, total = (spec for spec in inputs[:4])
    fits = len(boxes.shape) == 4 and len(scores.shape) == 3 and boxes.shape[:2] == scores.shape[:2]
    if not fits or boxes.shape[2] not in (1, scores.shape[2]) or boxes.shape[3] != 4:
        raise ValueError(f"boxes {list(boxes.shape)} for scores {list(scores.shape)}")
    batch, _, classes = scores.shape
    if total.const is None or (o.pad_per_class and each.const is None):
        return None, None, None, (batch,)
    n = _count(o, classes, np.asarray(each.const), np.asarray(total.const))
    return (batch, n, 4), (batch, n), (batch, n), (batch,)


def _count(o: FlexOptions, classes: int, each: Array, total: Array) -> int:
    """How many boxes the result has for an image."""
    n = int(total.reshape(()))
    return min(n, int(each.reshape(())) * classes) if o.pad_per_class else n


def suppress(
    o: FlexOptions,
    boxes: Array,
    scores: Array,
    each: Array,
    total: Array,
    iou: Array,
    least: Array,
) -> tuple[Array, ...]:
    """The best boxes of each class that do not overlap better ones; of these, the best of all."""
    if min(each, total) < 1:
        raise ValueError(f"{[int(each), int(total)]} boxes of a class and of all: expected some")
    batch, _, classes = scores.shape
    n = _count(o, classes, each, total)
    y, counts = np.zeros((batch, n, 6), np.float32), np.zeros(batch, int)
    for image in range(batch):
        selected = []
        for class_ in range(classes):
            of_class = boxes[image, :, class_ if boxes.shape[2] > 1 else 0]
            kept = _kept(of_class, scores[image, :, class_], float(iou), float(least), int(each))
            selected += [(*of_class[i], scores[image, i, class_], class_) for i in kept]
        selected = sorted(selected, key=lambda row: -row[4])[:n]
        counts[image] = len(selected)
        y[image, : len(selected)] = np.reshape(selected, (-1, 6))
    corners = np.clip(y[..., :4], 0, 1) if o.clip_boxes else y[..., :4]
    return corners, y[..., 4], y[..., 5], counts


def _kept(boxes: Array, scores: Array, iou: float, least: float, most: int) -> list[int]:
    kept: list[int] = []
    for i in np.argsort(-scores, kind="stable"):
        apart = all(_overlap(boxes[i], boxes[j]) <= iou for j in kept)
        if len(kept) < most and scores[i] > least and apart:
            kept.append(int(i))
    return kept


def _overlap(a: Array, b: Array) -> np.float32:
    """Intersection over union; corners come in any order."""
    (a1, a2), (b1, b2) = (
        (np.minimum(box[:2], box[2:]), np.maximum(box[:2], box[2:])) for box in (a, b)
    )
    areas = np.prod(a2 - a1), np.prod(b2 - b1)
    if min(areas) <= 0:
        return np.float32(0)
    inner = np.prod(np.maximum(np.minimum(a2, b2) - np.maximum(a1, b1), 0))
    return np.float32(inner / (areas[0] + areas[1] - inner))


KERNELS = kernels({"CombinedNonMaxSuppression": (suppress, suppressed_shapes)})
