"""How alike the outputs of two sides are as a whole, whatever single elements differ.

Rounding adds up over a network. How much of it is right depends on the network, so what LiteRT's
own kernels differ by, on the same inputs, is a part of the bound; and in reduced precision what
rounding weights and inputs does to the reference.
"""

import abc
import dataclasses
from collections.abc import Sequence
from typing import Literal

import numpy as np

from jaxdelegate.model.records import Operator, Subgraph
from jaxdelegate.text import shortened

Precision = Literal["float", "reduced", "quantized"]
Rows = Sequence[Sequence[np.ndarray]]  # the outputs of each run

_OF_NOISE = 2.0  # times the difference between two of LiteRT's kernels, or of rounding
_MOST = 0.5  # what loses more is not alike, however much noise there is
_CLEAR = 3.0  # an argument is clear if it wins by this many times the allowed error
_DETECTIONS = "TFLite_Detection_PostProcess"
_SELECTIONS = frozenset(("NON_MAX_SUPPRESSION_V4", "NON_MAX_SUPPRESSION_V5"))
_ARGUMENTS = frozenset(("ARG_MAX", "ARG_MIN"))
_MOVING = frozenset(("CAST", "EXPAND_DIMS", "RESHAPE", "SQUEEZE"))


@dataclasses.dataclass(frozen=True)
class Likeness:
    """One figure of the outputs from end to end, as a loss: 0 is the same."""

    figure: str
    outputs: tuple[str, ...]  # names
    loss: float
    limit: float  # the largest loss that is rounding
    between_kernels: float  # the largest loss of LiteRT's other kernels; 0 if none was compared
    of_rounding: float  # the reference's own, on rounded weights and inputs; 0: nothing is rounded

    @property
    def agrees(self) -> bool:
        return self.loss <= self.limit

    def __str__(self) -> str:
        names = ", ".join(repr(shortened(name)) for name in self.outputs)
        found = f"{self.figure} of {names}: {self.loss:.3g}, at most {self.limit:.3g}"
        if self.between_kernels:
            found += f"; LiteRT's own kernels: {self.between_kernels:.3g}"
        if self.of_rounding:
            found += f"; the reference on rounded weights and inputs: {self.of_rounding:.3g}"
        return found


class Figure(abc.ABC):
    """Measures some outputs.

    Attributes:
        name: for people.
        positions: of the outputs that it compares.
        limits: the loss that every network may have, by precision.
    """

    name: str
    limits: dict[Precision, float]

    def __init__(self, *positions: int) -> None:
        self.positions = positions

    @abc.abstractmethod
    def loss(self, got: Rows, want: Rows, precision: Precision) -> float: ...

    def likeness(
        self,
        names: Sequence[str],
        got: Rows,
        want: Rows,
        others: Sequence[Rows],
        rounded: Rows,
        of: Precision,
    ) -> Likeness:
        """`others` are of LiteRT's other kernels, `rounded` of rounded numbers, or empty."""
        between = max((self.loss(other, want, of) for other in others), default=0.0)
        rounding = self.loss(rounded, want, of) if rounded else 0.0
        limit = max(self.limits[of], min(_OF_NOISE * max(between, rounding), _MOST))
        shown = tuple(names[p] for p in self.positions)
        return Likeness(self.name, shown, self.loss(got, want, of), limit, between, rounding)


class Numbers(Figure):
    """The root mean square of errors over the deviation of the reference's values.

    0.14 is a cosine of 0.99 for values without a mean.
    """

    name = "relative RMS error"
    limits = {"float": 1e-3, "reduced": 0.03, "quantized": 0.14}  # noqa: RUF012

    def loss(self, got: Rows, want: Rows, precision: Precision) -> float:  # noqa: ARG002
        (p,) = self.positions
        if any(g[p].shape != w[p].shape for g, w in zip(got, want, strict=True)):
            return np.inf
        x, y = (np.concatenate([_flat(row[p]) for row in rows]) for rows in (got, want))
        same = (x == y) | (np.isnan(x) & np.isnan(y))
        if not (same | (np.isfinite(x) & np.isfinite(y))).all():
            return np.inf
        error, y = np.where(same, 0.0, x - y)[np.isfinite(y)], y[np.isfinite(y)]
        deviation = np.sqrt(np.mean((y - y.mean()) ** 2)) if y.size else 0.0
        noise = np.sqrt(np.mean(error**2)) if error.size else 0.0
        return float(noise / deviation) if deviation else np.inf if noise else 0.0


