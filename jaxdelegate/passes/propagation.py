"""Graph passes with the reference kernels: shapes from the current inputs, and constant folding.

Shapes declared in a file are a hint; what counts follows from the inputs' current shapes. dtypes
are binding.
"""

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from jaxdelegate.errors import InterpreterError
from jaxdelegate.model.records import Operator, Subgraph
from jaxdelegate.op_lowering.spec import Shape, Specs, TensorSpec
from jaxdelegate.reference.builtin.sparse import densified
from jaxdelegate.reference.kernel import Folds, Infer, Kernel
from jaxdelegate.reference.registry import KERNELS

# What a kernel may raise on a graph that is wrong, as opposed to a bug of ours.
# Memory that there is not is the graph's doing, too: it asked for more than `check_sizes` sees.
KERNEL_ERRORS = (
    ValueError,
    TypeError,
    IndexError,
    AttributeError,
    ArithmeticError,
    LookupError,
    MemoryError,
)

# Folding must not turn a small file into a large one (FILL, TILE, BROADCAST_TO of constants).
_FOLD_BYTES = 1 << 20
_FOLD_GROWTH = 4  # int8 weights -> float32
_FOLD_TOTAL = 1 << 26  # of a graph, beyond what grows out of its stored constants


def is_constant(outputs: Specs) -> bool:
    """Whether an operator with these outputs has nothing left to compute."""
    return bool(outputs) and all(spec is None or spec.const is not None for spec in outputs)


def gather(specs: Sequence[TensorSpec] | Mapping[int, TensorSpec], indices: Iterable[int]) -> Specs:
    """The specs of an operator's tensors; None stands for an absent optional input."""
    return tuple(specs[i] if i >= 0 else None for i in indices)  # type: ignore[misc]


def propagate(
    operators: Iterable[Operator],
    specs: Sequence[TensorSpec],
    subgraphs: Sequence[Subgraph] = (),
) -> list[TensorSpec]:
    """Specs of all tensors after shape propagation and constant folding, in operator order.

    Args:
        operators: in execution order.
        specs: by tensor index; inputs carry their current shapes, constants their values.
        subgraphs: of the model, for operators that call them.

    Returns:
        New specs: `shape` and `is_dynamic` follow the inputs, `const` holds what is known.

    Raises:
        InterpreterError: an operator refuses the shapes; names the node.
    """
    result = list(specs)
    budget = _FoldBudget(specs)
    for operator in operators:
        kernel = KERNELS.get(operator.name)
        if kernel is None:  # an unknown custom operator: the host says so when it has to run it
            continue
        inputs = gather(result, operator.inputs)
        declared = gather(result, operator.outputs)
        outputs = _outputs(operator, kernel, inputs, declared, subgraphs, budget)
        for index, spec in zip(operator.outputs, outputs, strict=False):
            if index >= 0:
                result[index] = spec
    return result


class _FoldBudget:
    """How many bytes of constants folding may still add to a graph."""

    def __init__(self, specs: Sequence[TensorSpec]) -> None:
        self._specs = specs
        self._left = _FOLD_TOTAL
        self._counts_stored = False

    def take(self, nbytes: int) -> bool:
        """Whether there are so many left; they are gone then."""
        if nbytes > self._left and not self._counts_stored:
            self._counts_stored = True
            self._left += _FOLD_GROWTH * self._stored()
        if nbytes > self._left:
            return False
        self._left -= nbytes
        return True

    def _stored(self) -> int:
        """What the constants take; tensors may share a buffer."""
        arrays = (spec.const for spec in self._specs if spec.const is not None)
        return sum({a.__array_interface__["data"][0]: a.nbytes for a in arrays}.values())


def declared_specs(subgraph: Subgraph) -> list[TensorSpec]:
    """The specs of a subgraph's tensors as its file has them, sparse constants unfolded."""
    return [unfolded(tensor.spec()) for tensor in subgraph.tensors]


def unfolded(spec: TensorSpec) -> TensorSpec:
    """The spec of a sparse constant as the dense one that it stands for; others as they are."""
    if spec.const is None or spec.sparsity is None:
        return spec
    return dataclasses.replace(spec, const=densified(spec), sparsity=None)


