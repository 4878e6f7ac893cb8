"""The place of one program in the cache, and how its key comes together."""

import functools
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from jaxdelegate.cache.environment import environment_parts
from jaxdelegate.cache.key import Key, Part
from jaxdelegate.cache.partition_key import (
    KnownModel,
    boundary_parts,
    calls_subgraphs,
    model_part,
    read_constants,
)
from jaxdelegate.cache.sources import Sources
from jaxdelegate.digests import PREFERRED
from jaxdelegate.op_lowering.spec import TensorSpec
from jaxdelegate.simple_delegate import DelegateParams


class Slot:
    """Where the program of one partition, for the current shapes, belongs.

    Most parts of its key are known at once; `key` reads constants and sources for the others.

    Attributes:
        specs: of every tensor that the partition touches.
        constants: those that its program depends on, by tensor.
        family: of the key.
    """

    def __init__(
        self,
        params: DelegateParams,
        specs: Mapping[int, TensorSpec],
        model: KnownModel,
        settings: Mapping[str, Any],
        device: jax.Device,
        sources: Sources,
    ) -> None:
        """Find out what can be had without reading.

        Args:
            params: the partition.
            specs: of every tensor that it touches.
            model: what is known of the open model.
            settings: further parts of the key: options, model token.
            device: where the program runs.
            sources: of this package.

        Raises:
            TypeError: options of a kind that is not known to be the same in every process.
        """
        self.specs = specs
        self.constants: Mapping[int, np.ndarray] = read_constants(
            params.nodes, params.outputs, specs
        )
        self._known_digests = model.constants
        self._sources = sources
        self._calls_subgraphs = calls_subgraphs(params.nodes)
        self._known = {
            **setting_parts(settings),
            **environment_parts(device),
            **model.operators.of(params.nodes, specs),
            **boundary_parts(params, specs),
        }
        self.family = Key(self._known).family

    @functools.cached_property
    def digests(self) -> Mapping[int, str]:
        """Of the constants, by tensor."""
        return self._known_digests.of(self.constants)

    @functools.cached_property
    def key(self) -> Key:
        """The whole key.

        Raises:
            SourceError: what makes programs cannot be known.
        """
        self._known_digests.begin(self.constants)
        sources = self._sources.parts(of_subgraphs=self._calls_subgraphs)
        return Key(self._known | sources | model_part(self.digests))

    def confirm(self) -> None:
        """Make sure that the key tells what code has made the program.

        Raises:
            SourceError: it may be another one.
        """
        self._sources.confirm(of_subgraphs=self._calls_subgraphs)


def setting_parts(settings: Mapping[str, Any]) -> dict[str, Part]:
    """The parts that a delegate's settings make up, and how constants are hashed."""
    own = {name: Part.of(value) for name, value in settings.items()}
    return own | {"digests": Part.of(PREFERRED)}
