"""Finds which scales of a quantized model can change, and which must change together.

A scale can change if the kernels use it from the file: an integer kernel computes its multipliers
from the scales in Prepare. If an operator passes integers on unchanged, its inputs and outputs have
one scale. The records of operators have this information (`Scales`).
"""

import dataclasses
import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from jaxdelegate.model.operator_tables import called_subgraphs
from jaxdelegate.model.records import Operator, Subgraph, Tensor
from jaxdelegate.op_lowering.options import record_of
from jaxdelegate.op_lowering.records.operator import Scales
from jaxdelegate.quant.params import Quantization
from jaxdelegate.text import printable

Place = tuple[int, int]  # subgraph, tensor

NEAR = 1e-3  # relative difference up to which the scales of a bias count as equal

_LOOPS = ("STABLEHLO_WHILE", "WHILE")
_BRANCHES = ("IF", "STABLEHLO_CASE")  # their first input selects the branch
_CALLS = ("CALL", "STABLEHLO_COMPOSITE")
_BIAS_BYTES = 4  # wider integers are sums, such as biases, whose scale follows from others


@dataclasses.dataclass(frozen=True)
class ScaleGroup:
    """Quantized tensors that share one scale in the file, and must always share it."""

    tensors: tuple[Place, ...]  # each quantized tensor is in exactly one group
    tied_by: str | None  # an operator that passes integers from one to another
    fixed_by: str | None  # an operator or state that requires this scale; None: it can change
    is_unequal: bool  # whether integers are passed to a tensor with another scale


@dataclasses.dataclass(frozen=True)
class Bias:
    """An integer bias; its scale is the product of those of data and weights."""

    place: Place
    data: Place
    weights: Place
    operator: str  # adds the bias


def handed_on(
    operator: Operator, caller: int, called: Sequence[Subgraph]
) -> Iterator[tuple[Place, ...]]:
    """Groups of tensors that hold the same integers because an operator calls subgraphs.

    The operator, in subgraph `caller`, is a loop, a branch or a call of `called`. Yields nothing
    for operators that apply a subgraph to each element.
    """
    if operator.name not in (*_LOOPS, *_BRANCHES, *_CALLS):
        return
    passed = operator.inputs[operator.name in _BRANCHES :]
    rows: list[tuple[int, Sequence[int]]] = [(caller, passed)]
    results: list[tuple[int, Sequence[int]]] = [(caller, operator.outputs)]
    rows += [(s.index, s.inputs) for s in called]
    if operator.name in _LOOPS:
        rows += [(called[-1].index, called[-1].outputs), *results]  # the body's
        results = []
    else:
        results += [(s.index, s.outputs) for s in called]
    for table in (rows, results):
        yield from zip(*([(s, i) for i in tensors] for s, tensors in table), strict=False)


