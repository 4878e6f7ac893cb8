"""Which scales of a quantized graph depend on each other, by TFLite's rules.

Sources: `restrict_same_input_output_scale`, `restricted_value_on_output` and the derived biases of
converter/quantization/lite/toco_legacy/operator_property.cc; the checks in the kernels' Prepare.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from jaxdelegate.errors import TensorError
from jaxdelegate.function.parameters import Place
from jaxdelegate.model.operator_tables import called_subgraphs
from jaxdelegate.model.records import Model, Operator, Subgraph, Tensor
from jaxdelegate.quant.params import Quantization

_NEAR = 1e-3  # of scales that count as one
Scales = dict[Place, np.ndarray]


def _words(names: str) -> frozenset[str]:
    return frozenset(names.split())


# Integers pass through these: inputs and outputs have one scale.
_SAME = _words(
    "AVERAGE_POOL_2D BATCH_TO_SPACE_ND BROADCAST_TO CONCATENATION DEPTH_TO_SPACE "
    "DYNAMIC_UPDATE_SLICE EXPAND_DIMS GATHER GATHER_ND MAXIMUM MAX_POOL_2D MINIMUM MIRROR_PAD "
    "PACK PAD PADV2 REDUCE_MAX REDUCE_MIN RELU_0_TO_1 RESHAPE RESIZE_BILINEAR "
    "RESIZE_NEAREST_NEIGHBOR REVERSE_SEQUENCE REVERSE_V2 SCATTER_ND SELECT SELECT_V2 SLICE "
    "SPACE_TO_BATCH_ND SPACE_TO_DEPTH SPLIT SPLIT_V SQUEEZE STRIDED_SLICE TILE TOPK_V2 "
    "TRANSPOSE UNPACK ZEROS_LIKE STABLEHLO_CONCATENATE STABLEHLO_PAD STABLEHLO_SLICE"
)
# Kernels demand these outputs' scales, or are made for them.
_FIXED = _words("SOFTMAX LOGISTIC TANH LOG_SOFTMAX L2_NORMALIZATION")
# Input, weights and bias among an operator's inputs: the bias has the scale input x weights.
_BIASED = {
    "CONV_2D": (0, 1, 2),
    "CONV_3D": (0, 1, 2),
    "DEPTHWISE_CONV_2D": (0, 1, 2),
    "FULLY_CONNECTED": (0, 1, 2),
    "TRANSPOSE_CONV": (2, 1, 3),
}
# All scales of a layer belong together; those of its states and gates are not rewritten here.
_WHOLE = _words(
    "LSTM UNIDIRECTIONAL_SEQUENCE_LSTM BIDIRECTIONAL_SEQUENCE_LSTM RNN SVDF "
    "UNIDIRECTIONAL_SEQUENCE_RNN BIDIRECTIONAL_SEQUENCE_RNN ASSIGN_VARIABLE READ_VARIABLE "
    "STABLEHLO_COMPOSITE"
)


@dataclasses.dataclass(frozen=True)
class Bias:
    """A bias, and the tensors whose scales make its own."""

    place: Place
    input: Place
    weights: Place
    operator: str


class ScaleRules:
    """The quantized tensors of a file, and what their scales have to do with each other."""

    def __init__(self, file: Model) -> None:
        """Read the rules off every operator."""
        self._file = file
        self.biases: list[Bias] = []
        self.fixed: dict[Place, str] = {}
        self._parents: dict[Place, Place] = {}
        self._by: dict[Place, str] = {}
        for subgraph in file.subgraphs:
            for operator in subgraph.operators:
                self._read(subgraph, operator)
            if subgraph.index > 0:
                for i in (*subgraph.inputs, *subgraph.outputs):
                    self.fixed.setdefault((subgraph.index, i), "the operator that calls it")

    def tensor(self, place: Place) -> Tensor:
        """The tensor there."""
        return self._file.subgraphs[place[0]].tensors[place[1]]

    def quantization(self, place: Place) -> Quantization | None:
        """How a tensor's integers stand for reals, if they do."""
        tensor = self.tensor(place)
        return tensor.quantization if tensor.spec().is_quantized else None

    def tied(self) -> Iterator[tuple[str, list[Place]]]:
        """Tensors that must keep one scale, and an operator that ties them."""
        groups: dict[Place, list[Place]] = {}
        for place in self._parents:
            groups.setdefault(self._root(place), []).append(place)
        yield from ((self._by[places[-1]], places) for places in groups.values())

    def by_bias(self) -> dict[Place, list[Bias]]:
        """The uses of each bias."""
        found: dict[Place, list[Bias]] = {}
        for bias in self.biases:
            found.setdefault(bias.place, []).append(bias)
        return found

    def _read(self, subgraph: Subgraph, operator: Operator) -> None:
        places = [(subgraph.index, i) for i in (*operator.inputs, *operator.outputs) if i >= 0]
        outputs = [(subgraph.index, i) for i in operator.outputs if i >= 0]
        label = f"{operator.name} {operator.index}"
        quantized = [p for p in places if self.quantization(p) is not None]
        is_integer = any(self.quantization(p) is not None for p in outputs)
        if called_subgraphs(operator.options) or (operator.name in _WHOLE and is_integer):
            self.fixed.update(dict.fromkeys(quantized, label))
        elif operator.name in _FIXED:
            self.fixed.update((p, label) for p in outputs if p in quantized)
        elif operator.name in _SAME:
            self._tie(quantized, outputs, label)
        elif operator.name in _BIASED and is_integer:
            self._read_bias(subgraph, operator, label)

    def _read_bias(self, subgraph: Subgraph, operator: Operator, label: str) -> None:
        numbers = _BIASED[operator.name]
        if len(operator.inputs) <= numbers[2] or operator.inputs[numbers[2]] < 0:
            return
        given, weights, bias = ((subgraph.index, operator.inputs[i]) for i in numbers)
        if self.tensor(bias).dtype.itemsize >= 4:
            self.biases.append(Bias(bias, given, weights, label))

    def _tie(self, places: Sequence[Place], outputs: Sequence[Place], label: str) -> None:
        """Tensors that have the scale of the result now."""
        first = next((p for p in outputs if p in places), None)
        if first is None:
            return
        for place in places:
            if _equal(self.quantization(place), self.quantization(first)):
                for p in (place, first):
                    self._parents.setdefault(p, p)
                    self._by[p] = label
                self._parents[self._root(place)] = self._root(first)

    def _root(self, place: Place) -> Place:
        while self._parents[place] != place:
            place = self._parents[place]
        return place


