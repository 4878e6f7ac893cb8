"""Proves, operator by operator, that a graph computes each image of a batch independently."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from jaxdelegate.model.records import Operator
from jaxdelegate.op_lowering.options import record_of
from jaxdelegate.op_lowering.records.operator import Batch
from jaxdelegate.op_lowering.spec import TensorSpec
from jaxdelegate.passes.propagation import gather, is_constant
from jaxdelegate.text import printable

_ONLY_ITS_SHAPE = ("RESHAPE",)  # a constant input only repeats the result's shape


def why_not_by_image(
    operators: Sequence[Operator],
    specs: Mapping[int, TensorSpec],
    inputs: Sequence[int],
    outputs: Sequence[int],
    *,
    single: Mapping[int, TensorSpec] | None = None,
) -> str | None:
    """The first operator that may mix images, or another reason; None if provably none does.

    `specs` are for the whole batch; `inputs`, at run time, have the same number of images along the
    first dimension. With `single`, the specs for a batch of one, the graph must also compute each
    image as it does in a batch of one: with the same constants, and its part of every shape.
    """
    counts = {specs[i].shape[0] if specs[i].shape else 0 for i in inputs}
    if len(counts) != 1 or min(counts) < 1:
        return "its inputs do not hold the same number of images"
    read = (i for op in operators for i in op.inputs if i in specs)
    variable = next((i for i in read if specs[i].is_variable), None)
    if variable is not None:
        return f"tensor {variable} {specs[variable].name!r} is state"
    pending = [op for op in operators if not is_constant(gather(specs, op.outputs))]
    split, mixing = split_by_image(pending, specs, inputs, min(counts))
    if mixing is not None:
        return f"node {mixing.index} ({printable(mixing.name)}) may mix the images of a batch"
    if single is not None:
        for op in pending:
            if not _is_as_for_one(op, specs, single, min(counts)):
                name = printable(op.name)
                return f"node {op.index} ({name}) computes something else for a batch of 1"
    whole = next((i for i in outputs if i not in split), None)
    return None if whole is None else f"output {whole} {specs[whole].name!r} holds no images"


def split_by_image(
    pending: Sequence[Operator],
    specs: Mapping[int, TensorSpec],
    inputs: Sequence[int],
    batch: int,
) -> tuple[set[int], Operator | None]:
    """The tensors that hold images, and the first operator that may mix them, if any.

    Operators whose results are constant are not in `pending`. `specs` are for the whole batch, and
    inputs have `batch` images along the first dimension.
    """
    split = set(inputs)
    for operator in pending:
        if not _is_by_image(operator, specs, split, batch):
            return split, operator
        split.update(operator.outputs)
    return split, None


def _is_as_for_one(
    operator: Operator,
    specs: Mapping[int, TensorSpec],
    single: Mapping[int, TensorSpec],
    batch: int,
) -> bool:
    """Whether an operator has the constants of a batch of one, and `batch` times its results."""
    if operator.name not in _ONLY_ITS_SHAPE and any(
        _differs(specs[i].const, single[i].const) for i in operator.inputs if i >= 0
    ):
        return False
    shapes = [(specs[i].shape, single[i].shape) for i in operator.outputs if i >= 0]
    return all(one and y == (one[0] * batch, *one[1:]) for y, one in shapes)


def _differs(a: np.ndarray | None, b: np.ndarray | None) -> bool:
    if a is None or b is None:
        return a is not b
    return a is not b and not np.array_equal(a, b)


_Test = Callable[[Operator, Mapping[int, TensorSpec], set[int]], bool]


def _is_by_image(
    operator: Operator, specs: Mapping[int, TensorSpec], split: set[int], batch: int
) -> bool:
    """Whether the nth part of every output depends on the nth part of the split inputs only."""
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
    return operator.inputs[0] in split and split.isdisjoint(operator.inputs[1:])


def _pointwise(operator: Operator, specs: Mapping[int, TensorSpec], split: set[int]) -> bool:
    """Operands have the output's leading dimension, or are the same for all images."""
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
    """The last dimension of the first input is not that of the images."""
    return _first_only(operator, specs, split) and len(specs[operator.inputs[0]].shape) > 1


def _keeps_rows(operator: Operator, specs: Mapping[int, TensorSpec], split: set[int]) -> bool:
    """Every image is a whole number of the matrix's rows."""
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
    """Each image has its own matrices."""
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
