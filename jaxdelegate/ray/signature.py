"""Names of a model's inputs and outputs, and whether its inputs hold a batch."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxdelegate.errors import OptionError
from jaxdelegate.interpreter import Interpreter

_BATCH = ((-1,), (1,))


@dataclasses.dataclass(frozen=True)
class End:
    """An input or an output.

    Attributes:
        name: the signature's, or the tensor's where the file has no signature.
        index: of the tensor.
        shape: as declared, -1 for a size that is open.
        dtype: of its arrays; object: strings, as bytes.
    """

    name: str
    index: int
    shape: tuple[int, ...]
    dtype: np.dtype


@dataclasses.dataclass(frozen=True)
class Ends:
    """Of one signature."""

    subgraph: int
    inputs: tuple[End, ...]
    outputs: tuple[End, ...]
    has_variables: bool

    @property
    def hold_batch(self) -> bool:
        """Whether every input has a first dimension for a batch: open, or 1 as converters leave it.

        Any other size, such as a waveform's [15600], is of one row.
        """
        return all(end.shape[:1] in _BATCH for end in self.inputs) and bool(self.inputs)

    def row_shape(self, end: End) -> tuple[int, ...]:
        """What a row of a data set has of an input or output; -1 for a size that is open."""
        return end.shape[1:] if self.hold_batch and end.shape[:1] in _BATCH else end.shape


def ends_of(interpreter: Interpreter, signature: str | None) -> Ends:
    """The inputs and outputs of a signature, or of the main subgraph in a file that has none.

    Raises:
        OptionError: no such signature, or several and none was named.
    """
    found = {s.key: s for s in interpreter._model.signatures}
    if signature is None and len(found) > 1:
        raise OptionError(f"signature: the model has several, name one: {', '.join(found)}")
    if signature is not None and signature not in found:
        there = ", ".join(map(repr, found)) or "none"
        raise OptionError(f"signature: {signature!r} is not in the model; it has {there}")
    if found:
        chosen = found[signature or next(iter(found))]
        inputs, outputs, subgraph = chosen.inputs, chosen.outputs, chosen.subgraph
    else:
        subgraph = 0
        main = interpreter._model.subgraphs[0]
        inputs, outputs = (
            {main.tensors[i].name: i for i in indices} for indices in (main.inputs, main.outputs)
        )
    tensors = interpreter._model.subgraphs[subgraph].tensors
    return Ends(
        subgraph,
        _ends(interpreter, inputs, subgraph),
        _ends(interpreter, outputs, subgraph),
        any(tensor.is_variable for tensor in tensors),
    )


def _ends(interpreter: Interpreter, named: Mapping[str, int], subgraph: int) -> tuple[End, ...]:
    def end(name: str, index: int) -> End:
        details: dict[str, Any] = interpreter._get_tensor_details(index, subgraph)
        dtype = np.dtype(details["dtype"])
        shape = tuple(int(n) for n in details["shape_signature"])
        return End(name, index, shape, np.dtype(object) if dtype.kind == "S" else dtype)

    return tuple(end(name, index) for name, index in named.items())
