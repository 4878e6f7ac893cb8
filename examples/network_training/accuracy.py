"""Compares what a network finds in generated pictures and sounds with the truth."""

import dataclasses

import numpy as np

from sample_tasks.annotations import Annotation, Box
from sample_tasks.sounds import Heard, Spoken

_MAX_DELAY = 0.3  # seconds after its end in which a word still counts as heard


@dataclasses.dataclass(frozen=True)
class Counts:
    """Objects that were found, true objects, and detections that fit none."""

    found: int = 0
    true: int = 0
    false: int = 0

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(self.found + other.found, self.true + other.true, self.false + other.false)

    @property
    def recall(self) -> float:
        """The fraction of the objects that was found."""
        return self.found / max(self.true, 1)

    @property
    def false_rate(self) -> float:
        """Wrong detections per true object."""
        return self.false / max(self.true, 1)


def is_right(predicted: Annotation, truth: Annotation) -> bool:
    """Whether the best label is the true one."""
    return predicted.labels[0].name == truth.labels[0].name


def boxes(predicted: Annotation, truth: Annotation, iou: float = 0.5) -> Counts:
    """Counts boxes with the right label that overlap a true one by at least `iou`, each once."""
    left = list(truth.boxes)
    for box in predicted.boxes:
        fitting = [t for t in left if t.label.name == box.label.name and overlap(box, t) >= iou]
        if fitting:
            left.remove(max(fitting, key=lambda t: overlap(box, t)))
    n = len(truth.boxes) - len(left)
    return Counts(n, len(truth.boxes), len(predicted.boxes) - n)


def overlap(a: Box, b: Box) -> float:
    """Intersection over union of two boxes."""
    width = min(a.right, b.right) - max(a.left, b.left)
    height = min(a.bottom, b.bottom) - max(a.top, b.top)
    common = max(width, 0) * max(height, 0)
    areas = sum((x.right - x.left) * (x.bottom - x.top) for x in (a, b))
    return common / (areas - common)


def confusion(predicted: Annotation, truth: Annotation) -> np.ndarray:
    """Counts of pixels [true class, predicted class], at the size of the true mask."""
    if predicted.mask is None or truth.mask is None:
        raise ValueError("confusion() compares masks; one of the two is None")
    height, width = truth.mask.shape
    rows = np.arange(height) * predicted.mask.shape[0] // height
    columns = np.arange(width) * predicted.mask.shape[1] // width
    n = len(truth.mask_names)
    pairs = n * truth.mask + predicted.mask[rows][:, columns]
    return np.bincount(pairs.ravel(), minlength=n * n).reshape(n, n)


def mean_iou(pixels: np.ndarray) -> float:
    """Intersection over union from a sum of `confusion`, averaged over the classes."""
    right = np.diag(pixels)
    return float(np.mean(right / np.maximum(pixels.sum(0) + pixels.sum(1) - right, 1)))


def joint_error(predicted: Annotation, truth: Annotation) -> float:
    """The mean distance of joints from the truth, in fractions of the image's size."""
    places = {p.name: p for p in predicted.key_points}
    away = [np.hypot(places[t.name].x - t.x, places[t.name].y - t.y) for t in truth.key_points]
    return float(np.mean(away))


def words(heard: tuple[Heard, ...], spoken: tuple[Spoken, ...]) -> Counts:
    """Counts words that were heard while they were spoken or shortly after."""
    left = list(spoken)
    for word in heard:
        fitting = [
            s for s in left if s.name == word.name and s.start < word.seconds < s.end + _MAX_DELAY
        ]
        if fitting:
            left.remove(fitting[0])
    n = len(spoken) - len(left)
    return Counts(n, len(spoken), len(heard) - n)
