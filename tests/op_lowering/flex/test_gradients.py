"""Gradients of slices, and of softmax with its loss."""

from typing import Any

import numpy as np

from jaxdelegate.testing import Arg, Case, const, f32, of, value
from tests.op_lowering.flex.test_math import case, numbers

F32, I32 = np.float32, np.dtype(np.int32)


# ---- StridedSliceGrad


def sliced(label: str, shape: tuple[int, ...], index: tuple[Any, ...], **masks: int) -> Case:
    """The gradient of a slice; `index` is what numpy calls it."""
    taken = np.zeros(shape)[index].shape
    entries = [i if isinstance(i, slice) else slice(i or 0, 1, 1) for i in index if i is not ...]
    bounds = [[s.start or 0 for s in entries], [s.stop or 0 for s in entries]]
    steps = [1 if s.step is None else s.step for s in entries]
    inputs = [const(np.array(v, I32)) for v in (shape, *bounds, steps)]
    dy = f32(*taken)
    attributes = {"T": dy.value.dtype, "Index": I32, **masks}
    return case("StridedSliceGrad", label, [*inputs, dy], [F32], attributes=attributes)


ROWS, REVERSED = slice(1, 4, 2), slice(None, None, -2)
SLICES = [
    sliced("plain", (4, 6), (ROWS, slice(2, 5))),
    sliced("reversed", (4, 7), (ROWS, REVERSED), begin_mask=2, end_mask=2),
    sliced("negative", (4, 7), (slice(-3, -1), slice(5, 1, -1))),
    sliced("row", (4, 6), (2, slice(0, 6)), shrink_axis_mask=1),
    sliced("new-axis", (4, 6), (None, ROWS), new_axis_mask=1),
]
ELLIPSIS = case(
    "StridedSliceGrad",
    "ellipsis",
    [numbers(2, 3, 4), numbers(0, 1), numbers(0, 3), numbers(1, 1), f32(2, 3, 2)],
    [F32],
    attributes={"T": np.dtype(F32), "Index": I32, "ellipsis_mask": 1},
)
OTHER = ELLIPSIS.with_inputs({4: f32(2, 3, 3)})


# ---- SoftmaxCrossEntropyWithLogits, SparseSoftmaxCrossEntropyWithLogits


def entropy(name: str, label: str, logits: Arg, labels: Arg) -> Case:
    dtype = logits.value.dtype
    attributes = {"Tlabels": labels.value.dtype} if name == "SparseSoftmax" else {}
    name = f"{name}CrossEntropyWithLogits"
    return case(name, label, [logits, labels], [dtype] * 2, attributes=attributes)


ROW, LABELS = f32(3, 5, low=-9, high=9), f32(3, 5, low=0, high=1)
ENTROPIES = [
    entropy("Softmax", "plain", ROW, LABELS),
    entropy("Softmax", "broadcast", ROW, f32(1, 5, low=0, high=1)),
    entropy("Softmax", "float64", of(np.float64, 2, 3), of(np.float64, 2, 3, low=0)),
    entropy("SparseSoftmax", "int32", ROW, value([0, 4, 2], np.int32)),
    entropy("SparseSoftmax", "int64", ROW, value([1, 1, 3], np.int64)),
]
UNKNOWN = entropy("SparseSoftmax", "", ROW, value([0, 5, 2], np.int32))
CASES = [*SLICES, ELLIPSIS, *ENTROPIES]
REFUSED = {
    "a slice is [2, 3, 2], its gradient [2, 3, 3]": OTHER,
    "computed at run time": SLICES[0].with_inputs({1: value(np.int32([1, 2]))}),
}
STOPPED = {
    "a slice is [2, 3, 2], not [2, 3, 3]": OTHER,
    "is not one of 5 classes": UNKNOWN,
}
IMPOSSIBLE = [
    entropy("Softmax", "", f32(5), f32(5)),
    entropy("SparseSoftmax", "", ROW, value([0], np.int32)),
]
