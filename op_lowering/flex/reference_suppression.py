"""CombinedNonMaxSuppression (core/kernels/image/non_max_suppression_op.cc)."""

import numpy as np

from jaxdelegate.op_lowering.flex.options import FlexSuppressionOptions
from jaxdelegate.op_lowering.flex.reference_named import named
from jaxdelegate.op_lowering.records.flex import FLEX
from jaxdelegate.op_lowering.spec import Shape, Specs
from jaxdelegate.reference.kernel import Array, Kernel


def suppressed_shapes(o: FlexSuppressionOptions, inputs: Specs) -> tuple[Shape | None, ...]:
    boxes, scores, each, total = (spec for spec in inputs[:4])
    fits = len(boxes.shape) == 4 and len(scores.shape) == 3 and boxes.shape[:2] == scores.shape[:2]
    if not fits or boxes.shape[2] not in (1, scores.shape[2]) or boxes.shape[3] != 4:
        raise ValueError(f"boxes {list(boxes.shape)} for scores {list(scores.shape)}")
    if total.const is None or (o.pad_per_class and each.const is None):
        return None, None, None, scores.shape[:1]
    n = int(np.asarray(total.const).reshape(()))
    if o.pad_per_class:
        n = min(n, int(np.asarray(each.const).reshape(())) * scores.shape[2])
    batch = scores.shape[0]
    return (batch, n, 4), (batch, n), (batch, n), (batch,)


def suppress(
    o: FlexSuppressionOptions,
    _inputs: Specs,
    outputs: Specs,
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
    y = [np.zeros(spec.shape, spec.dtype) for spec in outputs]
    for image in range(len(scores)):
        found = []
        for class_ in range(scores.shape[2]):
            of_class = boxes[image, :, class_ if boxes.shape[2] > 1 else 0]
            kept = _kept(of_class, scores[image, :, class_], float(iou), float(least), int(each))
            found += [(scores[image, i, class_], class_, of_class[i]) for i in kept]
        found.sort(key=lambda row: -row[0])
        found = found[: y[1].shape[1]]
        for i, (score, class_, box) in enumerate(found):
            y[0][image, i] = np.clip(box, 0, 1) if o.clip_boxes else box
            y[1][image, i], y[2][image, i] = score, class_
        y[3][image] = len(found)
    return tuple(y)


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


KERNELS = named({f"{FLEX}CombinedNonMaxSuppression": Kernel(suppress, suppressed_shapes)})