def subgraph_specs(
    subgraph: Subgraph, inputs: Specs | None, subgraphs: Sequence[Subgraph]
) -> list[TensorSpec]:
    """Specs of a called subgraph's tensors, for inputs like these; None: as declared.

    Raises:
        InterpreterError: the inputs do not fit, or an operator refuses the shapes.
    """
    specs = declared_specs(subgraph)
    given = gather(specs, subgraph.inputs) if inputs is None else inputs
    if len(given) != len(subgraph.inputs):
        raise InterpreterError(
            f"subgraph {subgraph.index} has {len(subgraph.inputs)} inputs, got {len(given)}"
        )
    for index, spec in zip(subgraph.inputs, given, strict=True):
        if spec.dtype != specs[index].dtype:
            raise InterpreterError(
                f"subgraph {subgraph.index}: input {specs[index].name!r} wants "
                f"{specs[index].dtype}, got {spec.dtype}"
            )
        specs[index] = dataclasses.replace(
            specs[index], shape=spec.shape, is_dynamic=spec.is_dynamic, const=spec.const
        )
    return propagate(subgraph.operators, specs, subgraphs)


def _infer(subgraphs: Sequence[Subgraph]) -> Infer:
    def infer(index: int, inputs: Specs) -> Specs:
        return gather(subgraph_specs(subgraphs[index], inputs, subgraphs), subgraphs[index].outputs)

    return infer


def known_shapes(
    kernel: Kernel, options: Any, inputs: Specs, outputs: Specs, subgraphs: Sequence[Subgraph] = ()
) -> tuple[Shape | None, ...]:
    """The shapes of an operator's outputs; None for those that depend on data."""
    if kernel.inferred_shapes is not None:
        return kernel.inferred_shapes(_infer(subgraphs), options, inputs, outputs)
    return kernel.shapes(options, inputs)


def _outputs(
    operator: Operator,
    kernel: Kernel,
    inputs: Specs,
    declared: Specs,
    subgraphs: Sequence[Subgraph],
    budget: _FoldBudget,
) -> Specs:
    is_dynamic = any(spec is not None and spec.is_dynamic for spec in inputs)
    try:
        if kernel.most_inputs is not None and len(inputs) > kernel.most_inputs:
            raise ValueError(f"it has {kernel.most_inputs} inputs, not {len(inputs)}")
        if not is_dynamic:
            shapes = known_shapes(kernel, operator.options, inputs, declared, subgraphs)
        elif kernel.settled is not None:
            shapes = kernel.settled(operator.options, inputs)
        else:
            shapes = (None,) * len(declared)
        if shapes and len(declared) > len(shapes):
            raise ValueError(f"it has {len(shapes)} outputs, not {len(declared)}")
    except (*KERNEL_ERRORS, InterpreterError) as error:
        raise InterpreterError(prepare_message(operator, error)) from error
    outputs = tuple(
        spec and with_shape(spec, shape) for spec, shape in zip(declared, shapes, strict=False)
    )
    return outputs if is_dynamic else _folded(operator, kernel, inputs, outputs, budget) or outputs


def prepare_message(operator: Operator, error: Exception) -> str:
    """TFLite's message for an operator that refuses its tensors, with the cause after it."""
    return f"Node number {operator.index} ({operator.name}) failed to prepare: {error}"


def with_shape(spec: TensorSpec, shape: Shape | None) -> TensorSpec:
    """The spec with a propagated shape; None: known only at run time."""
    if shape is None:
        return dataclasses.replace(spec, is_dynamic=True)
    return dataclasses.replace(spec, shape=tuple(int(n) for n in shape), is_dynamic=False)


def _folded(
    operator: Operator, kernel: Kernel, inputs: Specs, outputs: Specs, budget: _FoldBudget
) -> Specs | None:
    present = [spec for spec in inputs if spec is not None]
    if kernel.folds is Folds.NEVER or kernel.calls or any(spec.is_variable for spec in present):
        return None
    if kernel.folds is Folds.CONSTANTS and any(spec.const is None for spec in present):
        return None
    before = sum(_nbytes(spec) for spec in present)
    after = sum(_nbytes(spec) for spec in outputs if spec is not None)
    if after > max(_FOLD_BYTES, _FOLD_GROWTH * before) or not budget.take(after):
        return None
    try:
        arrays = kernel(operator.options, inputs, outputs, *map(_stand_in, inputs))  # type: ignore[arg-type]
    except KERNEL_ERRORS:  # the same error meets the user at run time, if the operator ever runs
        return None
    return tuple(
        spec and dataclasses.replace(spec, const=array, shape=array.shape, is_dynamic=False)
        for spec, array in zip(outputs, arrays, strict=False)
    )


def _stand_in(spec: TensorSpec | None) -> np.ndarray | None:
    if spec is None or spec.const is not None:
        return None if spec is None else spec.const
    return np.broadcast_to(np.zeros((), spec.dtype), spec.shape)


def _nbytes(spec: TensorSpec) -> int:
    return math.prod(spec.shape) * spec.dtype.itemsize
