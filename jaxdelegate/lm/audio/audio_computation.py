"""The functions that become the programs of an audio encoder. Imports jax."""

from typing import Any

import jax
import numpy as np
from jax import lax

from jaxdelegate.lm.audio.audio_graph import ADAPTER, FEATURES, INPUTS, MASK, AudioGraph
from jaxdelegate.lm.compilation import Applies
from jaxdelegate.lm.contents.content_computation import ContentComputation


class AudioComputation(ContentComputation[AudioGraph]):
    """Compiles the programs of an audio encoder with its adapter."""

    def _embeddings(self, _key: str, /, applies: Applies, params: Any, *arrays: Any) -> jax.Array:
        """float32 [places, size], of which the first ones are the sound's."""
        graph = self._graph
        count, spectra = arrays
        is_there = (lax.iota(np.int32, graph.frames) < count).reshape(graph.mask)
        encoded = applies[""](params[""], {INPUTS: spectra[None], MASK: is_there})
        given = {FEATURES: encoded[FEATURES], MASK: encoded[graph.mask_out]}
        found: jax.Array = applies[ADAPTER](params[ADAPTER], given)[graph.result]
        return found[0].astype(np.float32)
