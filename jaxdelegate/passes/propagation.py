"""Graph passes with the reference kernels: shapes from the current inputs, and constant folding.

Shapes declared in a file are hints: the inputs' current shapes decide. dtypes are binding.
"""

import dataclasses
import math
import weakref
from collections.abc import Callable, Hashable, Iterable, Mapping, MutableMapping, Sequence
from typing import Any, TypeVar, cast

import numpy as np

from jaxdelegate.errors import InterpreterError
from jaxdelegate.model.records import Operator, Subgraph
from jaxdelegate.op_lowering.options import as_read, record_of
from jaxdelegate.op_lowering.sparse.reference import densified
from jaxdelegate.op_lowering.spec import Shape, Specs, TensorSpec
from jaxdelegate.passes.limits import Limits, Row, spec_bytes
from jaxdelegate.passes.tensor_lists import list_update, settled_lists, with_length
from jaxdelegate.reference.kernel import Folds, Infer, Kernel
from jaxdelegate.reference.registry import KERNELS
from jaxdelegate.text import printable

T = TypeVar("T")

# Errors that a kernel may raise because a graph is wrong or too large.
KERNEL_ERRORS = (
    ValueError,
    TypeError,
    IndexError,
    AttributeError,
    ArithmeticError,
    LookupError,
    MemoryError,
)


def kernel_errors(operator: Operator) -> tuple[type[Exception], ...]:
    """Errors by which an operator's kernel rejects its tensors; a user's kernel may raise any."""
    return (Exception,) if operator.custom else KERNEL_ERRORS


# Folding must not turn a small file into a large one (FILL, TILE, BROADCAST_TO of constants).
_FOLD_BYTES = 1 << 20
_FOLD_GROWTH = 4  # int8 weights -> float32
# Limits for all results that are folded in one graph: a number of bytes, plus a multiple of the
# graph's constants.
_FOLDED_BYTES = 1 << 28
_FOLDED_GROWTH = 16


# Each call of a subgraph starts from its declared specs.
_DECLARED: weakref.WeakKeyDictionary[Subgraph, tuple[TensorSpec, ...]]
_DECLARED = weakref.WeakKeyDictionary()
# By operator: its kernel, the constants that it read, and its results.
_COMPUTED: MutableMapping[Operator, tuple[Kernel, Sequence[Any], Sequence[np.ndarray]]] = (
    weakref.WeakKeyDictionary()
)
_SHARED_BYTES = 1 << 16
# The cache of calls holds results about this many tensors; each entry counts as at least 64.
_MAX_KNOWN, _ENTRY = 1 << 20, 64


def is_constant(outputs: Specs) -> bool:
    """An operator with such outputs does not need to run."""
    return bool(outputs) and all(spec is None or spec.const is not None for spec in outputs)


def gather(specs: Sequence[TensorSpec] | Mapping[int, TensorSpec], indices: Iterable[int]) -> Specs:
    """The specs of an operator's tensors; None for an absent optional input."""
    return tuple(specs[i] if i >= 0 else None for i in indices)  # type: ignore[misc]


