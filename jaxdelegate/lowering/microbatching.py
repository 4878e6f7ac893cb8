"""A large batch as a loop over a few images at a time, on a CPU.

Temporaries beyond 32 MiB are mapped again by the C library at every call: a batch of eight images
in MobileNet v2 spends a third of its time in page faults, and no tensor stays in the processor's
cache.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaxdelegate.model.records import Operator
from jaxdelegate.op_lowering.options import record_of
from jaxdelegate.op_lowering.options.operator import Batch
from jaxdelegate.op_lowering.spec import TensorSpec
from jaxdelegate.passes.propagation import gather, is_constant

# What the temporaries of one microbatch may take, about: below the C library's 32 MiB.
_MICROBATCH_BYTES = 24 << 20
# Temporaries are about that many times as large as the largest result: it, and what it is made of.
_LIVE = 2

Shapes = dict[int, TensorSpec]


@dataclasses.dataclass(frozen=True)
class Microbatches:
    """How often to run a partition, on how much of the batch.

    Attributes:
        count: of microbatches.
        specs: of all tensors in one microbatch.
    """

    count: int
    specs: Mapping[int, TensorSpec]


def microbatches(
    operators: Sequence[Operator],
    specs: Mapping[int, TensorSpec],
    inputs: Sequence[int],
    outputs: Sequence[int],
) -> Microbatches | None:
    """The microbatches in which to run a partition; None: all at once.

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
    pending = _pending(operators, specs)
    made = [specs[i] for op in pending for i in op.outputs if i in specs]
    largest = max((_bytes(spec) for spec in made), default=0)
    size = _images_in_a_microbatch(batch, _LIVE * largest // batch)
    if size == batch:
        return None
    if why_not_by_image(operators, specs, inputs, outputs) is not None:
        return None
    split = {*inputs, *(i for operator in pending for i in operator.outputs)}
    return Microbatches(
        batch // size, {**specs, **{i: _part(specs[i], batch, size) for i in split}}
    )


def why_not_by_image(
    operators: Sequence[Operator],
    specs: Mapping[int, TensorSpec],
    inputs: Sequence[int],
    outputs: Sequence[int],
) -> str | None:
    """Why a partition does not compute every image of its batch by itself; None: it does.

    Args:
        operators: in execution order.
        specs: of every tensor that they touch, for the whole batch.
        inputs: run-time tensors that come in, all with the images along their first axis.
        outputs: tensors that leave.
    """
    batch = specs[inputs[0]].shape[0]
    split = set(inputs)
    for operator in _pending(operators, specs):
        if not _is_by_image(operator, specs, split, batch):
            return f"node {operator.index} ({operator.name}) may mix the images of a batch"
        split.update(operator.outputs)
    if not split.issuperset(outputs):
        return "an output does not depend on the batch"
    return None


def _pending(operators: Sequence[Operator], specs: Mapping[int, TensorSpec]) -> list[Operator]:
    return [op for op in operators if not is_constant(gather(specs, op.outputs))]


def _bytes(spec: TensorSpec) -> int:
    return math.prod(spec.shape) * max(spec.dtype.itemsize, 4)  # a float view is float32


def _images_in_a_microbatch(batch: int, image_bytes: int) -> int:
    """The largest divisor of the batch that fits."""
    fitting = (
        n for n in range(batch, 1, -1) if batch % n == 0 and n * image_bytes <= _MICROBATCH_BYTES
    )
    return next(fitting, 1)


def _part(spec: TensorSpec, batch: int, size: int) -> TensorSpec:
    return dataclasses.replace(spec, shape=(spec.shape[0] // batch * size, *spec.shape[1:]))


# ---- operators that compute every image by itself

_Test = Callable[[Operator, Mapping[int, TensorSpec], set[int]], bool]


def _is_by_image(
    operator: Operator, specs: Mapping[int, TensorSpec], split: set[int], batch: int
) -> bool:
    """Whether the n-th part of every output depends on the n-th part of the split inputs only."""
    record = record_of(operator.name)
    test = _pointwise if record.is_elementwise else _TESTS.get(record.batch)
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


def _keeps_images(operator: Operator, specs: Mapping[int, TensorSpec], split: set[int]) -> bool:
    """The second input holds constant axes, none of which is that of the images."""
    axes = specs[operator.inputs[1]].const
    rank = len(specs[operator.inputs[0]].shape)
    if axes is None or not _first_only(operator, specs, split):
        return False
    return all(int(axis) % rank != 0 for axis in axes.ravel())


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


_TESTS: Mapping[Batch, _Test] = {
    Batch.FIRST_INPUT: _first_only,
    Batch.LAST_AXIS: _along_rows,
    Batch.ROWS: _keeps_rows,
    Batch.AXES: _keeps_images,
    Batch.PERMUTATION: _transposes_images,
    Batch.EDGES: _pads_images,
    Batch.CONCATENATED: _joins_images,
    Batch.MATRICES: _multiplies_images,
}
