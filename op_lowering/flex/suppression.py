"""CombinedNonMaxSuppression (core/kernels/image/non_max_suppression_op.cc).

One step for each box to select, over all boxes of a class at once: no shape depends on data.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdelegate.op_lowering.common.movement import integers
from jaxdelegate.op_lowering.common.products import nothing
from jaxdelegate.op_lowering.common.signature import CONSTANTS32, FLOAT32
from jaxdelegate.op_lowering.detection.rule import overlaps
from jaxdelegate.op_lowering.flex.signature import rule
from jaxdelegate.op_lowering.records.flex import FlexOptions
from jaxdelegate.op_lowering.rule import Function, Op, table

_Op = Op[FlexOptions]


def _why_not_suppression(op: _Op) -> str | None:
    wrong = next((spec for spec in op.inputs[2:6] if spec.shape), None)
    if wrong is not None:
        return f"{wrong.name!r} {list(wrong.shape)} is not one number"
    counts = [n for spec in op.inputs[2:4] for n in integers(spec)]
    return None if min(counts) > 0 else f"{counts} boxes of a class and of all: expected some"


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
        exists, class_ = kept > -jnp.inf, place // n_out
        chosen = jnp.take_along_axis(index.reshape(len(scores), -1), place, 1)
        group = class_ if boxes.shape[2] > 1 else jnp.zeros_like(class_)
        listed = boxes[jnp.arange(len(scores))[:, None], chosen, group]
        if op.options.clip_boxes:
            listed = jnp.clip(listed, 0, 1)
        results = listed, kept, class_.astype(np.float32)
        return *(_filled(r, exists, n_total) for r in results), jnp.sum(exists, 1, dtype=np.int32)

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


def _filled(values: jax.Array, exists: jax.Array, n: int) -> jax.Array:
    """[N, k, ...] -> [N, n, ...], zero where there is no box."""
    mask = exists.reshape(exists.shape + (1,) * (values.ndim - 2))
    kept = jnp.where(mask, values, jnp.zeros_like(values))
    return jnp.pad(kept, [(0, 0), (0, n - values.shape[1])] + [(0, 0)] * (values.ndim - 2))


RULES = table(
    rule(
        "CombinedNonMaxSuppression",
        [FLOAT32, FLOAT32, CONSTANTS32, CONSTANTS32, FLOAT32, FLOAT32],
        _lower_suppression,
        _why_not_suppression,
        results=[np.float32, np.float32, np.float32, np.int32],
    )
)
