"""What the outputs of TFLite_Detection_PostProcess mean, in any file."""

from collections.abc import Callable, Sequence

import numpy as np

from jaxdelegate.demo.results import Box, Found, Label
from jaxdelegate.model.records import Subgraph

Positions = tuple[int, int, int, int]  # of boxes, classes, scores and count among the outputs

_OPERATOR = "TFLite_Detection_PostProcess"
_MIN_SCORE = 0.5  # of a detected object


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
) -> Found:
    """The objects of the first image, from boxes [1, n, 4], classes [1, n], scores [1, n], count.

    `name` is that of a class.
    """
    boxes, classes, scores = (outputs[p][0] for p in positions[:3])
    return Found(
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
