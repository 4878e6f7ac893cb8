"""CombinedNonMaxSuppression."""

from typing import Any

import numpy as np

from jaxdelegate.testing import Arg, Case, const, f32, value
from tests.op_lowering.flex.test_math import case

F32 = np.float32
OUTPUTS = [F32, F32, F32, np.int32]


def suppression(
    label: str,
    boxes: Arg,
    scores: Arg,
    each: int,
    total: int,
    iou: float = 0.3,
    least: float = 0.1,
    **attributes: Any,
) -> Case:
    settings = [const(np.int32(each)), const(np.int32(total)), const(F32(iou)), const(F32(least))]
    inputs = [boxes, scores, *settings]
    return case("CombinedNonMaxSuppression", label, inputs, OUTPUTS, attributes=attributes)


BOXES, SCORES = f32(2, 20, 1, 4, low=-0.2, high=1.3), f32(2, 20, 3, low=0, high=1)
OF_CLASS = f32(1, 12, 3, 4, low=0, high=1)
FEW = [[0, 0, 0.4, 0.4], [0, 0.1, 0.4, 0.5], [0.5, 0.5, 0.9, 0.8], [0.1, 0.6, 0.3, 0.9]]
CASES = [
    suppression(
        "few",
        value(np.array(FEW, F32).reshape(1, 4, 1, 4)),
        value(np.array([[[0.9, 0.2], [0.7, 0.6], [0.5, 0.4], [0.3, 0.8]]], F32)),
        2,
        4,
        clip_boxes=False,
    ),
    suppression("shared-boxes", BOXES, SCORES, 4, 6),
    suppression("boxes-of-classes", OF_CLASS, f32(1, 12, 3, low=0, high=1), 5, 9),
    suppression("not-clipped", BOXES, SCORES, 3, 40, clip_boxes=False),
    suppression("padded", BOXES, SCORES, 2, 40, pad_per_class=True),
    suppression("none", BOXES, SCORES, 3, 5, least=1.5),
    suppression("all", BOXES, SCORES, 20, 60, iou=1.0, least=0.0),
]
NOTHING = suppression("", BOXES, SCORES, 0, 5)
REFUSED = {
    "expected some": NOTHING,
    "depends on data": CASES[4].with_inputs({2: value(np.int32(2))}),
}
STOPPED = {"expected some": NOTHING}
IMPOSSIBLE = [
    suppression("", f32(2, 20, 2, 4), SCORES, 4, 6),
    suppression("", f32(2, 20, 4), SCORES, 4, 6),
    suppression("", f32(2, 19, 1, 4), SCORES, 4, 6),
]
