"""Object detection, in numpy; rule.py names the sources, and what the kernels leave open."""

import heapq

import numpy as np

from jaxdelegate.op_lowering.detection.options import DetectionPostProcessOptions
from jaxdelegate.op_lowering.records.record import Options
from jaxdelegate.op_lowering.spec import Shape, Specs, TensorSpec
from jaxdelegate.quant import affine
from jaxdelegate.reference.kernel import Array, Kernel


def postprocess_shapes(o: DetectionPostProcessOptions, _inputs: Specs) -> tuple[Shape | None, ...]:
    """Boxes, classes, scores: a slot for each detection and each of its classes; and the count."""
    slots = o.max_detections * o.max_classes_per_detection
    return (1, slots, 4), (1, slots), (1, slots), (1,)


@np.errstate(all="ignore")
def _real(array: Array, spec: TensorSpec) -> Array:
    quantized = spec.quantization if spec.is_quantized else None
    return array if quantized is None else affine.dequantize(array, quantized)


def detection_postprocess(
    o: DetectionPostProcessOptions, inputs: Specs, outputs: Specs, *arrays: Array
) -> tuple[Array, ...]:
    """Decode boxes, drop those that overlap a better one, and list the rest by score.

    The arrays are box encodings [1, n, 4 or more] as (y, x, h, w), scores [1, n, classes] and
    anchors [n, 4].
    """
    encodings, scores, anchors = map(_real, arrays, inputs)
    _check_settings(o, encodings, scores, anchors)
    boxes = _decode(o, encodings[0], anchors)
    of_classes = scores[0, :, scores.shape[2] - o.num_classes :]  # the background comes first
    y = [np.zeros(spec.shape, np.float32) for spec in outputs]
    detect = _by_class if o.use_regular_nms else _at_once
    y[3][0], detections = detect(o, boxes, of_classes)
    for slot, (box, label) in detections.items():
        y[0][0, slot], y[1][0, slot], y[2][0, slot] = boxes[box], label, of_classes[box, label]
    return tuple(y)


def _check_settings(
    o: DetectionPostProcessOptions, encodings: Array, scores: Array, anchors: Array
) -> None:
    n = encodings.shape[1]
    matching = encodings.shape[0] == scores.shape[0] == 1 and scores.shape[1] == n
    if not matching or encodings.shape[2] < 4 or anchors.shape != (n, 4):
        raise ValueError(f"boxes {encodings.shape}, scores {scores.shape}, anchors {anchors.shape}")
    if o.num_classes < 1 or scores.shape[2] - o.num_classes not in (0, 1):
        raise ValueError(f"num_classes is {o.num_classes}, of {scores.shape[2]} scores a box")
    if not 0 < o.nms_iou_threshold <= 1 or o.max_detections < 0 or o.max_classes_per_detection < 1:
        raise ValueError(f"detection post-processing with {o}")
    if o.use_regular_nms and min(o.detections_per_class, o.max_detections) < 1:
        raise ValueError("regular suppression keeps no box of a class")


def _decode(o: DetectionPostProcessOptions, encodings: Array, anchors: Array) -> Array:
    """Corners [n, 4] as (y1, x1, y2, x2); doubles up to center and half size, floats from there."""
    y, x, h, w = encodings[:, :4].T.astype(np.float64)
    anchor_y, anchor_x, anchor_h, anchor_w = anchors.T.astype(np.float64)
    scales = (np.float64(np.float32(s)) for s in (o.y_scale, o.x_scale, o.h_scale, o.w_scale))
    y_scale, x_scale, h_scale, w_scale = scales
    center_y = (y / y_scale * anchor_h + anchor_y).astype(np.float32)
    center_x = (x / x_scale * anchor_w + anchor_x).astype(np.float32)
    half_h = (0.5 * np.exp(h / h_scale) * anchor_h).astype(np.float32)
    half_w = (0.5 * np.exp(w / w_scale) * anchor_w).astype(np.float32)
    corners = (center_y - half_h, center_x - half_w, center_y + half_h, center_x + half_w)
    boxes = np.stack(corners, axis=1)
    if np.any(boxes[:, :2] > boxes[:, 2:]):
        raise ValueError("a box ends before it begins")
    return boxes


def _overlap(box: Array, others: Array) -> Array:
    """Intersection over union of a box with each of [n, 4]; 0 for boxes without an area."""
    height = np.minimum(box[2], others[:, 2]) - np.maximum(box[0], others[:, 0])
    width = np.minimum(box[3], others[:, 3]) - np.maximum(box[1], others[:, 1])
    common = np.maximum(height, np.float32(0)) * np.maximum(width, np.float32(0))
    area = (box[2] - box[0]) * (box[3] - box[1])
    areas = (others[:, 2] - others[:, 0]) * (others[:, 3] - others[:, 1])
    empty = (area <= 0) | (areas <= 0)
    return np.where(empty, np.float32(0), common / (area + areas - common))


def _keep_best(
    o: DetectionPostProcessOptions, boxes: Array, scores: Array, at_most: int
) -> list[int]:
    """The boxes of one class that do not overlap a better one, best first, then by index."""
    above = np.flatnonzero(scores >= np.float32(o.nms_score_threshold))
    waiting = above[np.argsort(-scores[above], kind="stable")]
    kept: list[int] = []
    while waiting.size and len(kept) < at_most:
        best, waiting = int(waiting[0]), waiting[1:]
        kept.append(best)
        overlap = _overlap(boxes[best], boxes[waiting])
        waiting = waiting[~(overlap > np.float32(o.nms_iou_threshold))]
    return kept


