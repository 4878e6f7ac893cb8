"""Object detection: TFLite_Detection_PostProcess and NON_MAX_SUPPRESSION_V4, V5.

Semantics: kernels/detection_postprocess.cc, kernels/internal/reference/non_max_suppression.h.
Suppression takes one step per box to select, each over all boxes at once: nothing is sorted, and
no shape depends on data. Boxes are stored by coordinate, [4, n], so that XLA vectorizes these
steps. The kernels leave two things open: slots after the last detection are zero here, and values
that they sort in any order (equal scores in V4 and V5, equal classes of one box) are ordered by
index.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdelegate.op_lowering.common.pointwise import why_not_count
from jaxdelegate.op_lowering.common.quantization import why_not_per_tensor
from jaxdelegate.op_lowering.detection.options import DetectionPostProcessOptions
from jaxdelegate.op_lowering.records.record import Options
from jaxdelegate.op_lowering.rule import (
    Function,
    Op,
    first_reason,
    host_only,
    optional,
    rule,
    table,
    why_not_const,
    why_not_dtype,
    why_not_result,
)
from jaxdelegate.op_lowering.sorting.rule import top_k
from jaxdelegate.op_lowering.spec import Specs, TensorSpec
from jaxdelegate.quant import jax_affine

_Candidates = tuple[jax.Array, jax.Array]  # which boxes may still be selected, their scores
_Selection = tuple[jax.Array, jax.Array, jax.Array]  # index, score, whether there is one
_Detections = tuple[jax.Array, jax.Array, jax.Array, jax.Array]  # box, class, score, is one


def overlaps(box: jax.Array, boxes: jax.Array) -> jax.Array:
    """Intersection over union of one box [4] with many [4, n], each (y1, x1, y2, x2): [n].

    The result is 0 where one of the areas is not positive.
    """
    area = (box[2] - box[0]) * (box[3] - box[1])
    areas = (boxes[2] - boxes[0]) * (boxes[3] - boxes[1])
    # One axis at a time: XLA:CPU runs pairs of rows at less than half the speed.
    inner = [jnp.minimum(box[i + 2], boxes[i + 2]) - jnp.maximum(box[i], boxes[i]) for i in (0, 1)]
    height, width = (jnp.maximum(n, jnp.zeros_like(n)) for n in inner)
    intersection = height * width
    union = area + areas - intersection
    return jnp.where((area <= 0) | (areas <= 0), jnp.zeros_like(areas), intersection / union)


def _best(live: jax.Array, scores: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The first index of the highest live score, and whether there is a live one.

    Two reductions, because XLA:CPU does not vectorize `argmax`.
    """
    highest = jnp.max(jnp.where(live, scores, jnp.full_like(scores, -jnp.inf)))
    places = jnp.arange(live.size, dtype=np.int32)
    first = jnp.min(jnp.where(live & (scores == highest), places, np.int32(live.size)))
    return jnp.minimum(first, np.int32(live.size - 1)), first < live.size


_BYTES = frozenset((np.dtype(np.int8), np.dtype(np.uint8)))


def _why_not_postprocess(op: Op[DetectionPostProcessOptions]) -> str | None:
    encodings, scores, anchors = op.inputs[:3]
    reason = first_reason(
        _why_not_more(op.inputs, 3),
        why_not_count(op.outputs, 4, "outputs"),
        *(_why_not_real(spec) for spec in (encodings, scores, anchors)),
        *(why_not_dtype(spec, np.float32) for spec in op.outputs),
        _why_not_shapes(encodings, scores, anchors),
        _why_not_settings(op.options, scores),
    )
    return _why_not_anchors(anchors) if reason is None else reason


def _why_not_more(inputs: Specs, most: int) -> str | None:
    return None if len(inputs) <= most else f"has {len(inputs)} inputs, not {most}"


def _why_not_real(spec: TensorSpec) -> str | None:
    """The kernel reads float32, or dequantizes 8-bit integers first."""
    if spec.is_quantized:
        return why_not_per_tensor(spec, _BYTES)
    return why_not_dtype(spec, np.float32)


