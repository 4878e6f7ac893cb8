"""An open model: the runners of its subgraphs, and the values that its initialization assigns."""

import dataclasses
import os
from collections.abc import Hashable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Self

import numpy as np

from jaxdelegate.errors import ModelError, TensorError
from jaxdelegate.kernels.processor import core_count
from jaxdelegate.model.open_models import open_model
from jaxdelegate.model.records import Model, Subgraph
from jaxdelegate.model.source import Source
from jaxdelegate.passes.limits import Limits
from jaxdelegate.pjrt import jax_settings
from jaxdelegate.runtime.subgraph import ModelStore, SubgraphRunner
from jaxdelegate.simple_delegate import SimpleDelegate
from jaxdelegate.text import printable


@dataclasses.dataclass
class OpenModel:
    """A model that was read, and the runners of its subgraphs."""

    model: Model
    store: ModelStore
    delegates: Sequence[SimpleDelegate]
    preserve: bool
    runners: dict[int, SubgraphRunner] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(
        cls,
        source: Source,
        delegates: Sequence[SimpleDelegate],
        preserve: bool,
        limits: Limits,
        timeout: float | None = None,
    ) -> Self:
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

    def allocate(self, signatures: Sequence[str]) -> None:
        """Allocate the subgraphs of some signatures, several at the same time where cores allow."""
        by_key = {s.key: s.subgraph for s in self.model.signatures}
        for key in signatures:
            if key not in by_key:
                there = ", ".join(map(repr, by_key)) or "none"
                raise ValueError(f"signatures: the model has {printable(there)}, got {key!r}")
        runners = [self.runner(by_key[key]) for key in dict.fromkeys(signatures)]
        waiting = [runner for runner in dict.fromkeys(runners) if not runner.is_allocated]
        workers = min(core_count(), len(waiting))
        if workers < 2 or not _threads_have_these_settings():
            for runner in waiting:
                runner.allocate()
            return
        with ThreadPoolExecutor(workers) as executor:
            list(executor.map(SubgraphRunner.allocate, waiting))

    def runner(self, index: int) -> SubgraphRunner:
        count = len(self.model.subgraphs)
        if not 0 <= index < count:
            raise TensorError(
                f"Invalid subgraph index {index} exceeds max subgraph index {count - 1}"
            )
        if index not in self.runners:
            self.runners[index] = SubgraphRunner(
                self.model.subgraphs[index],
                self.delegates,
                preserve_all_tensors=self.preserve,
                model=self.store,
                may_rebatch=True,
            )
        return self.runners[index]


def _threads_have_these_settings() -> bool:
    """Whether no context manager of JAX has changed a setting for this thread alone."""
    if not jax_settings.is_jax_imported():
        return True
    with ThreadPoolExecutor(1) as executor:
        return executor.submit(jax_settings.current).result() == jax_settings.current()


def resources_after(
    called: Iterable[int], subgraphs: Sequence[Subgraph], limits: Limits
) -> Mapping[Hashable, np.ndarray]:
    """The resources after some subgraphs ran once, one after the other, by the numpy reference.

    Those are subgraphs without inputs that CALL_ONCE names.
    """
    store = ModelStore(subgraphs, limits=limits)
    for index in called:
        store(index)
    return dict(store.resources)
