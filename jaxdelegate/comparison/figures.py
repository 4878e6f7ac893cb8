"""How alike the outputs of two sides are as a whole, whatever single elements differ."""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from jaxdelegate.comparison.bounds import LOSSES, MOST, Precision, allowed
from jaxdelegate.model.records import Operator, Subgraph
from jaxdelegate.text import shortened

Rows = Sequence[Sequence[np.ndarray]]  # the outputs of each run

_CLEAR = 3.0  # an argument is clear if it wins by this many times the allowed error
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
        text = f"{self.figure} of {names}: {self.loss:.3g}, at most {self.limit:.3g}"
        if self.between_kernels:
            text += f"; LiteRT's own kernels: {self.between_kernels:.3g}"
        if self.of_rounding:
            text += f"; the reference on rounded weights and inputs: {self.of_rounding:.3g}"
        return text


@dataclasses.dataclass(frozen=True)
class Figure:
    name: str  # for people, and in `bounds.LOSSES`
    # From the outputs of both sides in each run, the reference's second, and the precision.
    loss: Callable[[Rows, Rows, Precision], float]
    positions: tuple[int, ...] = ()  # the positions of the outputs among the model's

    def at(self, *positions: int) -> "Figure":
        return dataclasses.replace(self, positions=positions)

    def likeness(
        self,
        names: Sequence[str],
        got: Rows,
        want: Rows,
        others: Sequence[Rows],
        rounded: Rows,
        of: Precision,
    ) -> Likeness:
        """Compare the outputs of all runs; those of other kernels, or of rounding, may be empty."""

        def loss(rows: Rows) -> float:
            return self.loss(self._chosen(rows), self._chosen(want), of)

        between = max(map(loss, others), default=0.0)
        rounding = loss(rounded) if rounded else 0.0
        limit = allowed(LOSSES[self.name][of], max(between, rounding), MOST)
        shown = tuple(names[p] for p in self.positions)
        return Likeness(self.name, shown, loss(got), limit, between, rounding)

    def _chosen(self, rows: Rows) -> Rows:
        return [[row[p] for p in self.positions] for row in rows]


def _differ_in_shape(got: Rows, want: Rows) -> bool:
    return any(g[0].shape != w[0].shape for g, w in zip(got, want, strict=True))


def _flat(array: np.ndarray) -> np.ndarray:
    parts = [array.real, array.imag] if array.dtype.kind == "c" else [array]
    return np.concatenate([np.ravel(part).astype(np.float64) for part in parts])


def _relative_error(got: Rows, want: Rows, _: Precision) -> float:
    """The root mean square of errors over the deviation of the reference's values."""
    if _differ_in_shape(got, want):
        return np.inf
    x, y = (np.concatenate([_flat(row[0]) for row in rows]) for rows in (got, want))
    same = (x == y) | (np.isnan(x) & np.isnan(y))
    if not (same | (np.isfinite(x) & np.isfinite(y))).all():
        return np.inf
    error, y = np.where(same, 0.0, x - y)[np.isfinite(y)], y[np.isfinite(y)]
    deviation = np.sqrt(np.mean((y - y.mean()) ** 2)) if y.size else 0.0
    noise = np.sqrt(np.mean(error**2)) if error.size else 0.0
    return float(noise / deviation) if deviation else np.inf if noise else 0.0


def _other_top_one(got: Rows, want: Rows, precision: Precision) -> float:
    """The part of the runs whose largest element is clearly another one."""
    if _differ_in_shape(got, want):
        return 1.0
    error, other = LOSSES[NUMBERS.name][precision], 0
    for (g,), (w,) in zip(got, want, strict=True):
        x, y = _flat(g), _flat(w)
        lead = y.max() - y[int(np.argmax(x))]
        other += bool(lead > _CLEAR * error * y.std())
    return other / max(len(want), 1)


def _other_labels(got: Rows, want: Rows, _: Precision) -> float:
    """One minus the mean, over labels, of the intersection over the union of their elements."""
    if _differ_in_shape(got, want):
        return 1.0
    x, y = (np.concatenate([np.ravel(row[0]) for row in rows]) for rows in (got, want))
    pairs = [(x == label, y == label) for label in np.unique(y)]
    shares = [np.count_nonzero(a & b) / np.count_nonzero(a | b) for a, b in pairs]
    return 1 - float(np.mean(shares)) if shares else 0.0


def _unequal_values(got: Rows, want: Rows, _: Precision) -> float:
    if _differ_in_shape(got, want):
        return 1.0
    unequal = sum(np.count_nonzero(g != w) for (g,), (w,) in zip(got, want, strict=True))
    return unequal / max(sum(w.size for (w,) in want), 1)