def _real(array: jax.Array, spec: TensorSpec) -> jax.Array:
    quantized = spec.quantization if spec.is_quantized else None
    return array if quantized is None else jax_affine.dequantize(jnp.asarray(array), quantized)


def _why_not_shapes(encodings: TensorSpec, scores: TensorSpec, anchors: TensorSpec) -> str | None:
    shapes = encodings.shape, scores.shape, anchors.shape
    if [len(s) for s in shapes] == [3, 3, 2] and encodings.shape[0] == scores.shape[0] == 1:
        n = encodings.shape[1]
        if scores.shape[1] == n == anchors.shape[0] and encodings.shape[2] >= 4:
            return None if anchors.shape[1] == 4 else f"anchors are {list(anchors.shape)}"
    return f"boxes, scores and anchors of {', '.join(str(list(s)) for s in shapes)} do not match"


def _why_not_settings(o: DetectionPostProcessOptions, scores: TensorSpec) -> str | None:
    n_classes = scores.shape[-1] if scores.shape else 0
    per_class = min(o.detections_per_class, o.max_detections)
    checks = {
        f"num_classes is {o.num_classes}, of {n_classes} scores a box": (
            o.num_classes >= 1 and n_classes - o.num_classes in (0, 1)
        ),
        f"nms_iou_threshold {o.nms_iou_threshold} is not in (0, 1]": 0 < o.nms_iou_threshold <= 1,
        f"max_detections is {o.max_detections}": o.max_detections >= 0,
        f"max_classes_per_detection is {o.max_classes_per_detection}": (
            o.max_classes_per_detection >= 1
        ),
        f"detections per class are {per_class}": not o.use_regular_nms or per_class >= 1,
    }
    return next((reason for reason, holds in checks.items() if not holds), None)


def _why_not_anchors(anchors: TensorSpec) -> str | None:
    inverted = anchors.const is not None and bool((anchors.const[:, 2:] < 0).any())
    return "an anchor has a negative size: the kernel stops there" if inverted else None


def _lower_postprocess(op: Op[DetectionPostProcessOptions]) -> Function:
    specs, settings = op.inputs[:3], op.options
    first_class = specs[1].shape[2] - settings.num_classes  # 1 if there is a background class
    suppress = _suppress_by_class if settings.use_regular_nms else _suppress_at_once
    n_slots = settings.max_detections * settings.max_classes_per_detection

    def detection_postprocess(
        encodings: jax.Array, scores: jax.Array, anchors: jax.Array
    ) -> tuple[jax.Array, ...]:
        encodings, scores, anchors = map(_real, (encodings, scores, anchors), specs)
        boxes = _decode(encodings[0, :, :4], anchors, settings)
        (*detections, is_one), count = suppress(boxes, scores[0, :, first_class:], settings)
        slots = [_fill(values, is_one, n_slots) for values in detections]
        return (*slots, count.astype(np.float32).reshape(1))

    return detection_postprocess


def _decode(encodings: jax.Array, anchors: jax.Array, o: DetectionPostProcessOptions) -> jax.Array:
    """Corners (y1, x1, y2, x2), [4, n], of offsets (y, x, h, w) to anchors, both [n, 4].

    In float64 up to center and half size, in float32 from there.
    """
    scales = np.asarray([[o.y_scale, o.x_scale, o.h_scale, o.w_scale]], np.float32)
    wide, anchors = encodings.astype(np.float64), anchors.astype(np.float64)
    scaled = wide / scales.astype(np.float64)
    sizes = anchors[:, 2:]
    center = (scaled[:, :2] * sizes + anchors[:, :2]).astype(np.float32)
    half = (0.5 * jnp.exp(scaled[:, 2:]) * sizes).astype(np.float32)
    return jnp.concatenate([center - half, center + half], axis=1).T


def _greedy(
    boxes: jax.Array, scores: jax.Array, o: DetectionPostProcessOptions, n_out: int
) -> tuple[jax.Array, jax.Array]:
    """The boxes of one class that do not overlap a better one, best first; and whether one exists.

    Both are [n_out]. Equal scores are ordered by index; a NaN is never selected.
    """
    live = scores >= jnp.float32(o.nms_score_threshold)

    def keep_best(live: jax.Array, _: None) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        best, is_one = _best(live, scores)
        overlap = overlaps(boxes[:, best], boxes) > jnp.float32(o.nms_iou_threshold)
        others = jnp.arange(live.size, dtype=np.int32) != best
        return live & others & ~overlap, (best, is_one)

    kept: tuple[jax.Array, jax.Array] = lax.scan(keep_best, live, None, length=n_out)[1]
    return kept


