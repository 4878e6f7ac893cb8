"""The functions that become the programs of an encoder. Imports jax."""

import abc
from collections.abc import Mapping
from typing import Any, Generic, TypeVar

import jax
import numpy as np

from jaxdelegate.device_weights import DeviceWeights
from jaxdelegate.function.views import View
from jaxdelegate.lm.compilation import Applies, Compilation, Run
from jaxdelegate.lm.contents.content_program import (
    ContentGraph,
    ContentSpec,
    arguments,
    keys,
    results,
)
from jaxdelegate.model.records import Model
from jaxdelegate.program import Program

G = TypeVar("G", bound=ContentGraph)


class ContentComputation(Compilation, abc.ABC, Generic[G]):
    """Compiles the programs of an encoder with its adapter."""

    def __init__(
        self, models: Mapping[str, Model], view: View, graph: G, weights: DeviceWeights
    ) -> None:
        """`models`: the encoder, called "", and the others, by part."""
        super().__init__(view, weights)
        self._models, self._graph = models, graph

    @abc.abstractmethod
    def _embeddings(self, key: str, /, applies: Applies, params: Any, *arrays: Any) -> jax.Array:
        """float32 [places, size] of one piece, by the encoder's signature `key`."""

    def program(self, spec: ContentSpec) -> Program:
        """Compile a program."""
        graph = self._graph

        def traced(applies: Applies) -> Run:
            if spec.is_end:
                return lambda params: (_row(applies[graph.end_part](params[graph.end_part])[0]),)

            def run(params: Any, *arrays: Any) -> tuple[Any]:
                def one(*own: Any) -> jax.Array:
                    return self._embeddings(spec.key, applies, params, *own)

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
