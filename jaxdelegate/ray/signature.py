"""A model's inputs and outputs by name, and whether its inputs have a batch dimension."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxdelegate.errors import OptionError
from jaxdelegate.interpreter import Interpreter

_BATCH = ((-1,), (1,))


@dataclasses.dataclass(frozen=True)
class TensorInfo:
    """An input or an output."""

    name: str  # the signature's, or the tensor's if the file has no signature
    index: int
    shape: tuple[int, ...]  # as declared; -1 for a free dimension
    dtype: np.dtype  # object: strings, as bytes


@dataclasses.dataclass(frozen=True, kw_only=True)
class Signature:
    subgraph: int
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    has_variables: bool

    @property
    def has_batch(self) -> bool:
        """Whether the first dimension of every input is a batch: free, or 1 as converters write.

        An input with another size, such as a waveform [15600], is one row.
        """
        return all(tensor.shape[:1] in _BATCH for tensor in self.inputs) and bool(self.inputs)

    def row_shape(self, tensor: TensorInfo) -> tuple[int, ...]:
        """The shape of an input or output in one row; -1 for a free dimension."""
        has_batch = self.has_batch and tensor.shape[:1] in _BATCH
        return tensor.shape[1:] if has_batch else tensor.shape


def read_signature(interpreter: Interpreter, key: str | None) -> Signature:
    """A signature of the model, or the main subgraph of a file without signatures."""
    found = {s.key: s for s in interpreter._model.signatures}
    if key is None and len(found) > 1:
        raise OptionError(f"signature: the model has several, name one: {', '.join(found)}")
    if key is not None and key not in found:
        known = ", ".join(map(repr, found)) or "none"
        raise OptionError(f"signature: {key!r} is not in the model; it has {known}")
    if found:
        chosen = found[key or next(iter(found))]
        inputs, outputs, subgraph = chosen.inputs, chosen.outputs, chosen.subgraph
    else:
        subgraph = 0
        main = interpreter._model.subgraphs[0]
        inputs, outputs = (
            {main.tensors[i].name: i for i in indices} for indices in (main.inputs, main.outputs)
        )
    tensors = interpreter._model.subgraphs[subgraph].tensors
    return Signature(
        subgraph=subgraph,
        inputs=_tensors(interpreter, inputs, subgraph),
        outputs=_tensors(interpreter, outputs, subgraph),
        has_variables=any(tensor.is_variable for tensor in tensors),
    )


def _tensors(
    interpreter: Interpreter, indices: Mapping[str, int], subgraph: int
) -> tuple[TensorInfo, ...]:
    def info(name: str, index: int) -> TensorInfo:
        details: dict[str, Any] = interpreter._get_tensor_details(index, subgraph)
        dtype = np.dtype(details["dtype"])
        shape = tuple(int(n) for n in details["shape_signature"])
        return TensorInfo(name, index, shape, np.dtype(object) if dtype.kind == "S" else dtype)

    return tuple(info(name, index) for name, index in indices.items())