def propagate(
    operators: Iterable[Operator],
    specs: Sequence[TensorSpec],
    subgraphs: Sequence[Subgraph] = (),
    limits: Limits | None = None,
) -> list[TensorSpec]:
    """Specs of all tensors after shape propagation and constant folding, in operator order.

    Inputs have their current shapes in `specs`, constants their values. In the result, `shape` and
    `is_dynamic` follow the inputs, and `const` has values that are known. Writing one element of a
    tensor list keeps the list's shape, although the sizes of the slices around the element depend
    on data: see `passes/tensor_lists`. `subgraphs` are the model's, whose tensors have the same
    limits. An InterpreterError if an operator rejects the shapes, or tensors exceed the limits,
    before anything is allocated for them.
    """
    result, producers = list(specs), dict[int, Operator]()
    constants = sum(spec_bytes(spec) for spec in specs if spec.const is not None)
    room = _FOLDED_BYTES + _FOLDED_GROWTH * constants
    for stored in operators:
        try:
            operator = list_update(stored, producers, result) or stored
        except ValueError as error:
            raise InterpreterError(prepare_message(stored, error)) from error
        producers.update((i, stored) for i in stored.outputs if i >= 0)
        kernel = KERNELS.get(operator.name)
        if kernel is None:  # an unknown custom operator: an error only if the host has to run it
            continue
        for index, spec in _settled_lists(operator, result, subgraphs, limits).items():
            result[index] = spec
        inputs = gather(result, operator.inputs)
        declared = gather(result, operator.outputs)
        outputs = _outputs(operator, kernel, inputs, declared, subgraphs, limits)
        outputs = with_length(operator, inputs, outputs)
        results = [(i, s) for i, s in zip(operator.outputs, outputs, strict=False) if i >= 0]
        if limits is not None:
            limits.check_sizes(results)
        folded = _folded(operator, kernel, inputs, outputs, room)
        if folded is not None:
            room -= sum(spec_bytes(spec) for spec in folded if spec is not None)
            results = [(i, s) for i, s in zip(operator.outputs, folded, strict=False) if i >= 0]
        for index, spec in results:
            result[index] = spec
    return result


def declared_specs(subgraph: Subgraph) -> list[TensorSpec]:
    """The specs of a subgraph's tensors as declared in the file, with sparse constants as dense."""
    specs = _DECLARED.get(subgraph)
    if specs is None:
        specs = _DECLARED[subgraph] = tuple(unfolded(tensor.spec()) for tensor in subgraph.tensors)
    return list(specs)


def unfolded(spec: TensorSpec) -> TensorSpec:
    """The spec of a sparse constant as a dense one; other specs unchanged."""
    if spec.const is None or spec.sparsity is None:
        return spec
    return dataclasses.replace(spec, const=densified(spec), sparsity=None)


class Subgraphs(tuple[Subgraph, ...]):
    """Caches what was computed for calls of a model's subgraphs.

    Calls nest, and each level analyzes all levels below it: equal calls are analyzed once.
    """

    _known: dict[Hashable, tuple[Any, Any]]
    _size = 0

    def known(self, key: Hashable, held: Any, size: int, find: Callable[[], T]) -> T:
        """The result of `find`, computed once for equal keys; errors are not cached.

        The key is everything the result depends on; it may contain the `id` of objects in `held`,
        which stay alive with the cache entry. `size` is the number of tensors in the result.
        """
        known = self.__dict__.setdefault("_known", {})
        if key in known:
            return cast("T", known[key][0])
        result = find()
        if self._size > _MAX_KNOWN:
            known = self._known = {}
            self._size = 0
        known[key] = result, held
        self._size += size + _ENTRY
        return result


def call_key(inputs: Specs | None) -> Hashable:
    """A key of all that a call of a subgraph depends on; constants by their `id`."""
    if inputs is None:
        return None
    return tuple(
        spec
        and (spec.shape, spec.dtype, spec.is_dynamic, spec.const is not None and id(spec.const))
        for spec in inputs
    )


def subgraph_specs(
    subgraph: Subgraph,
    inputs: Specs | None,
    subgraphs: Sequence[Subgraph],
    limits: Limits | None = None,
) -> list[TensorSpec]:
    """Specs of a called subgraph's tensors for these inputs; None: as declared."""

    def find() -> list[TensorSpec]:
        return _called(subgraph, inputs, subgraphs, limits)

    if not isinstance(subgraphs, Subgraphs):
        return find()
    key = id(subgraph), limits, call_key(inputs)
    held, size = (subgraph, inputs), len(subgraph.tensors)
    return list(subgraphs.known(key, held, size, find))