class SharedScales:
    """The scales of a model, except those of blocks, which are tensors themselves.

    Attributes:
        biases: one for each operator that adds a bias.
    """

    def __init__(self, subgraphs: Sequence[Subgraph], leaves: Iterable[Sequence[Place]]) -> None:
        """Collect what all operators require; `leaves`: constant tensors that share one value."""
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
        for places in leaves:
            self._tie(places)
        for subgraph in subgraphs:
            for operator in subgraph.operators:
                self._add(subgraph, operator)

    # ---- the scales

    def tensor(self, place: Place) -> Tensor:
        """The tensor at a place."""
        return self._subgraphs[place[0]].tensors[place[1]]

    def quantization(self, place: Place) -> Quantization | None:
        """A tensor's quantization, if it is quantized."""
        tensor = self.tensor(place)
        return tensor.quantization if tensor.spec().is_quantized else None

    @functools.cached_property
    def groups(self) -> tuple[ScaleGroup, ...]:
        """All quantized tensors except biases."""
        by_root: dict[Place, list[Place]] = {}
        for place in self._parent:
            by_root.setdefault(self._root(place), []).append(place)
        return tuple(self._group(tuple(places)) for places in by_root.values())

    @functools.cached_property
    def _group_of(self) -> Mapping[Place, ScaleGroup]:
        return {place: group for group in self.groups for place in group.tensors}

    def group(self, place: Place) -> ScaleGroup:
        """The tensors that share this tensor's scale, including itself."""
        return self._group_of.get(place) or ScaleGroup((place,), None, None, is_unequal=False)

    def by_bias(self) -> dict[Place, list[Bias]]:
        """The uses of each bias."""
        uses: dict[Place, list[Bias]] = {}
        for bias in self.biases:
            uses.setdefault(bias.place, []).append(bias)
        return uses

    def _group(self, places: tuple[Place, ...]) -> ScaleGroup:
        return ScaleGroup(
            places,
            tied_by=_first(self._tied, places),
            fixed_by=_first(self._fixed, places),
            is_unequal=not self._unequal.isdisjoint(places),
        )

    # ---- what operators require

    def _add(self, subgraph: Subgraph, operator: Operator) -> None:
        """Record what an operator requires of its tensors."""
        s, label = subgraph.index, f"{printable(operator.name)} {operator.index}"
        record = record_of(operator.name)
        results = self._quantized(s, operator.outputs)
        touched = [*results, *self._quantized(s, operator.inputs)]
        self._fix(self._quantized(s, operator.intermediates), label)
        if called_subgraphs(operator.options):
            self._call(s, operator, touched, label)
        elif record.scales.chosen is Scales.EQUAL:
            self._tie(touched, label)
        elif all(self.tensor(place).dtype in record.scales.ignored for place in touched):
            self._fix(touched, label)  # its integer inputs have the file's scale
        elif record.scales.chosen is Scales.OF_INPUTS:
            self._fix(results, label)
        elif record.scales.chosen is Scales.OF_KERNEL or self._wants_powers_of_two(
            operator, touched
        ):
            self._fix(touched, label)
        if record.product is not None and record.product.bias is not None:
            self._add_bias(s, operator, record.product.bias, label)

    def _tie(self, places: Sequence[Place], label: str | None = None) -> None:
        """Record that these have one scale, except those whose scales differ in the file."""
        scaled = [place for place in places if place in self._parent]
        if not scaled:
            return
        first = _identity(self.tensor(scaled[0]))
        equal = [place for place in scaled if _identity(self.tensor(place)) == first]
        if len(equal) < len(scaled):
            self._unequal.update(scaled)
        for place in equal[1:]:
            self._parent[self._root(place)] = self._root(scaled[0])
            if label is not None:
                self._tied.update({place: label, scaled[0]: label})

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

    def _wants_powers_of_two(self, operator: Operator, touched: Iterable[Place]) -> bool:
        """Whether the kernel shifts by whole bits: int16 ADD and SUB, unless options disable it."""
        is_int16 = any(self.tensor(place).dtype == np.int16 for place in touched)
        return is_int16 and getattr(operator.options, "pot_scale_int16", False)

    def _add_bias(
        self, subgraph: int, operator: Operator, positions: tuple[int, int, int], label: str
    ) -> None:
        data, weights, bias = (
            (subgraph, operator.inputs[p] if p < len(operator.inputs) else -1) for p in positions
        )
        if bias[1] >= 0 and _is_sum(self.tensor(bias)):
            self.biases.append(Bias(bias, data, weights, label))

    def _call(
        self, subgraph: int, operator: Operator, touched: Sequence[Place], label: str
    ) -> None:
        called = [self._subgraphs[i] for _, i in called_subgraphs(operator.options)]
        ends = [(s.index, i) for s in called for i in (*s.inputs, *s.outputs)]
        if operator.name not in (*_LOOPS, *_BRANCHES, *_CALLS):
            self._fix([p for p in (*touched, *ends) if p in self._parent], label)
        for places in handed_on(operator, subgraph, called):
            self._tie(places, label)


def _has_own_scale(tensor: Tensor) -> bool:
    """Whether it is quantized, but not in blocks, and is not a sum such as a bias."""
    q = tensor.quantization
    if q is None or not q.has_scale or q.blockwise is not None:
        return False
    return tensor.dtype.kind in "iuV" and tensor.dtype.itemsize < _BIAS_BYTES


def _is_sum(tensor: Tensor) -> bool:
    """Whether its integers are as wide as sums, like the biases of integer kernels."""
    return tensor.dtype.kind == "i" and tensor.dtype.itemsize >= _BIAS_BYTES


def _first(labels: Mapping[Place, str], places: Iterable[Place]) -> str | None:
    return next((labels[place] for place in places if place in labels), None)


def _identity(tensor: Tensor) -> tuple[bytes, bytes]:
    q = tensor.quantization
    assert q is not None  # `_has_own_scale`
    return q.scale.tobytes(), q.zero_point.tobytes()
