"""Which scales of a quantized model can change, and which have to change together.

A scale can change where the kernels take it as the file says: an integer kernel reads its
multipliers from the scales when it is prepared. It cannot where the kernel demands one value
(SOFTMAX), or where nothing is known of what it demands. Where an operator moves values without
computing, what it reads and writes has one scale.
Source: the Prepare functions of TFLite's kernels, and tensorflow.org/lite/performance/
quantization_spec.
"""

import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np

from jaxdelegate.model.operator_tables import called_subgraphs
from jaxdelegate.model.records import Operator, Subgraph, Tensor
from jaxdelegate.quant.params import Quantization

Place = tuple[int, int]  # subgraph, tensor


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Each tensor has a scale of its own: the kernel multiplies, or computes with the reals.
_FREE = _names(
    """
    ABS ADD BATCH_MATMUL CONV_2D CONV_3D DEPTHWISE_CONV_2D DEQUANTIZE DIV ELU EQUAL EXP
    FULLY_CONNECTED GELU GREATER GREATER_EQUAL HARD_SWISH LEAKY_RELU LESS LESS_EQUAL LOG MEAN MUL
    NOT_EQUAL PRELU QUANTIZE REDUCE_PROD RELU RELU6 RELU_0_TO_1 RELU_N1_TO_1 RSQRT SQRT
    SQUARED_DIFFERENCE SUB SUM TRANSPOSE_CONV
    """
)
# The kernel demands the output's scale; the input's is free.
_FIXED_OUTPUT = frozenset(["L2_NORMALIZATION", "LOGISTIC", "LOG_SOFTMAX", "SOFTMAX", "TANH"])
# They hand values on: kernels demand equal scales, or copy integers as they are.
_MOVING = _names(
    """
    ARG_MAX ARG_MIN AVERAGE_POOL_2D BATCH_TO_SPACE_ND BROADCAST_TO CONCATENATION DEPTH_TO_SPACE
    DYNAMIC_UPDATE_SLICE EMBEDDING_LOOKUP EXPAND_DIMS FILL GATHER GATHER_ND MAXIMUM MAX_POOL_2D
    MINIMUM MIRROR_PAD PACK PAD PADV2 REDUCE_MAX REDUCE_MIN RESHAPE RESIZE_BILINEAR
    RESIZE_NEAREST_NEIGHBOR REVERSE_SEQUENCE REVERSE_V2 SCATTER_ND SELECT SELECT_V2 SHAPE SLICE
    SPACE_TO_BATCH_ND SPACE_TO_DEPTH SPLIT SPLIT_V SQUEEZE STRIDED_SLICE TILE TOPK_V2 TRANSPOSE
    UNPACK
    """
)
_LOOPS = ("STABLEHLO_WHILE", "WHILE")
_BRANCHES = ("IF", "STABLEHLO_CASE")  # their first input chooses
_CALLS = ("CALL", "STABLEHLO_COMPOSITE")
# Positions of the data, the weights and the bias, which counts in the product of their scales.
_PRODUCTS = {
    "CONV_2D": (0, 1, 2),
    "CONV_3D": (0, 1, 2),
    "DEPTHWISE_CONV_2D": (0, 1, 2),
    "FULLY_CONNECTED": (0, 1, 2),
    "TRANSPOSE_CONV": (2, 1, 3),
}
_BIAS_BYTES = 4  # and more: sums, whose scale follows from others


@dataclasses.dataclass(frozen=True)
class SharedScales:
    """The scales of a model.

    Attributes:
        groups: tensors whose scales can change, together with those that have to be equal.
        biases: for the first tensor of a bias's leaf, those of the data and of the weights, whose
            product of scales it has.
    """

    groups: tuple[tuple[Place, ...], ...]
    biases: Mapping[Place, tuple[Place, Place]]


def shared_scales(subgraphs: Sequence[Subgraph], leaves: Iterable[Sequence[Place]]) -> SharedScales:
    """The scales of a model that can change.

    Args:
        subgraphs: all of the model's.
        leaves: constant tensors that hold one value, each with the others.
    """
    found = _Found(subgraphs)
    for places in leaves:
        found.tie(places)
        found.first.update(dict.fromkeys(places, places[0]))
    for subgraph in subgraphs:
        for operator in subgraph.operators:
            found.add(subgraph, operator)
    return SharedScales(found.groups(), dict(found.biases))