def _equal(a: Quantization | None, b: Quantization | None) -> bool:
    if a is None or b is None or a.scale.size != 1 or b.scale.size != 1:
        return False
    return bool(a.scale[0] == b.scale[0] and np.array_equal(a.zero_point, b.zero_point))


def completed(
    rules: ScaleRules, given: Mapping[Place, np.ndarray], moved: Mapping[Place, bool]
) -> Scales:
    """New scales, with those that follow from them: of tied tensors, and of biases.

    Converters share biases of zeros between operators with different scales; those keep theirs.

    Args:
        rules: of the file.
        given: scales, of the shapes that the file has.
        moved: constants with new values, or of zeros; whether any of their values is not zero.

    Raises:
        TensorError: a scale is fixed by an operator, or tied tensors are given different ones.
    """
    scales = {p: new for p, new in given.items() if not _same(rules, p, new)}
    biases = {bias.place for bias in rules.biases}
    for place in scales:
        if place in biases:
            raise _error(rules, place, "follows from the scales of the input and of the weights")
    for label, places in rules.tied():
        scales.update(_spread(rules, label, places, given, scales))
    for place in scales:
        if place in rules.fixed:
            raise _error(rules, place, f"is part of {rules.fixed[place]}, which fixes it")
    for place, users in rules.by_bias().items():
        is_moved = any(b.input in scales or b.weights in scales for b in users)
        if not is_moved and (place not in moved or len(users) == 1):
            continue
        new = [_bias_scale(rules, bias, scales) for bias in users]
        if all(np.allclose(new[0], other, rtol=_NEAR) for other in new):
            scales.update({place: new[0]} if is_moved else {})
        elif moved.get(place, True) or new[0].size == 1:  # kernels check a single scale
            labels = ", ".join(bias.operator for bias in users)
            what = f"is input x weights, which differs between its operators: {labels}"
            raise _error(
                rules, place, what, "keep its values zero: leave it out of what is trained"
            )
    return scales


def _spread(
    rules: ScaleRules,
    label: str,
    places: Iterable[Place],
    given: Mapping[Place, np.ndarray],
    changed: Mapping[Place, np.ndarray],
) -> Scales:
    """The scale of those tied tensors whose scale changes, for all of them."""
    places = list(places)
    news = {p: float(changed[p].reshape(-1)[0]) for p in places if p in changed}
    if not news:
        return {}
    kept = [p for p in places if p in given and p not in changed]
    if len(set(news.values())) > 1 or kept:
        listed = ", ".join(repr(rules.tensor(p).name) for p in [*news, *kept])
        raise TensorError(
            f"save: {label} hands integers on, so {listed} must have one scale; "
            "give them the same one, or give it for one of them: the others follow"
        )
    new = next(iter(news.values()))
    return {p: np.array([new], np.float32) for p in places}


def _bias_scale(rules: ScaleRules, bias: Bias, scales: Scales) -> np.ndarray:
    old, given, weights = map(rules.quantization, (bias.place, bias.input, bias.weights))
    if old is None or given is None or weights is None or rules.tensor(bias.place).stored is None:
        raise _error(rules, bias.place, f"of {bias.operator} has no stored scale to be rewritten")
    product = np.asarray(scales.get(bias.input, given.scale), np.float64) * np.asarray(
        scales.get(bias.weights, weights.scale), np.float64
    )
    if product.size != old.scale.size:
        what = f"has {old.scale.size} scales, {bias.operator} needs {product.size}"
        raise _error(rules, bias.place, what)
    return product.astype(np.float32)


def _same(rules: ScaleRules, place: Place, new: np.ndarray) -> bool:
    q = rules.quantization(place)
    return q is not None and np.array_equal(q.scale, new.reshape(-1))


def _error(rules: ScaleRules, place: Place, what: str, remedy: str | None = None) -> TensorError:
    name = rules.tensor(place).name
    remedy = remedy or f"leave '{name}/scale' out"
    return TensorError(f"save: the scale of {name!r} {what}; {remedy}")
