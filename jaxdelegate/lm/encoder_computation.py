"""The functions that become the programs of a text encoder. Imports jax."""

import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdelegate.device_weights import DeviceWeights
from jaxdelegate.function.views import View
from jaxdelegate.lm.compilation import Applies, Compilation, Run, embedded, with_soft
from jaxdelegate.lm.encoder_graph import (
    Encoder,
    EncoderGraph,
    EncoderSpec,
    arguments,
    results,
)
from jaxdelegate.model.records import Model
from jaxdelegate.program import Program


class EncoderComputation(Compilation):
    """Compiles the programs of a text encoder, with embedders."""

    def __init__(
        self, models: Mapping[str, Model], view: View, graph: EncoderGraph, weights: DeviceWeights
    ) -> None:
        """`models`: the text encoder, called "", and embedders, by part."""
        super().__init__(view, weights)
        self._models, self._graph = models, graph

    def program(self, spec: EncoderSpec) -> Program:
        """Compile a program."""
        graph = self._graph
        encoder = graph.of_key(spec.key)

        def traced(applies: Applies) -> Run:
            def run(params: Any, *arrays: Any) -> tuple[Any]:
                def one(*own: Any) -> Any:
                    return _embedding(graph, encoder, applies, params, *own)

                if spec.rows == 1:
                    return (one(*(array[0] for array in arrays))[None],)
                return (jax.vmap(one)(*arrays),)

            return run

        return self.compiled(
            f"embed_{spec.key}",
            self._models,
            graph.keys(spec.key),
            traced,
            arguments(graph, spec),
            {},
            results=len(results(graph, spec)),
        )


def _embedding(
    graph: EncoderGraph,
    encoder: Encoder,
    applies: Applies,
    params: Any,
    tokens: Any,
    count: Any,
    *soft: Any,
) -> jax.Array:
    """float32 [size], of the first `count` tokens; `soft`: see `LanguageComputation`."""
    inputs = {}
    for lookup in encoder.lookups:
        known = jnp.maximum(tokens, 0) if soft else tokens
        found = embedded(applies, params, graph.embedders[lookup.part], known)
        if soft and lookup.part == "embedder":
            found = with_soft(found, tokens, soft[0])
        inputs[lookup.name] = found.reshape(lookup.shape)
    for name, info in encoder.masks.items():
        sees = lax.iota(np.int32, math.prod(info.shape)) < count
        inputs[name] = sees.astype(info.dtype).reshape(info.shape)
    result: jax.Array = applies[""](params[""], inputs)[encoder.result]
    return result.reshape(-1).astype(np.float32)