def _flat(array: np.ndarray) -> np.ndarray:
    parts = [array.real, array.imag] if array.dtype.kind == "c" else [array]
    return np.concatenate([np.ravel(part).astype(np.float64) for part in parts])


class TopOne(Figure):
    """The part of the runs whose largest element is clearly another one."""

    name = "other top-1"
    limits = {"float": 0.0, "reduced": 0.0, "quantized": 0.0}  # noqa: RUF012

    def loss(self, got: Rows, want: Rows, precision: Precision) -> float:
        (p,) = self.positions
        other = 0
        for g, w in zip(got, want, strict=True):
            x, y = _flat(g[p]), _flat(w[p])
            if x.shape != y.shape:
                return 1.0
            lead = y.max() - y[int(np.argmax(x))]
            other += bool(lead > _CLEAR * Numbers.limits[precision] * y.std())
        return other / max(len(want), 1)


class Labels(Figure):
    """One minus the mean, over labels, of the intersection over the union of their elements."""

    name = "1 - mean IoU of labels"
    limits = {"float": 0.01, "reduced": 0.03, "quantized": 0.1}  # noqa: RUF012

    def loss(self, got: Rows, want: Rows, precision: Precision) -> float:  # noqa: ARG002
        (p,) = self.positions
        if any(g[p].shape != w[p].shape for g, w in zip(got, want, strict=True)):
            return 1.0
        x = np.concatenate([np.ravel(row[p]) for row in got])
        y = np.concatenate([np.ravel(row[p]) for row in want])
        shares = []
        for label in np.unique(y):
            a, b = x == label, y == label
            shares.append(np.count_nonzero(a & b) / np.count_nonzero(a | b))
        return 1 - float(np.mean(shares)) if shares else 0.0


class Values(Figure):
    """The part of the elements that are not equal: of integers, booleans and strings."""

    name = "unequal elements"
    limits = {"float": 0.0, "reduced": 0.0, "quantized": 0.0}  # noqa: RUF012

    def loss(self, got: Rows, want: Rows, precision: Precision) -> float:  # noqa: ARG002
        (p,) = self.positions
        unequal = total = 0
        for g, w in zip(got, want, strict=True):
            if g[p].shape != w[p].shape:
                return 1.0
            unequal, total = unequal + int(np.count_nonzero(g[p] != w[p])), total + w[p].size
        return unequal / max(total, 1)


class Selections(Figure):
    """One minus the intersection over the union of the selected boxes, in any order."""

    name = "1 - IoU of selected boxes"
    limits = {"float": 0.0, "reduced": 0.05, "quantized": 0.1}  # noqa: RUF012

    def loss(self, got: Rows, want: Rows, precision: Precision) -> float:  # noqa: ARG002
        chosen, n = self.positions
        both = either = 0
        for g, w in zip(got, want, strict=True):
            a, b = ({*row[chosen].ravel()[: int(np.ravel(row[n])[0])].tolist()} for row in (g, w))
            both, either = both + len(a & b), either + len(a | b)
        return 1 - both / either if either else 0.0