def _other_selections(got: Rows, want: Rows, _: Precision) -> float:
    """One minus the intersection over the union of the selected boxes, in any order.

    The outputs are the boxes' indices [N] and how many of them are selected.
    """
    both = either = 0
    for row in zip(got, want, strict=True):
        a, b = ({*chosen.ravel()[: int(np.ravel(n)[0])].tolist()} for chosen, n in row)
        both, either = both + len(a & b), either + len(a | b)
    return 1 - both / either if either else 0.0


def _other_detections(got: Rows, want: Rows, _: Precision) -> float:
    """One minus the mean overlap of detections of the same class, weighted by their scores.

    The outputs are boxes [1, N, 4] (ymin, xmin, ymax, xmax), classes, scores [1, N], their number.
    """
    pairs = [(_detections(*g), _detections(*w)) for g, w in zip(got, want, strict=True)]
    # Detections are neither missing nor added.
    return max(_missed(pairs), _missed([(w, g) for g, w in pairs]))


def _detections(*outputs: np.ndarray) -> np.ndarray:
    """[n, 6]: class, score and box, the best first."""
    boxes, classes, scores, number = outputs
    n = min(int(np.ravel(number)[0]), scores.size)
    table = np.column_stack(
        [classes.ravel()[:n], scores.ravel()[:n], boxes.reshape(-1, 4)[:n]]
    ).astype(np.float64)
    return table[np.argsort(-table[:, 1], kind="stable")]


def _missed(pairs: Sequence[tuple[np.ndarray, np.ndarray]]) -> float:
    """The weighted part of the second detections that the first ones do not overlap."""
    met = weight = 0.0
    for left, wanted in pairs:
        for one in wanted:
            overlap = _overlap(left, one) * (1 - np.abs(left[:, 1] - one[1]))
            weight += one[1]
            if overlap.size and overlap.max() > 0:
                met += one[1] * float(overlap.max())
                left = np.delete(left, int(overlap.argmax()), 0)  # noqa: PLW2901
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


NUMBERS = Figure("relative RMS error", _relative_error)
TOP_ONE = Figure("other top-1", _other_top_one)
LABELS = Figure("1 - mean IoU of labels", _other_labels)
VALUES = Figure("unequal elements", _unequal_values)
SELECTIONS = Figure("1 - IoU of selected boxes", _other_selections)
DETECTIONS = Figure("1 - mean IoU of detections", _other_detections)
# Operators whose outputs belong together: their figure, and the outputs that it reads.
_GROUPS: dict[str, tuple[Figure, tuple[int, ...]]] = {
    "TFLite_Detection_PostProcess": (DETECTIONS, (0, 1, 2, 3)),
    "NON_MAX_SUPPRESSION_V4": (SELECTIONS, (0, -1)),
    "NON_MAX_SUPPRESSION_V5": (SELECTIONS, (0, -1)),
}


def figures(subgraph: Subgraph, arrays: Sequence[np.ndarray]) -> list[Figure]:
    """What to measure of a model's outputs, of which `arrays` are those of one run."""
    outputs, chosen, grouped = subgraph.outputs, list[Figure](), set[int]()
    for operator in subgraph.operators:
        figure, positions = _GROUPS.get(operator.name, (None, ()))
        if figure is None or len(operator.outputs) < len(positions):
            continue
        read = [operator.outputs[p] for p in positions]
        if all(i in outputs for i in read):
            chosen.append(figure.at(*map(outputs.index, read)))
            grouped.update(operator.outputs)
    producers = {i: operator for operator in subgraph.operators for i in operator.outputs}
    for position, index in enumerate(outputs):
        if index not in grouped:
            is_quantized = subgraph.tensors[index].spec().is_quantized
            is_argument = _source(producers, index) in _ARGUMENTS
            of_one = _of_one(arrays[position], is_quantized, is_argument)
            chosen += [figure.at(position) for figure in of_one]
    return chosen


def _source(producers: dict[int, Operator], index: int) -> str:
    """The operator that computes a tensor, before those that only move its values."""
    while index in producers and producers[index].name in _MOVING:
        index = producers[index].inputs[0]
    return producers[index].name if index in producers else ""


def _of_one(array: np.ndarray, is_quantized: bool, is_argument: bool) -> list[Figure]:
    if array.dtype.kind in "fcV" or (array.dtype.kind in "iu" and is_quantized):
        is_vector = array.ndim > 0 and array.size == array.shape[-1] > 1
        return [NUMBERS, TOP_ONE] if is_vector else [NUMBERS]
    return [LABELS] if is_argument and array.size > 1 else [VALUES]