def _called(
    subgraph: Subgraph,
    inputs: Specs | None,
    subgraphs: Sequence[Subgraph],
    limits: Limits | None,
) -> list[TensorSpec]:
    specs = declared_specs(subgraph)
    passed = gather(specs, subgraph.inputs) if inputs is None else inputs
    if len(passed) != len(subgraph.inputs):
        raise InterpreterError(
            f"subgraph {subgraph.index} has {len(subgraph.inputs)} inputs, got {len(passed)}"
        )
    for index, spec in zip(subgraph.inputs, passed, strict=True):
        if spec.dtype != specs[index].dtype:
            raise InterpreterError(
                f"subgraph {subgraph.index}: input {specs[index].name!r}: expected "
                f"{specs[index].dtype}, got {spec.dtype}"
            )
        specs[index] = dataclasses.replace(
            specs[index], shape=spec.shape, is_dynamic=spec.is_dynamic, const=spec.const
        )
    propagated = propagate(subgraph.operators, specs, subgraphs, limits)
    if limits is not None:
        steps = reads_and_writes(subgraph.operators)
        limits.check_graph(steps, propagated, (*subgraph.inputs, *subgraph.outputs))
    return propagated


def reads_and_writes(operators: Iterable[Operator]) -> list[Row]:
    """The tensors that each operator reads and writes, for `Limits.check_graph`."""
    return [
        ([i for i in op.inputs if i >= 0], [i for i in op.outputs if i >= 0]) for op in operators
    ]


def _infer(subgraphs: Sequence[Subgraph], limits: Limits | None) -> Infer:
    def infer(index: int, inputs: Specs) -> Specs:
        callee = subgraphs[index]
        return gather(subgraph_specs(callee, inputs, subgraphs, limits), callee.outputs)

    return infer


def _settled_lists(
    operator: Operator,
    specs: Sequence[TensorSpec],
    subgraphs: Sequence[Subgraph],
    limits: Limits | None,
) -> dict[int, TensorSpec]:
    """Lists of TensorFlow's operators whose elements' shape this operator tells."""

    def callee_inputs(index: int, inputs: Specs) -> Specs:
        callee = subgraphs[index]
        passed = inputs[max(len(inputs) - len(callee.inputs), 0) :]
        return gather(subgraph_specs(callee, passed, subgraphs, limits), callee.inputs)

    refusals: tuple[type[Exception], ...] = (*kernel_errors(operator), InterpreterError)
    try:
        return settled_lists(operator, gather(specs, operator.inputs), callee_inputs)
    except refusals as error:
        raise InterpreterError(prepare_message(operator, error)) from error


def known_shapes(
    kernel: Kernel,
    options: Any,
    inputs: Specs,
    outputs: Specs,
    subgraphs: Sequence[Subgraph] = (),
    limits: Limits | None = None,
) -> tuple[Shape | None, ...]:
    """The shapes of an operator's outputs; None for those that depend on data."""
    if kernel.inferred_shapes is not None:
        return kernel.inferred_shapes(_infer(subgraphs, limits), options, inputs, outputs)
    return kernel.shapes(options, inputs)


def _outputs(
    operator: Operator,
    kernel: Kernel,
    inputs: Specs,
    declared: Specs,
    subgraphs: Sequence[Subgraph],
    limits: Limits | None,
) -> Specs:
    """The outputs with their shapes, before folding."""
    is_dynamic = any(spec is not None and spec.is_dynamic for spec in inputs)
    refusals: tuple[type[Exception], ...] = (*kernel_errors(operator), InterpreterError)
    try:
        if kernel.most_inputs is not None and len(inputs) > kernel.most_inputs:
            raise ValueError(f"it has {kernel.most_inputs} inputs, not {len(inputs)}")
        if len(inputs) < kernel.least_inputs:
            raise ValueError(f"it needs {kernel.least_inputs} inputs, not {len(inputs)}")
        if not is_dynamic:
            shapes = known_shapes(kernel, operator.options, inputs, declared, subgraphs, limits)
        elif kernel.settled is not None:
            shapes = kernel.settled(operator.options, inputs)
        else:
            shapes = (None,) * len(declared)
        if shapes and len(declared) != len(shapes):
            raise ValueError(f"it has {len(shapes)} outputs, not {len(declared)}")
        if any(min(shape, default=0) < 0 for shape in shapes if shape is not None):
            raise ValueError(f"its results would have the shapes {list(shapes)}")
    except refusals as error:
        raise InterpreterError(prepare_message(operator, error)) from error
    return tuple(
        spec and with_shape(spec, shape) for spec, shape in zip(declared, shapes, strict=False)
    )


