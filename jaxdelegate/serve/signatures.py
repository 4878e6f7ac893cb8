"""The signatures of a file that are served, their tensors, and whether the file keeps states."""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from jaxdelegate.model.records import Model, Subgraph, Tensor
from jaxdelegate.reference.registry import KERNELS
from jaxdelegate.runtime.tensor_details import array_type
from jaxdelegate.serve.records import TensorMetadata

_DEFAULT = "serving_default"


@dataclasses.dataclass(frozen=True)
class ServedGraph:
    """One signature, or the main subgraph of a file without signatures."""

    key: str  # empty: the file has no signatures
    subgraph: int
    inputs: Mapping[str, Tensor]
    outputs: Mapping[str, Tensor]

    @property
    def takes_batches(self) -> bool:
        """Whether every input may be a batch: its first dimension is 1, or left open."""
        first = [_signature(tensor)[:1] for tensor in self.inputs.values()]
        return bool(first) and all(n in {(1,), (-1,)} for n in first)

    def metadata(
        self, tensors: Mapping[str, Tensor], *, is_batched: bool
    ) -> tuple[TensorMetadata, ...]:
        """The batch dimension is -1."""
        return tuple(_metadata(name, tensor, is_batched) for name, tensor in tensors.items())


def served_graphs(model: Model) -> tuple[ServedGraph, ...]:
    """The default signature first."""
    if not model.subgraphs:
        return ()
    if not model.signatures:
        main = model.subgraphs[0]
        return (ServedGraph("", 0, _named(main, main.inputs), _named(main, main.outputs)),)
    found = []
    for signature in model.signatures:
        tensors = model.subgraphs[signature.subgraph].tensors
        found.append(
            ServedGraph(
                key=signature.key,
                subgraph=signature.subgraph,
                inputs={name: tensors[i] for name, i in signature.inputs.items()},
                outputs={name: tensors[i] for name, i in signature.outputs.items()},
            )
        )
    return tuple(sorted(found, key=lambda graph: graph.key != _DEFAULT))


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


def _named(subgraph: Subgraph, indices: Sequence[int]) -> dict[str, Tensor]:
    """Missing and duplicate names get the tensor's index."""
    names = [subgraph.tensors[i].name for i in indices]
    named = {}
    for i, name in zip(indices, names, strict=True):
        unique = name if name and names.count(name) == 1 else f"{name}:{i}"
        named[unique] = subgraph.tensors[i]
    return named


def _metadata(name: str, tensor: Tensor, is_batched: bool) -> TensorMetadata:
    given = np.dtype(array_type(tensor))
    dtype = np.dtype(object) if given.kind in "SO" else given
    shape = _signature(tensor)
    return TensorMetadata(name, dtype, (-1, *shape[1:]) if is_batched else shape)


def _signature(tensor: Tensor) -> tuple[int, ...]:
    return tuple(tensor.shape_signature or tensor.shape)