def _suppress_at_once(
    boxes: jax.Array, scores: jax.Array, o: DetectionPostProcessOptions
) -> tuple[_Detections, jax.Array]:
    """Fast suppression: by each box's best class; each kept box is listed with its best classes."""
    n_boxes, n_classes = scores.shape
    n_kept, n_best = min(o.max_detections, n_boxes), min(o.max_classes_per_detection, n_classes)
    if n_kept == 0:
        return _nothing(), jnp.zeros((), np.int32)
    kept, is_one = _greedy(boxes, jnp.nanmax(scores, axis=1), o, n_kept)
    best, classes = top_k(scores[kept], n_best)  # [n_kept, n_best]
    spare = [(0, 0), (0, o.max_classes_per_detection - n_best)]
    mask = jnp.broadcast_to(is_one[:, None], best.shape)
    best, classes, mask = (jnp.pad(a, spare).ravel() for a in (best, classes, mask))
    repeated = jnp.repeat(boxes.T[kept], o.max_classes_per_detection, axis=0)
    return (repeated, classes, best, mask), jnp.sum(is_one, dtype=np.int32)


def _suppress_by_class(
    boxes: jax.Array, scores: jax.Array, o: DetectionPostProcessOptions
) -> tuple[_Detections, jax.Array]:
    """Regular suppression: within each class; then the best of all, lower classes first."""
    n_kept = min(o.detections_per_class, o.max_detections, scores.shape[0])
    if n_kept == 0:
        return _nothing(), jnp.zeros((), np.int32)
    by_class = scores.T  # [classes, n]
    kept, is_one = jax.vmap(lambda s: _greedy(boxes, s, o, n_kept))(by_class)
    values = jnp.take_along_axis(by_class, kept, axis=1).ravel()
    kept, is_one = kept.ravel(), is_one.ravel()
    order = jnp.lexsort((-values, ~is_one))[: o.max_detections]
    detections = boxes.T[kept[order]], order // n_kept, values[order], is_one[order]
    return detections, jnp.sum(is_one[order], dtype=np.int32)


def _nothing() -> _Detections:
    none = jnp.zeros(0, np.float32)
    return none.reshape(0, 4), none, none, none.astype(np.bool_)


def _fill(values: jax.Array, is_one: jax.Array, n_slots: int) -> jax.Array:
    """[1, slots, ...] in float32, with zeros in slots without a box."""
    mask = is_one.reshape(-1, *[1] * (values.ndim - 1))
    kept = jnp.where(mask, values.astype(np.float32), jnp.zeros((), np.float32))
    spare = [(0, n_slots - values.shape[0])] + [(0, 0)] * (values.ndim - 1)
    return jnp.pad(kept, spare)[None]


def _why_not_nms(op: Op[Options]) -> str | None:
    boxes, scores, n_out, iou, threshold = op.inputs[:5]
    sigma = optional(op.inputs, 5)
    matching = boxes.shape == (*scores.shape, 4) and len(scores.shape) == 1
    yields = (np.int32, np.int32) if sigma is None else (np.int32, np.float32, np.int32)
    reason = first_reason(
        _why_not_more(op.inputs, 6),
        why_not_count(op.outputs, len(yields), "outputs"),
        *map(why_not_result, op.outputs, yields),
        *(why_not_dtype(spec, np.float32) for spec in (boxes, scores, iou, threshold)),
        None if matching else f"boxes {list(boxes.shape)}, scores {list(scores.shape)}",
        why_not_const(n_out),
        why_not_dtype(n_out, np.int32),
        *(_why_not_one_value(spec) for spec in (n_out, iou, threshold)),
    )
    return _why_not_soft(threshold, sigma) if reason is None and sigma is not None else reason


