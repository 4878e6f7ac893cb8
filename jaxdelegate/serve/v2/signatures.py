"""The signatures of a file that are served, their tensors, and whether the file keeps states."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxdelegate.model.descriptions import TensorDescription, tensor_descriptions
from jaxdelegate.model.records import Model, Subgraph, Tensor
from jaxdelegate.op_lowering.spec import Shape
from jaxdelegate.passes.limits import Limits
from jaxdelegate.plan.shape_signatures import shape_signatures
from jaxdelegate.reference.registry import KERNELS
from jaxdelegate.runtime.tensor_details import array_type
from jaxdelegate.serve.v2.requests import TensorMetadata

_DEFAULT = "serving_default"


@dataclasses.dataclass(frozen=True)
class ServedGraph:
    """One signature, or the main subgraph of a file without signatures."""

    key: str  # empty: the file has no signatures
    subgraph: int
    inputs: Mapping[str, Tensor]
    outputs: Mapping[str, Tensor]
    shapes: Mapping[int, Shape]  # by tensor; -1: free
    described: Mapping[int, TensorDescription]  # by tensor, as far as the file describes them

    @property
    def takes_batches(self) -> bool:
        """Whether every input may be a batch: its first dimension is 1, or left open."""
        first = [self.shapes[tensor.index][:1] for tensor in self.inputs.values()]
        return bool(first) and all(n in {(1,), (-1,)} for n in first)

    def metadata(
        self, tensors: Mapping[str, Tensor], *, is_batched: bool
    ) -> tuple[TensorMetadata, ...]:
        """The batch dimension is -1."""
        return tuple(self._metadata(name, t, is_batched) for name, t in tensors.items())

    def _metadata(self, name: str, tensor: Tensor, is_batched: bool) -> TensorMetadata:
        shape, described = self.shapes[tensor.index], self.described.get(tensor.index)
        dtype = np.dtype(array_type(tensor))
        return TensorMetadata(
            name,
            np.dtype(object) if dtype.kind in "SO" else dtype,
            (-1, *shape[1:]) if is_batched else shape,
            {} if described is None else _parameters(described),
        )


def served_graphs(model: Model, limits: Limits) -> tuple[ServedGraph, ...]:
    """The default signature first."""
    if not model.subgraphs:
        return ()
    main = model.subgraphs[0]
    graphs = [
        _served(model, limits, s.key, s.subgraph, s.inputs, s.outputs) for s in model.signatures
    ] or [_served(model, limits, "", 0, _named(main, main.inputs), _named(main, main.outputs))]
    return tuple(sorted(graphs, key=lambda graph: graph.key != _DEFAULT))


def _served(
    model: Model,
    limits: Limits,
    key: str,
    subgraph: int,
    inputs: Mapping[str, int],
    outputs: Mapping[str, int],
) -> ServedGraph:
    graph = model.subgraphs[subgraph]
    indices = [*inputs.values(), *outputs.values()]
    shapes = shape_signatures(graph, model.subgraphs, indices, limits)
    described = {} if subgraph else tensor_descriptions(model)
    ins, outs = ({name: graph.tensors[i] for name, i in by.items()} for by in (inputs, outputs))
    return ServedGraph(key, subgraph, ins, outs, shapes, described)


@dataclasses.dataclass(frozen=True)
class StateUse:
    """Which states a model keeps from one run to the next."""

    is_stateful: bool
    # By the items of a batch: resource variables, random counters, variables of called subgraphs.
    are_shared: bool


def state_use(model: Model) -> StateUse:
    """Resource variables that only the initialization assigns (CALL_ONCE) are constants."""
    once = {
        op.options.init_subgraph_index  # type: ignore[attr-defined]
        for subgraph in model.subgraphs
        for op in subgraph.operators
        if op.name == "CALL_ONCE"
    }
    served = {signature.subgraph for signature in model.signatures} or {0}
    variables = {s.index for s in model.subgraphs if any(t.is_variable for t in s.tensors)}
    hidden = any(_has_hidden_states(s, s.index in once) for s in model.subgraphs)
    return StateUse(hidden or bool(variables), hidden or not variables <= served)


def _has_hidden_states(subgraph: Subgraph, is_initialization: bool) -> bool:
    for operator in subgraph.operators:
        kernel = KERNELS.get(operator.name)
        if kernel is not None and kernel.initial_state is not None:
            return True
        if operator.name == "ASSIGN_VARIABLE" and not is_initialization:
            return True
    return False


def _named(subgraph: Subgraph, indices: Sequence[int]) -> dict[str, int]:
    """Missing and duplicate names get the tensor's index."""
    names = [subgraph.tensors[i].name for i in indices]
    return {
        name if name and names.count(name) == 1 else f"{name}:{i}": i
        for i, name in zip(indices, names, strict=True)
    }


def _parameters(described: TensorDescription) -> dict[str, Any]:
    scaling = described.normalization
    parameters = {
        "content": described.content,
        "mean": [] if scaling is None else list(scaling.mean),
        "std": [] if scaling is None else list(scaling.std),
        "labels": list(described.labels),
    }
    return {name: value for name, value in parameters.items() if value}