class Detections(Figure):
    """One minus the mean overlap of detections of the same class, weighted by their scores.

    The positions are those of boxes [1, N, 4] (ymin, xmin, ymax, xmax), classes, scores [1, N] and
    their number.
    """

    name = "1 - mean IoU of detections"
    limits = {"float": 0.01, "reduced": 0.05, "quantized": 0.1}  # noqa: RUF012

    def loss(self, got: Rows, want: Rows, precision: Precision) -> float:  # noqa: ARG002
        pairs = [(self._found(g), self._found(w)) for g, w in zip(got, want, strict=True)]
        ways = (pairs, [(w, g) for g, w in pairs])  # detections are neither missing nor added
        return max(self._missed(way) for way in ways)

    def _found(self, row: Sequence[np.ndarray]) -> np.ndarray:
        """[n, 6]: class, score and box, the best first."""
        boxes, classes, scores, number = (row[p] for p in self.positions)
        n = min(int(np.ravel(number)[0]), scores.size)
        table = np.column_stack(
            [classes.ravel()[:n], scores.ravel()[:n], boxes.reshape(-1, 4)[:n]]
        ).astype(np.float64)
        return table[np.argsort(-table[:, 1], kind="stable")]

    @staticmethod
    def _missed(pairs: Sequence[tuple[np.ndarray, np.ndarray]]) -> float:
        met = weight = 0.0
        for found, wanted in pairs:
            left = found
            for one in wanted:
                overlap = _overlap(left, one) * (1 - np.abs(left[:, 1] - one[1]))
                weight += one[1]
                if overlap.size and overlap.max() > 0:
                    met += one[1] * float(overlap.max())
                    left = np.delete(left, int(overlap.argmax()), 0)
        return 1 - met / weight if weight else 0.0


def _overlap(some: np.ndarray, one: np.ndarray) -> np.ndarray:
    """The intersection over the union of boxes with one box, 0 for another class."""
    sizes = np.minimum(some[:, 4:], one[4:]) - np.maximum(some[:, 2:4], one[2:4])
    shared = np.maximum(sizes, 0).prod(1)
    areas = np.maximum(some[:, 4:] - some[:, 2:4], 0).prod(1) + np.prod(one[4:] - one[2:4])
    union = areas - shared
    same = (some[:, 2:] == one[2:]).all(1)  # also a box without an area
    iou = np.where(same, 1.0, shared / np.where(union > 0, union, 1))
    result: np.ndarray = np.where(some[:, 0] == one[0], iou, 0.0)
    return result


def figures(subgraph: Subgraph, arrays: Sequence[np.ndarray]) -> list[Figure]:
    """What to measure of a model's outputs, of which `arrays` are those of one run."""
    producers = {i: operator for operator in subgraph.operators for i in operator.outputs}
    outputs = subgraph.outputs
    found: list[Figure] = []
    grouped: set[int] = set()
    for operator in subgraph.operators:
        group = _group(operator)
        if group is not None and all(i in outputs for i in group[1]):
            positions = [outputs.index(i) for i in group[1]]
            found.append(group[0](*positions))
            grouped.update(outputs.index(i) for i in operator.outputs if i in outputs)
    for position, index in enumerate(outputs):
        if position not in grouped:
            spec = subgraph.tensors[index].spec()
            is_argument = _source(producers, index) in _ARGUMENTS
            found += _of_one(position, arrays[position], spec.is_quantized, is_argument)
    return found


def _group(operator: Operator) -> tuple[type[Figure], tuple[int, ...]] | None:
    """The figure of an operator with several outputs, and those that it reads."""
    if operator.name == _DETECTIONS and len(operator.outputs) >= 4:
        return Detections, operator.outputs[:4]
    if operator.name in _SELECTIONS:
        return Selections, (operator.outputs[0], operator.outputs[-1])
    return None


def _source(producers: dict[int, Operator], index: int) -> str:
    """The operator that computes a tensor, before those that only move its values."""
    while index in producers and producers[index].name in _MOVING:
        index = producers[index].inputs[0]
    return producers[index].name if index in producers else ""


def _of_one(
    position: int, array: np.ndarray, is_quantized: bool, is_argument: bool
) -> list[Figure]:
    if array.dtype.kind in "fcV" or (array.dtype.kind in "iu" and is_quantized):
        is_vector = array.ndim > 0 and array.size == array.shape[-1] > 1
        return [Numbers(position), *([TopOne(position)] if is_vector else [])]
    if is_argument and array.size > 1:
        return [Labels(position)]
    return [Values(position)]
