"""A large batch as a loop over a few images at a time, on a CPU.

Temporaries beyond 32 MiB are mapped anew by the C library at every call: a batch of eight images
in MobileNet v2 spends a third of its time in page faults, and no tensor stays in the processor's
cache.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from jaxdelegate.model.records import Operator
from jaxdelegate.op_lowering.spec import TensorSpec
from jaxdelegate.passes.propagation import gather, is_constant

# What the temporaries of one turn may take, about: below the C library's 32 MiB.
_TURN_BYTES = 24 << 20
# Temporaries are about that many times as large as the largest result: it, and what it is made of.
_LIVE = 2

Shapes = dict[int, TensorSpec]


@dataclasses.dataclass(frozen=True)
class Turns:
    """How often to run a partition, on how much of the batch.

    Attributes:
        count: of turns.
        specs: of all tensors in one turn.
    """

    count: int
    specs: Mapping[int, TensorSpec]


def turns(
    operators: Sequence[Operator],
    specs: Mapping[int, TensorSpec],
    inputs: Sequence[int],
    outputs: Sequence[int],
) -> Turns | None:
    """The turns in which to run a partition; None: all at once.

    Only operators that compute every image by itself are run so; values do not depend on it.

    Args:
        operators: of one partition, in execution order.
        specs: of every tensor that they touch, for the whole batch.
        inputs: run-time tensors that come in.
        outputs: tensors that leave.
    """
    images = {specs[i].shape[0] if specs[i].shape else 1 for i in inputs}
    if len(images) != 1 or any(specs[i].is_variable for i in inputs):
        return None
    (batch,) = images
    if batch < 2:
        return None
    pending = [op for op in operators if not is_constant(gather(specs, op.outputs))]
    made = [specs[i] for op in pending for i in op.outputs if i in specs]
    largest = max((_bytes(spec) for spec in made), default=0)
    size = _images_in_a_turn(batch, _LIVE * largest // batch)
    if size == batch:
        return None
    split = set(inputs)
    for operator in pending:
        if not _is_by_image(operator, specs, split, batch):
            return None
        split.update(operator.outputs)
    if not split.issuperset(outputs):
        return None
    return Turns(batch // size, {**specs, **{i: _part(specs[i], batch, size) for i in split}})


def _bytes(spec: TensorSpec) -> int:
    return math.prod(spec.shape) * max(spec.dtype.itemsize, 4)  # a float view is float32


def _images_in_a_turn(batch: int, image_bytes: int) -> int:
    """The largest divisor of the batch that fits."""
    fitting = (n for n in range(batch, 1, -1) if batch % n == 0 and n * image_bytes <= _TURN_BYTES)
    return next(fitting, 1)


def _part(spec: TensorSpec, batch: int, size: int) -> TensorSpec:
    return dataclasses.replace(spec, shape=(spec.shape[0] // batch * size, *spec.shape[1:]))


# ---- operators that compute every image by itself

_Test = Callable[[Operator, Mapping[int, TensorSpec], set[int]], bool]


def _is_by_image(
    operator: Operator, specs: Mapping[int, TensorSpec], split: set[int], batch: int
) -> bool:
    """Whether the n-th part of every output depends on the n-th part of the split inputs only."""
    test = _TESTS.get(operator.name)
    if test is None or any(i not in specs for i in operator.outputs) or operator.intermediates:
        return False
    touched = [i for i in (*operator.inputs, *operator.outputs) if i >= 0]
    if any(i not in split and specs[i].const is None for i in touched if i in operator.inputs):
        return False
    divided = [specs[i] for i in touched if i in split or i in operator.outputs]
    if any(not spec.shape or spec.shape[0] % batch or spec.is_dynamic for spec in divided):
        return False
    return test(operator, specs, split)


def _first_only(operator: Operator, _specs: Mapping[int, TensorSpec], split: set[int]) -> bool:
    """Only the first input holds images."""
    return operator.inputs[0] in split and split.isdisjoint(operator.inputs[1:])


def _pointwise(operator: Operator, specs: Mapping[int, TensorSpec], split: set[int]) -> bool:
    """Operands have the output's leading dimension, or are constants that are the same for all."""
    y = specs[operator.outputs[0]].shape
    for i in operator.inputs:
        shape = specs[i].shape
        aligned = len(shape) == len(y)
        if i in split and not (aligned and shape[0] == y[0]):
            return False
        if i not in split and aligned and shape[0] != 1:
            return False
    return True


