"""A model that was read: what our interpreter stands on."""

import dataclasses
import os
from collections.abc import Sequence
from typing import Self

from jaxdelegate.errors import ModelError, TensorError
from jaxdelegate.model.open_models import open_model
from jaxdelegate.model.records import Model
from jaxdelegate.model.source import Source
from jaxdelegate.passes.limits import Limits
from jaxdelegate.runtime.subgraph import ModelStore, SubgraphRunner
from jaxdelegate.simple_delegate import SimpleDelegate
from jaxdelegate.text import printable


@dataclasses.dataclass
class OpenModel:
    """A model that was read, and the hosts of its subgraphs."""

    model: Model
    store: ModelStore
    delegates: Sequence[SimpleDelegate]
    preserve: bool
    hosts: dict[int, SubgraphRunner] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(
        cls,
        source: Source,
        delegates: Sequence[SimpleDelegate],
        preserve: bool,
        limits: Limits,
        timeout: float | None = None,
    ) -> Self:
        """Read it.

        Raises:
            ModelError: the file is damaged.
        """
        model = open_model(source)
        if not model.subgraphs:
            raise ModelError(
                f"{printable(model.source)}: Model.subgraphs: at least one is needed, got none"
            )
        name = os.path.basename(model.source)
        store = ModelStore(
            model.subgraphs, delegates, name, limits, timeout, origin=model.origin, key=model
        )
        return cls(model, store, delegates, preserve)

    def host(self, index: int) -> SubgraphRunner:
        """The host of a subgraph, made at its first use."""
        count = len(self.model.subgraphs)
        if not 0 <= index < count:
            raise TensorError(
                f"Invalid subgraph index {index} exceeds max subgraph index {count - 1}"
            )
        if index not in self.hosts:
            self.hosts[index] = SubgraphRunner(
                self.model.subgraphs[index],
                self.delegates,
                preserve_all_tensors=self.preserve,
                model=self.store,
                may_rebatch=True,
            )
        return self.hosts[index]
