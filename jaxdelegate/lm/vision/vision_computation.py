"""The functions that become the programs of a vision encoder. Imports jax."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdelegate.device_weights import DeviceWeights
from jaxdelegate.function.views import View
from jaxdelegate.lm.compilation import Applies, Compilation, Run
from jaxdelegate.lm.vision.vision_graph import ADAPTER, END, POSITIONS, VisionGraph, VisionStep
from jaxdelegate.lm.vision.vision_program import VisionSpec, arguments, keys, results
from jaxdelegate.model.records import Model
from jaxdelegate.program import Program


class VisionComputation(Compilation):
    """Compiles the programs of a vision encoder with its adapter."""

    def __init__(
        self, models: Mapping[str, Model], view: View, graph: VisionGraph, weights: DeviceWeights
    ) -> None:
        """`models`: the encoder, called "", and the others, by part."""
        super().__init__(view, weights)
        self._models, self._graph = models, graph

    def program(self, spec: VisionSpec) -> Program:
        """Compile a program."""
        graph = self._graph

        def traced(applies: Applies) -> Run:
            if spec.is_end:
                return lambda params: (_row(applies[END](params[END])[0]),)
            step = graph.step(spec.key)

            def run(params: Any, *arrays: Any) -> tuple[Any]:
                def one(*own: Any) -> jax.Array:
                    return _embeddings(step, applies, params, *own)

                if spec.rows == 1:
                    return (one(*(array[0] for array in arrays))[None],)
                return (jax.vmap(one)(*arrays),)

            return run

        return self.compiled(
            f"encode_{spec.key}",
            self._models,
            keys(graph, spec),
            traced,
            arguments(graph, spec),
            {},
            results=len(results(graph, spec)),
        )


def _row(array: jax.Array) -> jax.Array:
    return array.reshape(1, -1).astype(np.float32)


def _embeddings(
    step: VisionStep, applies: Applies, params: Any, count: Any, images: Any, *positions: Any
) -> jax.Array:
    """float32 [places, size], of which the first `count` are the image's."""
    inputs = {step.images_name: images.reshape(step.images.shape)}
    for array in positions:
        inputs[POSITIONS] = array[None]
    features = applies[""](params[""], inputs)[step.features_name]
    if step.patches:  # LiteRT-LM passes on the image's features only
        is_there = lax.iota(np.int32, features.shape[-2]) < count
        features = jnp.where(is_there[:, None], features, 0)
    outputs = applies[ADAPTER](params[ADAPTER], {step.soft_tokens: features})
    found: jax.Array = outputs[step.embeddings_name]
    return found.reshape(step.embeddings.shape[-2:]).astype(np.float32)
