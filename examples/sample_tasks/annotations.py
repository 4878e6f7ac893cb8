"""What an image shows, as a network says or in truth, independent of the network."""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from jaxdelegate.model.records import Subgraph


@dataclasses.dataclass(frozen=True)
class Label:
    name: str
    score: float  # 0 to 1


@dataclasses.dataclass(frozen=True)
class Box:
    """An object and its position, in fractions of the image's width and height."""

    label: Label
    left: float
    top: float
    right: float
    bottom: float


@dataclasses.dataclass(frozen=True)
class KeyPoint:
    """A joint and its position, in fractions of the image's width and height."""

    name: str
    x: float
    y: float
    score: float


@dataclasses.dataclass(frozen=True, eq=False)
class Annotation:
    """What one image shows; each task fills some fields."""

    labels: tuple[Label, ...] = ()  # classes of the whole image, best first
    boxes: tuple[Box, ...] = ()  # objects, best first
    key_points: tuple[KeyPoint, ...] = ()
    bones: tuple[tuple[str, str], ...] = ()  # pairs of names of joints that a line connects
    # Integers [height, width], the class of each pixel, 0 for the background. Its size may differ
    # from the image's.
    mask: np.ndarray | None = None
    mask_names: tuple[str, ...] = ()  # names of the mask's classes; the first is the background's


# ---- the outputs of TFLite_Detection_PostProcess, in any file

Positions = tuple[int, int, int, int]  # where boxes, classes, scores, count are

_OPERATOR = "TFLite_Detection_PostProcess"
_MIN_SCORE = 0.5  # less certain objects are left out


def detection_outputs(main: Subgraph) -> Positions | None:
    """Where a graph returns the operator's results; None: it does not return all of them."""
    for operator in main.operators:
        results = operator.outputs[:4]
        if operator.name == _OPERATOR and len(results) == 4 and {*results} <= {*main.outputs}:
            boxes, classes, scores, count = map(main.outputs.index, results)
            return boxes, classes, scores, count
    return None


def detected(
    outputs: Sequence[np.ndarray], positions: Positions, name: Callable[[int], str]
) -> Annotation:
    """The objects of the first image, from boxes [1, n, 4], classes [1, n], scores [1, n], count.

    `name` is that of a class.
    """
    boxes, classes, scores = (outputs[p][0] for p in positions[:3])
    return Annotation(
        boxes=tuple(
            Box(
                Label(name(int(classes[i])), float(scores[i])),
                *(float(boxes[i][edge]) for edge in (1, 0, 3, 2)),  # the file has y before x
            )
            for i in range(detection_count(outputs, positions))
            if scores[i] >= _MIN_SCORE and np.isfinite(boxes[i]).all()
        )
    )


def detection_count(outputs: Sequence[np.ndarray], positions: Positions) -> int:
    """How many rows have an object: at most n."""
    count, rows = outputs[positions[3]], len(outputs[positions[2]][0])
    return min(max(int(np.ravel(count)[0]), 0), rows)