def _along_rows(operator: Operator, specs: Mapping[int, TensorSpec], split: set[int]) -> bool:
    """The last dimension of the first input is another than that of the images."""
    return _first_only(operator, specs, split) and len(specs[operator.inputs[0]].shape) > 1


def _keeps_rows(operator: Operator, specs: Mapping[int, TensorSpec], split: set[int]) -> bool:
    """Every image is a whole number of rows of the matrix."""
    x, w, y = (specs[i].shape for i in (*operator.inputs[:2], operator.outputs[0]))
    rows_match = math.prod(x) == math.prod(y[:-1]) * w[-1]
    return _first_only(operator, specs, split) and rows_match and x[-1] == w[-1]


def _keeps_images(index: int) -> _Test:
    """The constant input `index` holds axes, none of which is that of the images."""

    def test(operator: Operator, specs: Mapping[int, TensorSpec], split: set[int]) -> bool:
        axes = specs[operator.inputs[index]].const
        rank = len(specs[operator.inputs[0]].shape)
        if axes is None or not _first_only(operator, specs, split):
            return False
        return all(int(axis) % rank != 0 for axis in axes.ravel())

    return test


def _transposes_images(
    operator: Operator, specs: Mapping[int, TensorSpec], split: set[int]
) -> bool:
    order = specs[operator.inputs[1]].const
    return order is not None and _first_only(operator, specs, split) and order.ravel()[0] == 0


def _pads_images(operator: Operator, specs: Mapping[int, TensorSpec], split: set[int]) -> bool:
    edges = specs[operator.inputs[1]].const
    return edges is not None and _first_only(operator, specs, split) and not edges[0].any()


def _joins_images(operator: Operator, specs: Mapping[int, TensorSpec], split: set[int]) -> bool:
    options: Any = operator.options
    rank = len(specs[operator.outputs[0]].shape)
    return options.axis % rank != 0 and split.issuperset(operator.inputs)


def _multiplies_images(
    operator: Operator, specs: Mapping[int, TensorSpec], split: set[int]
) -> bool:
    """Batches of matrices, each by one of its own."""
    shapes = [specs[i].shape for i in (*operator.inputs, *operator.outputs)]
    aligned = len({shape[0] for shape in shapes}) == 1 and len({len(s) for s in shapes}) == 1
    return aligned and len(shapes[0]) > 2 and split.issuperset(operator.inputs)


def _each(test: _Test, *names: str) -> Iterable[tuple[str, _Test]]:
    return ((name, test) for name in names)


_TESTS: Mapping[str, _Test] = dict(
    (
        *_each(_first_only, "CONV_2D", "DEPTHWISE_CONV_2D", "AVERAGE_POOL_2D", "MAX_POOL_2D"),
        *_each(_first_only, "RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR", "DEPTH_TO_SPACE"),
        *_each(_first_only, "SPACE_TO_DEPTH", "RESHAPE", "SQUEEZE", "EXPAND_DIMS"),
        *_each(_pointwise, "ADD", "SUB", "MUL", "DIV", "MAXIMUM", "MINIMUM", "PRELU"),
        *_each(_pointwise, "SQUARED_DIFFERENCE", "RELU", "RELU6", "RELU_N1_TO_1", "RELU_0_TO_1"),
        *_each(_pointwise, "HARD_SWISH", "LOGISTIC", "TANH", "ELU", "GELU", "LEAKY_RELU", "ABS"),
        *_each(_pointwise, "NEG", "EXP", "SQUARE", "SQRT", "RSQRT", "QUANTIZE", "DEQUANTIZE"),
        *_each(_pointwise, "CAST"),
        *_each(_along_rows, "SOFTMAX", "LOG_SOFTMAX", "L2_NORMALIZATION"),
        *_each(_keeps_rows, "FULLY_CONNECTED"),
        *_each(_keeps_images(1), "MEAN", "SUM", "REDUCE_MAX", "REDUCE_MIN"),
        *_each(_transposes_images, "TRANSPOSE"),
        *_each(_pads_images, "PAD", "PADV2", "MIRROR_PAD"),
        *_each(_joins_images, "CONCATENATION"),
        *_each(_multiplies_images, "BATCH_MATMUL"),
    )
)
