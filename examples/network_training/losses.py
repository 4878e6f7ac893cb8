"""The loss of each task: `loss(apply, params, batch)`, with `apply` from `model.function()`."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

Apply = Callable[..., Any]
Arrays = dict[str, jax.Array]
_LEAST = 1e-7  # probability, whose logarithm is finite


def classification(apply: Apply, params: Arrays, batch: Arrays) -> jax.Array:
    """Cross entropy of `probabilities`."""
    probabilities, _ = apply(params, batch["x"])
    right = jnp.take_along_axis(probabilities, batch["label"][:, None], axis=1)
    return -jnp.log(right + _LEAST).mean()


def detection(apply: Apply, params: Arrays, batch: Arrays) -> jax.Array:
    """Focal loss of the scores, Huber loss of the encodings where there is a shape."""
    encodings, scores = apply(params, batch["x"])
    right = jnp.where(batch["scores"] > 0, scores, 1 - scores)
    focal = -((1 - right) ** 2) * jnp.log(right + _LEAST)
    of_scores = (focal[..., 1:].sum(-1) * batch["counts"]).sum()
    away = jnp.abs(encodings - batch["encodings"])
    huber = jnp.where(away < 1, 0.5 * away**2, away - 0.5).sum(-1)
    return (of_scores + 0.3 * (huber * batch["is_shape"]).sum()) / batch["is_shape"].sum()


def segmentation(apply: Apply, params: Arrays, batch: Arrays) -> jax.Array:
    """Cross entropy of each pixel; those of shapes count twice."""
    (scores,) = apply(params, batch["x"])
    logs = jax.nn.log_softmax(scores)
    right = jnp.take_along_axis(logs, batch["mask"][..., None], axis=-1)[..., 0]
    weights = 1.0 + (batch["mask"] > 0)
    return -(weights * right).sum() / weights.sum()


def pose(apply: Apply, params: Arrays, batch: Arrays) -> jax.Array:
    """Cross entropy of the cells of each joint's heatmap."""
    (heatmaps,) = apply(params, batch["x"])
    logs = jax.nn.log_softmax(heatmaps, axis=(1, 2))
    return -(batch["heatmaps"] * logs).sum(axis=(1, 2)).mean()


def keywords(apply: Apply, params: Arrays, batch: Arrays, state: Arrays) -> jax.Array:
    """Cross entropy of each frame, the network's state threaded through the frames."""

    def step(state: Arrays, frame: jax.Array) -> tuple[Arrays, jax.Array]:
        (scores,), state = apply(params, frame[None], state=state)
        return state, scores[0]

    def stream(frames: jax.Array) -> jax.Array:
        return jax.lax.scan(step, state, frames)[1]

    scores = jax.vmap(stream)(batch["x"])
    right = jnp.take_along_axis(scores, batch["label"][..., None], axis=-1)[..., 0]
    weights = batch["weight"] * (1.0 + 3.0 * (batch["label"] > 0))
    return -(weights * jnp.log(right + _LEAST)).sum() / weights.sum()
