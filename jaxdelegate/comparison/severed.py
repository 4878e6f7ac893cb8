"""A graph cut before every operator: each reads given values instead of earlier results.

One run shows the error of every operator alone, since errors do not propagate.
"""

import dataclasses
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from jaxdelegate.model.records import Subgraph
from jaxdelegate.runtime.subgraph import ModelStore, SubgraphRunner
from jaxdelegate.runtime.tensor_details import from_api_dtype, to_api_dtype
from jaxdelegate.simple_delegate import SimpleDelegate


def sever(subgraph: Subgraph, tensors: Collection[int]) -> tuple[Subgraph, dict[int, int]]:
    """Cut a subgraph at computed tensors; returns also the inputs that replace them."""
    read = {i for operator in subgraph.operators for i in operator.inputs}
    cut = [i for i in tensors if i in read]
    first = len(subgraph.tensors)
    copies = {index: first + n for n, index in enumerate(cut)}
    added = (
        dataclasses.replace(subgraph.tensors[index], index=new, shape_signature=None)
        for index, new in copies.items()
    )
    operators = (
        dataclasses.replace(operator, inputs=tuple(copies.get(i, i) for i in operator.inputs))
        for operator in subgraph.operators
    )
    severed = dataclasses.replace(
        subgraph,
        tensors=(*subgraph.tensors, *added),
        inputs=(*subgraph.inputs, *copies.values()),
        operators=tuple(operators),
    )
    return severed, copies


class SeveredRunner:
    """Runs a severed graph with delegates: one plan, one program, all operators at once."""

    def __init__(
        self,
        subgraphs: Sequence[Subgraph],
        delegates: Sequence[SimpleDelegate],
        tensors: Collection[int],
    ) -> None:
        self._tensors = subgraphs[0].tensors
        self._graph, self._copies = sever(subgraphs[0], tensors)
        store = ModelStore(subgraphs, delegates)
        self._host = SubgraphRunner(self._graph, delegates, preserve_all_tensors=True, model=store)

    def __call__(self, values: Mapping[int, np.ndarray]) -> None:
        """Run on the values of the model's inputs and of all tensors that the graph is cut at."""
        inputs = {i: values[i] for i in self._graph.inputs if i in values}
        inputs.update((new, values[i]) for i, new in self._copies.items())
        tensors, host = self._graph.tensors, self._host
        arrays = {i: from_api_dtype(tensors[i], array) for i, array in inputs.items()}
        for index, array in arrays.items():
            host.resize(index, array.shape)
        if not host.is_allocated:
            host.allocate()
        for index, array in arrays.items():
            host.assign(index, array)
        host.invoke()

    def value(self, index: int) -> np.ndarray | None:
        """The value that its operator computed from the given inputs; None: no value was kept."""
        value = self._host.value(index)
        return None if value is None else to_api_dtype(self._tensors[index], np.asarray(value))
