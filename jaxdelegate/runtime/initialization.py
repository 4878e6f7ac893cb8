"""What a model's initialization assigns to its resource variables."""

from collections.abc import Hashable, Iterable, Mapping, Sequence

import numpy as np

from jaxdelegate.model.records import Subgraph
from jaxdelegate.passes.limits import Limits
from jaxdelegate.runtime.subgraph import ModelStore


def resources_after(
    called: Iterable[int], subgraphs: Sequence[Subgraph], limits: Limits
) -> Mapping[Hashable, np.ndarray]:
    """The resources after some subgraphs ran once, one after the other, by the numpy reference.

    Args:
        called: indices of subgraphs without inputs: those that CALL_ONCE names.
        subgraphs: all of the model.
        limits: of memory.
    """
    store = ModelStore(subgraphs, limits=limits)
    for index in called:
        store(index)
    return dict(store.resources)
