"""The functions that become the programs of a vision encoder. Imports jax."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdelegate.lm.compilation import Applies
from jaxdelegate.lm.contents.content_computation import ContentComputation
from jaxdelegate.lm.vision.vision_graph import ADAPTER, POSITIONS, VisionGraph


class VisionComputation(ContentComputation[VisionGraph]):
    """Compiles the programs of a vision encoder with its adapter."""

    def _embeddings(self, key: str, /, applies: Applies, params: Any, *arrays: Any) -> jax.Array:
        """float32 [places, size], of which the first `count` are the image's."""
        step = self._graph.step(key)
        count, images, *positions = arrays
        inputs = {step.images_name: images.reshape(step.images.shape)}
        for array in positions:
            inputs[POSITIONS] = array[None]
        features = applies[""](params[""], inputs)[step.features_name]
        if not step.adapter:
            return _rows(features)
        if step.patches:  # LiteRT-LM passes on the image's features only
            is_there = lax.iota(np.int32, features.shape[-2]) < count
            features = jnp.where(is_there[:, None], features, 0)
        outputs = applies[ADAPTER](params[ADAPTER], {step.soft_tokens: features})
        return _rows(outputs[step.embeddings_name])


def _rows(found: jax.Array) -> jax.Array:
    return found.reshape(found.shape[-2:]).astype(np.float32)
