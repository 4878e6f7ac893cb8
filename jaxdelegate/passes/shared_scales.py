"""Which scales of a quantized model can change, and which have to change together.

A scale can change where the kernels take it as the file says: an integer kernel reads its
multipliers from the scales when it is prepared. Where an operator hands integers on, what it reads
and writes has one scale. The records of operators say which is which.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from jaxdelegate.model.operator_tables import called_subgraphs
from jaxdelegate.model.records import Operator, Subgraph, Tensor
from jaxdelegate.op_lowering.options import record_of
from jaxdelegate.op_lowering.records.operator import Scales
from jaxdelegate.quant.params import Quantization
from jaxdelegate.text import printable

Place = tuple[int, int]  # subgraph, tensor

NEAR = 1e-3  # relative: scales of a bias that count as one

_LOOPS = ("STABLEHLO_WHILE", "WHILE")
_BRANCHES = ("IF", "STABLEHLO_CASE")  # their first input chooses
_CALLS = ("CALL", "STABLEHLO_COMPOSITE")
_BIAS_BYTES = 4  # and more: sums, whose scale follows from others


@dataclasses.dataclass(frozen=True)
class ScaleGroup:
    """Quantized tensors that have one scale in the file, and must always have one.

    Attributes:
        tensors: all of them; each tensor is in one group.
        tied_by: an operator that hands integers from one to another, if there is one.
        fixed_by: what demands the scale, so that it cannot change; None: nothing.
        is_unequal: one is handed on to a tensor with another scale.
    """

    tensors: tuple[Place, ...]
    tied_by: str | None
    fixed_by: str | None
    is_unequal: bool


@dataclasses.dataclass(frozen=True)
class Bias:
    """A bias of integers, and the tensors whose scales make its own.

    Attributes:
        place: the bias.
        data, weights: those whose product of scales it has.
        operator: which adds it.
    """

    place: Place
    data: Place
    weights: Place
    operator: str


@dataclasses.dataclass(frozen=True)
class SharedScales:
    """The scales of a model; those of blocks are tensors themselves, and not here.

    Attributes:
        groups: of all quantized tensors but biases.
        biases: once for every operator that adds one.
    """

    groups: tuple[ScaleGroup, ...]
    biases: tuple[Bias, ...]


def shared_scales(
    subgraphs: Sequence[Subgraph], leaves: Iterable[Sequence[Place]] = ()
) -> SharedScales:
    """What the scales of a model have to do with each other.

    Args:
        subgraphs: all of the model's.
        leaves: constant tensors that hold one value, each with the others.
    """
    found = _Found(subgraphs)
    for places in leaves:
        found.tie(places)
    for subgraph in subgraphs:
        for operator in subgraph.operators:
            found.add(subgraph, operator)
    return SharedScales(found.groups(), tuple(found.biases))


def handed_on(
    operator: Operator, caller: int, called: Sequence[Subgraph]
) -> Iterator[tuple[Place, ...]]:
    """Tensors that hold the same integers, one after the other, where an operator calls subgraphs.

    Nothing of operators that apply a subgraph to each element.

    Args:
        operator: loops, chooses, or calls.
        caller: the number of its subgraph.
        called: those that it calls.
    """
    if operator.name not in (*_LOOPS, *_BRANCHES, *_CALLS):
        return
    given = operator.inputs[operator.name in _BRANCHES :]
    rows: list[tuple[int, Sequence[int]]] = [(caller, given)]
    results: list[tuple[int, Sequence[int]]] = [(caller, operator.outputs)]
    rows += [(s.index, s.inputs) for s in called]
    if operator.name in _LOOPS:
        rows += [(called[-1].index, called[-1].outputs), *results]  # the body's
        results = []
    else:
        results += [(s.index, s.outputs) for s in called]
    for table in (rows, results):
        yield from zip(*([(s, i) for i in tensors] for s, tensors in table), strict=False)


class _Found:
    def __init__(self, subgraphs: Sequence[Subgraph]) -> None:
        self._subgraphs = subgraphs
        self._parent: dict[Place, Place] = {}
        self._tied: dict[Place, str] = {}
        self._fixed: dict[Place, str] = {}
        self._unequal: set[Place] = set()
        self.biases: list[Bias] = []
        for subgraph in subgraphs:
            for tensor in subgraph.tensors:
                place = (subgraph.index, tensor.index)
                if _has_own_scale(tensor):
                    self._parent[place] = place
                    if tensor.is_variable:
                        self._fixed[place] = "the interpreter's state"

    def groups(self) -> tuple[ScaleGroup, ...]:
        by_root: dict[Place, list[Place]] = {}
        for place in self._parent:
            by_root.setdefault(self._root(place), []).append(place)
        return tuple(self._group(tuple(places)) for places in by_root.values())

    def _group(self, places: tuple[Place, ...]) -> ScaleGroup:
        return ScaleGroup(
            places,
            tied_by=_first(self._tied, places),
            fixed_by=_first(self._fixed, places),
            is_unequal=not self._unequal.isdisjoint(places),
        )

    def add(self, subgraph: Subgraph, operator: Operator) -> None:
        """What an operator demands of the tensors that it touches."""
        s, label = subgraph.index, f"{printable(operator.name)} {operator.index}"
        record = record_of(operator.name)
        results = self._quantized(s, operator.outputs)
        touched = [*results, *self._quantized(s, operator.inputs)]
        self._fix(self._quantized(s, operator.intermediates), label)
        if called_subgraphs(operator.options):
            self._call(s, operator, touched, label)
        elif record.scales is Scales.EQUAL:
            self.tie(touched, label)
        elif all(self._tensor(place).dtype in record.ignores_scales for place in touched):
            self._fix(touched, label)  # integers go in that have the file's scale
        elif record.scales is Scales.OF_INPUTS:
            self._fix(results, label)
        elif record.scales is Scales.OF_KERNEL or self._wants_powers_of_two(operator, touched):
            self._fix(touched, label)
        if record.bias is not None:
            self._add_bias(s, operator, record.bias, label)

    def tie(self, places: Sequence[Place], label: str | None = None) -> None:
        """These have one scale, as far as the file has one for them."""
        own = [place for place in places if place in self._parent]
        if not own:
            return
        first = _identity(self._quantization(own[0]))
        equal = [place for place in own if _identity(self._quantization(place)) == first]
        if len(equal) < len(own):
            self._unequal.update(own)
        for place in equal[1:]:
            self._parent[self._root(place)] = self._root(own[0])
            if label is not None:
                self._tied.update({place: label, own[0]: label})

    def _fix(self, places: Iterable[Place], label: str) -> None:
        for place in places:
            self._fixed.setdefault(place, label)

    def _root(self, place: Place) -> Place:
        while self._parent[place] != place:
            place = self._parent[place]
        return place

    def _quantized(self, subgraph: int, tensors: Iterable[int]) -> list[Place]:
        places = ((subgraph, i) for i in tensors if i >= 0)
        return [place for place in places if place in self._parent]

    def _quantization(self, place: Place) -> Quantization:
        quantization = self._tensor(place).quantization
        assert quantization is not None  # `_has_own_scale`
        return quantization

    def _tensor(self, place: Place) -> Tensor:
        return self._subgraphs[place[0]].tensors[place[1]]

    def _wants_powers_of_two(self, operator: Operator, touched: Iterable[Place]) -> bool:
        """ADD and SUB of int16 shift by whole bits, unless their options say otherwise."""
        is_int16 = any(self._tensor(place).dtype == np.int16 for place in touched)
        return is_int16 and getattr(operator.options, "pot_scale_int16", False)

    def _add_bias(
        self, subgraph: int, operator: Operator, positions: tuple[int, int, int], label: str
    ) -> None:
        data, weights, bias = (
            (subgraph, operator.inputs[p] if p < len(operator.inputs) else -1) for p in positions
        )
        if bias[1] >= 0 and _is_sum(self._tensor(bias)):
            self.biases.append(Bias(bias, data, weights, label))

    def _call(
        self, subgraph: int, operator: Operator, touched: Sequence[Place], label: str
    ) -> None:
        """What goes in and comes out is the called subgraph's, integer for integer."""
        called = [self._subgraphs[i] for _, i in called_subgraphs(operator.options)]
        ends = [(s.index, i) for s in called for i in (*s.inputs, *s.outputs)]
        if operator.name not in (*_LOOPS, *_BRANCHES, *_CALLS):
            self._fix([p for p in (*touched, *ends) if p in self._parent], label)
        for places in handed_on(operator, subgraph, called):
            self.tie(places, label)


def _has_own_scale(tensor: Tensor) -> bool:
    """Whether it is quantized, and neither in blocks nor a sum such as a bias."""
    q = tensor.quantization
    if q is None or not q.has_scale or q.blockwise is not None:
        return False
    return tensor.dtype.kind in "iuV" and tensor.dtype.itemsize < _BIAS_BYTES


def _is_sum(tensor: Tensor) -> bool:
    """Whether it holds integers of a sum's width, as biases of integer kernels do."""
    return tensor.dtype.kind == "i" and tensor.dtype.itemsize >= _BIAS_BYTES


def _first(labels: Mapping[Place, str], places: Iterable[Place]) -> str | None:
    return next((labels[place] for place in places if place in labels), None)


def _identity(q: Quantization) -> tuple[bytes, bytes]:
    return q.scale.tobytes(), q.zero_point.tobytes()