def _why_not_one_value(spec: TensorSpec) -> str | None:
    if spec.shape not in ((), (1,)):
        return f"{spec.name!r} has shape {list(spec.shape)}, not one value"
    negative = spec.dtype == np.int32 and spec.const is not None and (spec.const < 0).any()
    return f"{spec.name!r} is {spec.const}" if negative else None


def _why_not_soft(threshold: TensorSpec, sigma: TensorSpec) -> str | None:
    reason = first_reason(
        why_not_const(sigma), why_not_dtype(sigma, np.float32), _why_not_one_value(sigma)
    )
    if reason is not None or _one_value(sigma) == 0:
        return reason
    if not _one_value(sigma) > 0:
        return f"sigma is {_one_value(sigma)}: the kernel stops there"
    if threshold.const is None or _one_value(threshold) >= 0:
        return why_not_const(threshold)
    return "soft suppression raises negative scores: the result depends on the kernel's queue"


def _one_value(spec: TensorSpec | None) -> float:
    return 0.0 if spec is None or spec.const is None else float(spec.const.ravel()[0])


def _lower_nms(op: Op[Options]) -> Function:
    sigma = _one_value(optional(op.inputs, 5))
    n_slots, n_listed = op.outputs[0].shape[0], len(op.outputs) - 1
    n_out = min(n_slots, op.inputs[1].shape[0])

    def non_max_suppression(
        boxes: jax.Array, scores: jax.Array, _n: jax.Array, *settings: jax.Array
    ) -> tuple[jax.Array, ...]:
        iou, threshold, *rest = (a.reshape(()) for a in settings)
        decay = np.float32(-0.5) / rest[0] if sigma > 0 else None
        if n_out == 0:
            empty = jnp.zeros(n_slots, np.float32)
            nothing = (empty.astype(np.int32), empty)[:n_listed]
            return (*nothing, jnp.zeros((), np.int32))
        indices, best, is_one = _select(boxes, scores, iou, threshold, decay=decay, n_out=n_out)
        chosen = (jnp.where(is_one, a, jnp.zeros_like(a)) for a in (indices, best))
        padded = [jnp.pad(a, (0, n_slots - n_out)) for a in chosen]
        return (*padded[:n_listed], jnp.sum(is_one, dtype=np.int32))

    return non_max_suppression


def _select(
    boxes: jax.Array,
    scores: jax.Array,
    iou: jax.Array,
    threshold: jax.Array,
    *,
    decay: jax.Array | None,
    n_out: int,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Indices, scores when selected and whether a box was selected, each [n_out].

    The kernel keeps a queue, and updates a candidate's score when it comes to the front. Scores
    only fall, so updating all of them at each selection selects the same boxes. A selected box
    remains a candidate, as in the kernel: its overlap with itself suppresses it, unless it has no
    area or the threshold is above 1.
    """
    corners = (boxes[:, :2], boxes[:, 2:])
    boxes = jnp.concatenate([jnp.minimum(*corners), jnp.maximum(*corners)], axis=1).T
    live = scores > threshold
    limit = jnp.sum(live, dtype=np.int32)

    def select(state: _Candidates, k: jax.Array) -> tuple[_Candidates, _Selection]:
        live, score = state
        best, is_one = _best(live, score)
        overlap = overlaps(boxes[:, best], boxes)
        weight = None if decay is None else jnp.exp(decay * overlap * overlap)
        fallen = score if weight is None else score * weight
        kept = live & ~(overlap >= iou) & (fallen > threshold)
        return (kept, fallen), (best, score[best], is_one & (k < limit))

    selection: _Selection = lax.scan(select, (live, scores), jnp.arange(n_out, dtype=np.int32))[1]
    return selection


RULES = table(
    rule("TFLite_Detection_PostProcess", 1, _why_not_postprocess, _lower_postprocess, arity=3),
    rule("NON_MAX_SUPPRESSION_V4", 1, _why_not_nms, _lower_nms, arity=5),
    rule("NON_MAX_SUPPRESSION_V5", 1, _why_not_nms, _lower_nms, arity=6),
    host_only("PosenetDecoderOp", 1, "how many persons it follows depends on data"),
)
