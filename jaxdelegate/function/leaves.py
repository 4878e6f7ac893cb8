"""Names the weights of a whole model: one leaf for each buffer, for all its readers."""

from collections.abc import Hashable, Iterable, Iterator, Sequence

import numpy as np

from jaxdelegate.function.records import Parameter, Place, unique_name
from jaxdelegate.model.records import Operator, Subgraph, Tensor
from jaxdelegate.op_lowering.dtypes import FLOATS
from jaxdelegate.quant.params import Quantization

_SPARSE = "DENSIFY"


class Leaves:
    """The parameters of a model, with the same names in every signature and use.

    A leaf is a buffer's content with one shape, dtype and quantization. A tensor that an operator
    only decodes (DEQUANTIZE of float16, DENSIFY) is the leaf of the stored tensor.
    """

    def __init__(self, subgraphs: Sequence[Subgraph], *, as_floats: bool) -> None:
        self._subgraphs, self._as_floats = subgraphs, as_floats
        self._decoded = {
            (subgraph.index, operator.outputs[0]): (subgraph.index, operator.inputs[0])
            for subgraph in subgraphs
            for operator in subgraph.operators
            if self._decodes(subgraph, operator)
        }
        self._names: dict[Hashable, str] = {}
        self._places: dict[Hashable, list[Place]] = {}
        taken: set[str] = set()
        for place in self._every_place():
            key = self._key(place)
            if self._tensor(place).stored is not None:
                self._places.setdefault(key, []).append(place)
            if key not in self._names:
                self._names[key] = unique_name(self._tensor(place).name, place, taken)
                taken.add(self._names[key])

    def name(self, place: Place) -> str:
        """The name of a constant tensor's leaf."""
        return self._names[self._key(place)]

    def shared(self) -> Iterable[Sequence[Place]]:
        """The stored tensors of each leaf."""
        return self._places.values()

    def stored(self, place: Place) -> Place | None:
        """The first stored tensor of a constant tensor's leaf; None if the tensor is folded."""
        return next(iter(self._places.get(self._key(place), ())), None)

    def stored_leaves(self) -> dict[str, tuple[Place, ...]]:
        """The file's tensors for each leaf; leaves without tensors follow from these."""
        return {self._names[key]: tuple(places) for key, places in self._places.items()}

    def is_parameter(self, place: Place, dtype: np.dtype) -> bool:
        """Whether a constant, computed in `dtype`, is a parameter: it is float, or quantized."""
        return dtype in FLOATS or _scales(self._tensor(place)) is not None

    def parameter(self, place: Place, value: np.ndarray) -> Parameter:
        """The record of a constant tensor's leaf with these values."""
        key = self._key(place)
        places = tuple(self._places.get(key, ()))
        stored = self._tensor(places[0] if places else place)
        return Parameter(
            name=self._names[key],
            shape=value.shape,
            dtype=value.dtype,
            tensors=places,
            buffer=stored.buffer if places else 0,
            stored_dtype=stored.dtype,
            quantization=_scales(stored) if places else None,
        )

    def _every_place(self) -> Iterator[Place]:
        """All tensors; stored ones come first, so that their names do not change."""
        places = [(s.index, t.index) for s in self._subgraphs for t in s.tensors]
        yield from (p for p in places if self._tensor(p).stored is not None)
        yield from (p for p in places if self._tensor(p).stored is None)

    def _key(self, place: Place) -> Hashable:
        tensor = self._tensor(place)
        if tensor.stored is None:
            return self._key(self._decoded[place]) if place in self._decoded else place
        if not tensor.buffer:
            return place
        return tensor.buffer, tensor.shape, tensor.type, _identity(_scales(tensor))

    def _tensor(self, place: Place) -> Tensor:
        subgraph, tensor = place
        return self._subgraphs[subgraph].tensors[tensor]

    def _decodes(self, subgraph: Subgraph, operator: Operator) -> bool:
        """Whether an operator's result is a stored tensor in another format with equal values."""
        if operator.name not in ("DEQUANTIZE", _SPARSE):
            return False
        stored = subgraph.tensors[operator.inputs[0]]
        is_same = operator.name == _SPARSE or self._as_floats or stored.dtype in FLOATS
        return is_same and stored.stored is not None


def _scales(tensor: Tensor) -> Quantization | None:
    q = tensor.quantization
    return q if q is not None and q.has_scale else None


def _identity(q: Quantization | None) -> Hashable:
    """A key that is equal for two tensors of one buffer if they have the same real values."""
    if q is None:
        return None
    if q.blockwise is not None:
        return q.blockwise
    return q.scale.tobytes(), q.zero_point.tobytes(), q.quantized_dimension
