"""The place of one program in the cache, and how its key comes together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from jaxdelegate.cache.environment import environment_parts
from jaxdelegate.cache.key import Key, Part
from jaxdelegate.cache.partition_key import (
    KnownModel,
    boundary_parts,
    calls_subgraphs,
    model_part,
    read_constants,
)
from jaxdelegate.cache.sources import confirm, source_parts
from jaxdelegate.digests import PREFERRED

if TYPE_CHECKING:
    import numpy as np

    from jaxdelegate.op_lowering.spec import TensorSpec
    from jaxdelegate.simple_delegate import DelegateParams


class Slot:
    """Where the program of one partition, for the current shapes, belongs.

    Attributes:
        specs: of every tensor that the partition touches; of all its runs.
        constants: those that its program depends on, by tensor.
        digests: of the constants.
        key: of the program.
        model_name: of the model, for people.
        operators: what the program computes, for people.
    """

    def __init__(
        self,
        params: DelegateParams,
        specs: Mapping[int, TensorSpec],
        model: KnownModel,
        settings: Mapping[str, Any],
        jax_config: Part,
        device: Any,
    ) -> None:
        """Find the key.

        Args:
            params: the partition.
            specs: of every tensor that it touches.
            model: what is known of the open model.
            settings: further parts of the key: options, model token.
            jax_config: JAX's settings.
            device: where the program runs.

        Raises:
            TypeError: options of a kind that is not known to be the same in every process.
            SourceError: what makes programs cannot be known.
        """
        self.specs = _of_program(params, specs)
        self.model_name, self.operators = model.name, _in_words(params, self.specs)
        self.constants: Mapping[int, np.ndarray] = read_constants(
            params.nodes, params.outputs, specs
        )
        self.digests: Mapping[int, str] = model.constants.of(self.constants)
        self._calls_subgraphs = calls_subgraphs(params.nodes)
        self.key = Key(
            {
                **process_parts(settings, device),
                "jax_config": jax_config,
                **model.operators.of(params.nodes, specs),
                **boundary_parts(params, specs),
                **source_parts(of_subgraphs=self._calls_subgraphs),
                **model_part(self.digests),
            }
        )

    def confirm(self) -> None:
        """Make sure that the key tells what code has made the program.

        Raises:
            SourceError: it may be another one.
        """
        confirm(of_subgraphs=self._calls_subgraphs)


def process_parts(settings: Mapping[str, Any], device: Any) -> dict[str, Part]:
    """What no model changes: a delegate's settings, how constants are hashed, the environment."""
    own = {name: Part.of(value) for name, value in settings.items()}
    return own | {"digests": Part.of(PREFERRED)} | environment_parts(device)


def _of_program(
    params: DelegateParams, specs: Mapping[int, TensorSpec]
) -> Mapping[int, TensorSpec]:
    """Specs with the shapes that the program's inputs, outputs and states have."""
    if params.runs is None:
        return specs
    states = [i for i, spec in specs.items() if spec.is_variable]
    ends = {*params.inputs, *params.outputs, *states} & specs.keys()
    return {**specs, **params.runs.specs(specs, ends)}


def _in_words(params: DelegateParams, specs: Mapping[int, TensorSpec]) -> str:
    """`13 operators, CONV_2D .. SOFTMAX, of int8 [1, 49, 10, 1]`."""
    names = [node.name for node in params.nodes]
    arrays = ", ".join(f"{specs[i].dtype} {list(specs[i].shape)}" for i in params.inputs)
    count = f"{len(names)} operator{'s' if len(names) != 1 else ''}"
    return f"{count}, {' .. '.join(dict.fromkeys((names[0], names[-1])))}, of {arrays}"