class _Found:
    def __init__(self, subgraphs: Sequence[Subgraph]) -> None:
        self._subgraphs = subgraphs
        self._parent: dict[Place, Place] = {}
        self._pinned: set[Place] = set()
        self.first: dict[Place, Place] = {}  # by tensor, the first one of its leaf
        self.biases: dict[Place, tuple[Place, Place]] = {}
        for subgraph in subgraphs:
            for tensor in subgraph.tensors:
                place = (subgraph.index, tensor.index)
                if _has_own_scale(tensor):
                    self._parent[place] = place
                    if tensor.is_variable:
                        self._pinned.add(place)

    def groups(self) -> tuple[tuple[Place, ...], ...]:
        by_root: dict[Place, list[Place]] = {}
        for place in self._parent:
            by_root.setdefault(self._root(place), []).append(place)
        pinned = {self._root(place) for place in self._pinned}
        return tuple(tuple(places) for root, places in by_root.items() if root not in pinned)

    def add(self, subgraph: Subgraph, operator: Operator) -> None:
        """What an operator demands of the tensors that it touches."""
        name, s = operator.name, subgraph.index
        touched = self._quantized(s, (*operator.inputs, *operator.outputs))
        if called_subgraphs(operator.options):
            self._call(s, operator, touched)
        elif name in _MOVING:
            self.tie(touched)
        elif name in _FIXED_OUTPUT:
            self._pinned.update(self._quantized(s, operator.outputs))
        elif name not in _FREE or self._wants_powers_of_two(operator, touched):
            self._pinned.update(touched)
        if name in _PRODUCTS:
            self._product(s, operator)

    def tie(self, places: Sequence[Place]) -> None:
        """These have one scale; if the file has several, they are left alone."""
        own = [place for place in places if place in self._parent]
        kinds = {_identity(self._quantization(place)) for place in own}
        if len(kinds) > 1:
            self._pinned.update(own)
            return
        for place in own[1:]:
            self._parent[self._root(place)] = self._root(own[0])

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

    def _wants_powers_of_two(self, operator: Operator, touched: Collection[Place]) -> bool:
        """ADD and SUB of int16 shift by whole bits, unless their options say otherwise."""
        is_int16 = any(self._tensor(place).dtype == np.int16 for place in touched)
        return is_int16 and getattr(operator.options, "pot_scale_int16", False)

    def _product(self, subgraph: int, operator: Operator) -> None:
        data, weights, bias = (
            (subgraph, operator.inputs[p] if p < len(operator.inputs) else -1)
            for p in _PRODUCTS[operator.name]
        )
        if bias[1] < 0 or not _is_sum(self._tensor(bias)):
            return
        factors = (data, weights)
        of_others = self.biases.setdefault(self.first.get(bias, bias), factors)
        if of_others != factors or self._tensor(bias).stored is None:
            self._pinned.update(self._quantized(subgraph, (data[1], weights[1])))
            self._pinned.update(p for p in of_others if p in self._parent)

    def _call(self, subgraph: int, operator: Operator, touched: Sequence[Place]) -> None:
        """What goes in and comes out is the called subgraph's, integer for integer."""
        called = [self._subgraphs[i] for _, i in called_subgraphs(operator.options)]
        ends = [(s.index, i) for s in called for i in (*s.inputs, *s.outputs)]
        if operator.name not in (*_LOOPS, *_BRANCHES, *_CALLS):
            self._pinned.update(p for p in (*touched, *ends) if p in self._parent)
            return
        given = operator.inputs[operator.name in _BRANCHES :]
        rows: list[tuple[int, Sequence[int]]] = [(subgraph, given)]
        results: list[tuple[int, Sequence[int]]] = [(subgraph, operator.outputs)]
        rows += [(s.index, s.inputs) for s in called]
        if operator.name in _LOOPS:
            rows += [(called[-1].index, called[-1].outputs), *results]  # the body's
            results = []
        else:
            results += [(s.index, s.outputs) for s in called]
        for table in (rows, results):
            for column in zip(*([(s, i) for i in tensors] for s, tensors in table), strict=False):
                self.tie(column)


def _has_own_scale(tensor: Tensor) -> bool:
    """Whether it is quantized, and not in blocks: their scales are tensors themselves."""
    is_blockwise = tensor.quantization is not None and tensor.quantization.blockwise is not None
    return _is_quantized(tensor) and not is_blockwise and tensor.dtype.itemsize < _BIAS_BYTES


def _is_sum(tensor: Tensor) -> bool:
    return _is_quantized(tensor) and tensor.dtype.itemsize >= _BIAS_BYTES


def _is_quantized(tensor: Tensor) -> bool:
    q = tensor.quantization
    return q is not None and q.has_scale and tensor.dtype.kind in "iuV"


def _identity(q: Quantization) -> tuple[bytes, bytes]:
    return q.scale.tobytes(), q.zero_point.tobytes()