_Slots = dict[int, tuple[int, int]]  # slot -> box, class


def _at_once(o: DetectionPostProcessOptions, boxes: Array, scores: Array) -> tuple[int, _Slots]:
    """Suppress by each box's best class, and list every remaining box with its best classes."""
    n_classes = min(o.max_classes_per_detection, o.num_classes)
    numbers = np.where(np.isnan(scores), -np.inf, scores)
    ranked = np.argsort(-numbers, axis=1, kind="stable")[:, :n_classes]
    best = scores[np.arange(len(scores)), ranked[:, 0]]
    kept = _keep_best(o, boxes, best, o.max_detections)
    return len(kept), {
        i * o.max_classes_per_detection + j: (box, int(label))
        for i, box in enumerate(kept)
        for j, label in enumerate(ranked[box])
    }


def _by_class(o: DetectionPostProcessOptions, boxes: Array, scores: Array) -> tuple[int, _Slots]:
    """Suppress within each class, and list the best of all; lower classes first among equals."""
    at_most = min(o.detections_per_class, o.max_detections)
    listed = [
        (box, label)
        for label in range(o.num_classes)
        for box in _keep_best(o, boxes, scores[:, label], at_most)
    ]
    listed.sort(key=lambda pair: -scores[pair])  # stable
    return min(len(listed), o.max_detections), dict(enumerate(listed[: o.max_detections]))


def v4_shapes(_o: Options, inputs: Specs) -> tuple[Shape | None, ...]:
    limit = inputs[2].const
    return (None if limit is None else (int(limit.ravel()[0]),)), ()


def v5_shapes(o: Options, inputs: Specs) -> tuple[Shape | None, ...]:
    slots, count = v4_shapes(o, inputs)
    return slots, slots, count


def non_max_suppression_v4(
    _o: Options, _inputs: Specs, _outputs: Specs, boxes: Array, scores: Array, *settings: Array
) -> tuple[Array, Array]:
    """Indices of the selected boxes, zeros after, and their count."""
    limit, iou, threshold = settings
    most = int(limit.ravel()[0])
    indices, _, count = _suppress(boxes, scores, iou, threshold, limit=most, sigma=0.0)
    return indices, count


def non_max_suppression_v5(
    _o: Options, _inputs: Specs, _outputs: Specs, boxes: Array, scores: Array, *settings: Array
) -> tuple[Array, Array, Array]:
    """Indices and scores of the selected boxes, zeros after, and their count.

    A positive sigma lowers the scores of boxes by their overlap with those selected before.
    """
    limit, iou, threshold, sigma = settings
    if sigma.ravel()[0] < 0:
        raise ValueError(f"sigma is {sigma}")
    most, deviation = int(limit.ravel()[0]), float(sigma.ravel()[0])
    return _suppress(boxes, scores, iou, threshold, limit=most, sigma=deviation)


@np.errstate(all="ignore")
def _suppress(
    boxes: Array, scores: Array, iou: Array, threshold: Array, *, limit: int, sigma: float
) -> tuple[Array, Array, Array]:
    """A queue, as in the kernel.

    The candidate in front is compared with the boxes selected since it was last in front, the
    latest first.
    """
    boxes = np.concatenate(
        [np.minimum(boxes[:, :2], boxes[:, 2:]), np.maximum(boxes[:, :2], boxes[:, 2:])], axis=1
    )
    low, decay = threshold.ravel()[0], np.float32(-0.5 / sigma if sigma > 0 else 0.0)
    queue = [(-s, i, 0) for i, s in enumerate(scores.astype(np.float32)) if s > low]
    heapq.heapify(queue)
    at_most, selected = min(len(queue), limit), list[tuple[int, np.float32]]()
    while queue and len(selected) < at_most:
        front, i, seen = heapq.heappop(queue)
        score = -front
        for j, _ in reversed(selected[seen:]):
            overlap = _overlap(boxes[i], boxes[j : j + 1])[0]
            if overlap >= iou.ravel()[0]:
                break
            if sigma > 0:
                score = score * np.exp(decay * overlap * overlap)
            if score <= low:
                break
        else:
            seen = len(selected)
            if score == -front:
                selected.append((i, score))
            if score > low:
                # A selected box is queued too: next it overlaps itself, unless it has no area.
                heapq.heappush(queue, (-score, i, seen))
    indices, values = np.zeros(limit, np.int32), np.zeros(limit, np.float32)
    for k, (i, score) in enumerate(selected):
        indices[k], values[k] = i, score
    return indices, values, np.asarray(len(selected), np.int32)


KERNELS = {
    "TFLite_Detection_PostProcess": Kernel(detection_postprocess, postprocess_shapes),
    "NON_MAX_SUPPRESSION_V4": Kernel(non_max_suppression_v4, v4_shapes, settled=v4_shapes),
    "NON_MAX_SUPPRESSION_V5": Kernel(non_max_suppression_v5, v5_shapes, settled=v5_shapes),
}
