"""Graph passes with the reference kernels: shapes from the current inputs, and constant folding.

Shapes declared in a file are a hint; what counts follows from the inputs' current shapes. dtypes are
binding.
"""

import dataclasses
import math
from collections.abc import Iterable, Sequence

import numpy as np

from jaxdelegate.errors import InterpreterError
from jaxdelegate.model import Operator
from jaxdelegate.op_lowering.spec import Shape, Specs, TensorSpec
from jaxdelegate.reference.kernel import Folds, Kernel
from jaxdelegate.reference.registry import KERNELS

# What a kernel may raise on a graph that is wrong, as opposed to a bug of ours.
KERNEL_ERRORS = (ValueError, TypeError, IndexError, AttributeError, ArithmeticError, LookupError)

# Folding must not turn a small file into a large one (FILL, TILE, BROADCAST_TO of constants).
_FOLD_BYTES = 1 << 20
_FOLD_GROWTH = 4  # int8 weights -> float32


def gather(specs: Sequence[TensorSpec], indices: Iterable[int]) -> Specs:
    """The specs of an operator's tensors; None stands for an absent optional input."""
    return tuple(specs[i] if i >= 0 else None for i in indices)  # type: ignore[misc]


def propagate(operators: Iterable[Operator], specs: Sequence[TensorSpec]) -> list[TensorSpec]:
    """Specs of all tensors after shape propagation and constant folding, in operator order.

    Args:
        operators: in execution order.
        specs: by tensor index; inputs carry their current shapes, constants their values.

    Returns:
        New specs: `shape` and `is_dynamic` follow the inputs, `const` holds what is known.

    Raises:
        InterpreterError: an operator refuses the shapes; names the node.
    """
    result = list(specs)
    for operator in operators:
        kernel = KERNELS.get(operator.name)
        if kernel is None:  # an unknown custom operator: the host says so when it has to run it
            continue
        inputs = gather(result, operator.inputs)
        for index, spec in zip(
            operator.outputs, _outputs(operator, kernel, inputs, result), strict=False
        ):
            if index >= 0:
                result[index] = spec
    return result


def _outputs(
    operator: Operator, kernel: Kernel, inputs: Specs, specs: Sequence[TensorSpec]
) -> list[TensorSpec]:
    declared = [specs[i] for i in operator.outputs if i >= 0]
    if any(spec is not None and spec.is_dynamic for spec in inputs):
        return [dataclasses.replace(spec, is_dynamic=True) for spec in declared]
    try:
        shapes = kernel.shapes(operator.options, inputs)
    except KERNEL_ERRORS as error:
        raise InterpreterError(prepare_message(operator, error)) from error
    outputs = [with_shape(spec, shape) for spec, shape in zip(declared, shapes, strict=False)]
    return _folded(operator, kernel, inputs, outputs) or outputs


def prepare_message(operator: Operator, error: Exception) -> str:
    """TFLite's sentence for an operator that refuses its tensors, with the cause behind it."""
    return f"Node number {operator.index} ({operator.name}) failed to prepare: {error}"


def with_shape(spec: TensorSpec, shape: Shape | None) -> TensorSpec:
    """The spec with a propagated shape; None: known only at run time."""
    if shape is None:
        return dataclasses.replace(spec, is_dynamic=True)
    return dataclasses.replace(spec, shape=tuple(int(n) for n in shape), is_dynamic=False)


def _folded(
    operator: Operator, kernel: Kernel, inputs: Specs, outputs: list[TensorSpec]
) -> list[TensorSpec] | None:
    present = [spec for spec in inputs if spec is not None]
    if kernel.folds is Folds.NEVER or any(spec.is_variable for spec in present):
        return None
    if kernel.folds is Folds.CONSTANTS and any(spec.const is None for spec in present):
        return None
    before = sum(_nbytes(spec) for spec in present)
    if sum(_nbytes(spec) for spec in outputs) > max(_FOLD_BYTES, _FOLD_GROWTH * before):
        return None
    try:
        arrays = kernel(operator.options, inputs, tuple(outputs), *map(_stand_in, inputs))  # type: ignore[arg-type]
    except KERNEL_ERRORS:  # the same error meets the user at run time, if the operator ever runs
        return None
    return [
        dataclasses.replace(spec, const=array, shape=array.shape, is_dynamic=False)
        for spec, array in zip(outputs, arrays, strict=False)
    ]


def _stand_in(spec: TensorSpec | None) -> np.ndarray | None:
    if spec is None or spec.const is not None:
        return None if spec is None else spec.const
    return np.broadcast_to(np.zeros((), spec.dtype), spec.shape)


def _nbytes(spec: TensorSpec) -> int:
    return math.prod(spec.shape) * spec.dtype.itemsize
