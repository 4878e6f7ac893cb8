"""Compiles functions of a bundle's models. Imports jax.

Weights are those that a delegate would use, one copy for all programs.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxdelegate.device_weights import DeviceWeights
from jaxdelegate.function.apply import Apply
from jaxdelegate.function.functions import Functions
from jaxdelegate.function.mode import Mode
from jaxdelegate.function.records import Params
from jaxdelegate.function.views import View
from jaxdelegate.lm.graph import Embedder
from jaxdelegate.lm.program_spec import Array
from jaxdelegate.model.records import Model
from jaxdelegate.op_lowering.spec import Shape
from jaxdelegate.program import Program
from jaxdelegate.xla import aot, loops
from jaxdelegate.xla.options import platform_of

Applies = Mapping[str, Any]  # the functions of signatures, by part
Run = Callable[..., tuple[Any, ...]]  # takes weights by part, then arrays
_MODE = Mode(io="reduced", weights="prepared")  # caches may be in reduced precision


class Compilation:
    """Compiles for the device of `weights`, which take in the models' own."""

    def __init__(self, view: View, weights: DeviceWeights) -> None:
        """`view`: of all models."""
        self._weights = weights
        self._loops = loops.form_on(weights.runtime.device)
        self._functions = functools.cache(lambda model: Functions(model, view, weights=weights))

    def compiled(
        self,
        name: str,
        models: Mapping[str, Model],
        keys: Mapping[str, str],
        traced: Callable[[Applies], Run],
        arguments: Sequence[Array],
        shapes: Mapping[str, Mapping[str, Shape]],
        *,
        results: int,
        donated: int = 0,
    ) -> Program:
        """Compile a function of signatures.

        Args:
            name: of the program.
            models: by part.
            keys: of the signatures, by part.
            traced: makes the function of those of the signatures; JAX traces it.
            arguments: its arrays.
            shapes: of the signatures' inputs, by part, where they are not the file's.
            results: how many it returns.
            donated: how many of the first arrays become its first results, in place.
        """
        functions = {
            part: self._function(models[part], key, shapes.get(part)) for part, key in keys.items()
        }
        params = {
            (part, leaf): array
            for part, (_, leaves) in functions.items()
            for leaf, array in leaves.items()
        }
        names, run = [*params], traced({part: apply for part, (apply, _) in functions.items()})

        def program(*arrays: Any) -> tuple[Any, ...]:
            leaves: dict[str, Params] = {part: {} for part in keys}
            for (part, leaf), array in zip(names, arrays, strict=False):
                leaves[part][leaf] = array
            return run(leaves, *arrays[len(names) :])

        program.__name__ = name
        weights = [(a.shape, a.dtype) for a in params.values()]
        executable, was_read = aot.compile_function(
            program,
            [*weights, *arguments],
            tuple(range(len(names), len(names) + donated)),
            self._weights.runtime,
            exact=False,
            has_loop_graphs=donated > 0 and self._loops == "graph",
        )
        return Program(
            executable=executable,
            weights=tuple(params.values()),
            inputs=tuple(range(len(arguments))),
            outputs=tuple(range(results)),
            states={},
            donated=tuple(range(donated)),
            was_read=was_read,
            is_on_cpu=platform_of(self._weights.runtime.device.platform) == "cpu",
        )

    def _function(
        self, model: Model, key: str, shapes: Mapping[str, Shape] | None
    ) -> tuple[Any, Params]:
        functions = self._functions(model)
        if shapes is not None:
            functions.declare(key, shapes)
        return Apply(functions, key, _MODE), functions.function_of(key).leaves(_MODE)


def embedded(applies: Applies, params: Any, embedder: Embedder, tokens: Any) -> jax.Array:
    """[tokens, ...]: what an embedder computes from each token."""
    apply, own = applies[embedder.part], params[embedder.part]

    def one(token: Any) -> Any:
        return apply(own, {embedder.token: token.astype(embedder.dtype).reshape(embedder.shape)})

    found: jax.Array = jax.vmap(one)(tokens)[embedder.result]
    return found


def with_soft(found: jax.Array, tokens: Any, soft: Any) -> jax.Array:
    """[tokens, size]: what an embedder computed; rows of `soft` where tokens are negative."""
    rows = found.reshape(soft.shape)
    return jnp.where(tokens[:, None] < 0, soft.astype(rows.dtype), rows)