def prepare_message(operator: Operator, error: Exception) -> str:
    """TFLite's message for an operator that rejects its tensors, followed by the cause."""
    return f"Node number {operator.index} ({printable(operator.name)}) failed to prepare: {error}"


def with_shape(spec: TensorSpec, shape: Shape | None) -> TensorSpec:
    """The spec with a propagated shape; None: the shape is known only at run time."""
    if shape is None:
        return dataclasses.replace(spec, is_dynamic=True)
    return dataclasses.replace(spec, shape=tuple(int(n) for n in shape), is_dynamic=False)


def _folded(
    operator: Operator, kernel: Kernel, inputs: Specs, outputs: Specs, room: int
) -> Specs | None:
    """The outputs with their values; None if they are not known, or too large."""
    present = [spec for spec in inputs if spec is not None]
    if any(spec.is_dynamic for spec in present):
        return None
    if kernel.folds is Folds.NEVER or kernel.calls or any(spec.is_variable for spec in present):
        return None
    if kernel.folds is Folds.CONSTANTS and any(spec.const is None for spec in present):
        return None
    before = sum(_nbytes(spec) for spec in present)
    after = sum(_nbytes(spec) for spec in outputs if spec is not None)
    if after > min(room, max(_FOLD_BYTES, _FOLD_GROWTH * before)):
        return None
    try:
        arrays = _computed(operator, kernel, inputs, outputs)
    except kernel_errors(operator):  # the operator raises the same error if it ever runs
        return None
    return tuple(
        spec and dataclasses.replace(spec, const=array, shape=array.shape, is_dynamic=False)
        for spec, array in zip(outputs, arrays, strict=False)
    )


def _computed(
    operator: Operator, kernel: Kernel, inputs: Specs, outputs: Specs
) -> Sequence[np.ndarray]:
    """The operator's results. Large ones are cached for all plans of an open model."""
    consts = tuple(None if spec is None else spec.const for spec in inputs)
    known = _COMPUTED.get(operator)
    if (
        known is not None
        and known[0] is kernel
        and all(a is b for a, b in zip(known[1], consts, strict=True))
    ):
        return known[2]
    read = as_read(record_of(operator.name), inputs, outputs)
    operands = [_stand_in(spec, as_it_is=kernel.takes_packed) for spec in inputs]
    arrays = kernel(operator.options, *read, *operands)  # type: ignore[arg-type]
    check_dtypes(outputs, arrays)
    is_complete = all(s is None or s.const is not None for s in inputs)
    if is_complete and sum(array.nbytes for array in arrays) >= _SHARED_BYTES:
        _COMPUTED[operator] = kernel, consts, arrays
    return arrays


def check_dtypes(outputs: Specs, results: Iterable[np.ndarray]) -> None:
    """Check that results have the dtypes that readers of the tensors expect."""
    for spec, array in zip(outputs, results, strict=False):
        if spec is not None and array.dtype != spec.dtype:
            raise ValueError(
                f"{spec.name!r} is {spec.dtype}, but the operator yields {array.dtype}"
            )


def _stand_in(spec: TensorSpec | None, *, as_it_is: bool) -> np.ndarray | None:
    if spec is None:
        return None
    if spec.const is not None:
        return spec.const if as_it_is else np.asarray(spec.const)
    return np.broadcast_to(np.zeros((), spec.dtype), spec.shape)


def _nbytes(spec: TensorSpec) -> int:
    return math.prod(spec.shape) * spec.dtype.itemsize
