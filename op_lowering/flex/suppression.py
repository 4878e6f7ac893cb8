"""CombinedNonMaxSuppression (core/kernels/image/non_max_suppression_op.cc).

One step for each box to select, over all boxes of a class at once: no shape depends on data.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdelegate.op_lowering.common.movement import integers
from jaxdelegate.op_lowering.common.products import nothing
from jaxdelegate.op_lowering.detection.rule import overlaps
from jaxdelegate.op_lowering.flex.options import FlexSuppressionOptions
from jaxdelegate.op_lowering.records.flex import FLEX
from jaxdelegate.op_lowering.rule import (
    Function,
    Op,
    OpRule,
    first_reason,
    table,
    why_not_const,
    why_not_dtype,
    why_not_result,
)
from jaxdelegate.op_lowering.spec import Shape, TensorSpec

_Op = Op[FlexSuppressionOptions]


def _why_not_suppression(op: _Op) -> str | None:
    boxes, scores, *settings = op.inputs[:6]
    *floats, count = op.outputs[:4]
    return first_reason(
        *(why_not_dtype(spec, np.float32) for spec in (boxes, scores, *settings[2:])),
        *(_why_not_number(spec) for spec in settings),
        *(why_not_const(n) or why_not_dtype(n, np.int32) for n in settings[:2]),
        *(why_not_result(y, np.float32) for y in floats),
        why_not_result(count, np.int32),
        _why_not_shapes(boxes.shape, scores.shape),
    ) or _why_not_counts(*settings[:2])


def _why_not_number(spec: TensorSpec) -> str | None:
    return None if spec.shape == () else f"{spec.name!r} {list(spec.shape)} is not one number"


def _why_not_shapes(boxes: Shape, scores: Shape) -> str | None:
    fits = len(boxes) == 4 and len(scores) == 3 and boxes[:2] == scores[:2]
    if fits and boxes[2] in (1, scores[2]) and boxes[3] == 4:
        return None
    return f"boxes {list(boxes)} for scores {list(scores)}"


def _why_not_counts(*counts: TensorSpec) -> str | None:
    found = [n for spec in counts for n in integers(spec)]
    return None if min(found) > 0 else f"{found} boxes of a class and of all: expected some"


def _lower_suppression(op: _Op) -> Function:
    n_boxes, classes = op.inputs[1].shape[1:]
    n_out, n_total = min(*integers(op.inputs[2]), n_boxes), op.outputs[1].shape[1]
    if 0 in (*op.inputs[1].shape, n_out):
        return nothing(op.outputs)

    def suppress(
        boxes: jax.Array, scores: jax.Array, _each: int, _all: int, iou: jax.Array, least: jax.Array
    ) -> tuple[jax.Array, ...]:
        boxes, scores = jnp.asarray(boxes), jnp.asarray(scores)
        by_class = jnp.broadcast_to(boxes, (*scores.shape, 4)).transpose(0, 2, 3, 1)
        first, last = jnp.split(by_class, 2, axis=2)
        corners = jnp.concatenate([jnp.minimum(first, last), jnp.maximum(first, last)], 2)

        def of_class(corners: jax.Array, scores: jax.Array) -> tuple[jax.Array, jax.Array]:
            return _select(corners, scores, iou, least, n_out)

        # [N, classes, n_out]: the index of each box, and its score, -inf if it does not exist.
        index, best = jax.vmap(jax.vmap(of_class))(corners, scores.transpose(0, 2, 1))
        kept, place = lax.top_k(best.reshape(len(scores), -1), min(n_total, classes * n_out))
        found, class_ = kept > -jnp.inf, place // n_out
        chosen = jnp.take_along_axis(index.reshape(len(scores), -1), place, 1)
        group = class_ if boxes.shape[2] > 1 else jnp.zeros_like(class_)
        listed = boxes[jnp.arange(len(scores))[:, None], chosen, group]
        if op.options.clip_boxes:
            listed = jnp.clip(listed, 0, 1)
        results = listed, kept, class_.astype(np.float32)
        return *(_filled(r, found, n_total) for r in results), jnp.sum(found, 1, dtype=np.int32)

    return suppress


def _select(
    boxes: jax.Array, scores: jax.Array, iou: jax.Array, least: jax.Array, n_out: int
) -> tuple[jax.Array, jax.Array]:
    """Indices of the best boxes [4, n] that do not overlap a better one, and their scores."""

    def keep_best(live: jax.Array, _: None) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        held = jnp.where(live, scores, -jnp.inf)
        best = lax.argmax(held, 0, np.int32)
        others = jnp.arange(live.size, dtype=np.int32) != best
        return live & others & ~(overlaps(boxes[:, best], boxes) > iou), (best, held[best])

    selected: tuple[jax.Array, jax.Array] = lax.scan(keep_best, scores > least, length=n_out)[1]
    return selected


def _filled(values: jax.Array, found: jax.Array, n: int) -> jax.Array:
    """[N, k, ...] -> [N, n, ...], zero where there is no box."""
    mask = found.reshape(found.shape + (1,) * (values.ndim - 2))
    kept = jnp.where(mask, values, jnp.zeros_like(values))
    return jnp.pad(kept, [(0, 0), (0, n - values.shape[1])] + [(0, 0)] * (values.ndim - 2))


RULES = table(
    OpRule(
        f"{FLEX}CombinedNonMaxSuppression",
        FlexSuppressionOptions,
        1,
        _why_not_suppression,
        _lower_suppression,
        arity=6,
        results=4,
    )
)
