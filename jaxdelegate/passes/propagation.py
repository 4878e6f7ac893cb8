"""Graph passes with the reference kernels: shapes from the current inputs, and constant folding.

Shapes declared in a file are a hint; what counts follows from the inputs' current shapes. dtypes
are binding.
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
from jaxdelegate.passes.tensor_lists import list_update
from jaxdelegate.reference.kernel import Folds, Infer, Kernel
from jaxdelegate.reference.registry import KERNELS
from jaxdelegate.text import printable

T = TypeVar("T")

# What a kernel may raise on a graph that is wrong, or too large, as opposed to a bug of ours.
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
    """What its kernel raises that refuses its tensors; one of the user's own may raise anything."""
    return (Exception,) if operator.custom else KERNEL_ERRORS


# Folding must not turn a small file into a large one (FILL, TILE, BROADCAST_TO of constants).
_FOLD_BYTES = 1 << 20
_FOLD_GROWTH = 4  # int8 weights -> float32
# Nor may a chain of them, or many: all that one graph folds, besides so many times its constants.
_FOLDED_BYTES = 1 << 28
_FOLDED_GROWTH = 16


# Every call of a subgraph begins with these.
_DECLARED: weakref.WeakKeyDictionary[Subgraph, tuple[TensorSpec, ...]]
_DECLARED = weakref.WeakKeyDictionary()
# By operator: its kernel, the constants that it read, and its results.
_COMPUTED: MutableMapping[Operator, tuple[Kernel, Sequence[Any], Sequence[np.ndarray]]] = (
    weakref.WeakKeyDictionary()
)
_SHARED_BYTES = 1 << 16
_MOST_KNOWN, _ENTRY = 1 << 20, 64  # tensors of calls that are remembered; an answer counts as some


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
    limits: Limits | None = None,
) -> list[TensorSpec]:
    """Specs of all tensors after shape propagation and constant folding, in operator order.

    The write of one element of a tensor list keeps the list's shape, although the sizes of the
    slices around the element depend on data: see `passes/tensor_lists`.

    Args:
        operators: in execution order.
        specs: by tensor index; inputs carry their current shapes, constants their values.
        subgraphs: of the model, for operators that call them.
        limits: what tensors, those of called subgraphs too, may take; None: whatever they take.

    Returns:
        New specs: `shape` and `is_dynamic` follow the inputs, `const` holds what is known.

    Raises:
        InterpreterError: an operator refuses the shapes; names the node. Or tensors take more than
            `limits` allow: before anything is allocated for them.
    """
    result, makers = list(specs), dict[int, Operator]()
    constants = sum(spec_bytes(spec) for spec in specs if spec.const is not None)
    room = _FOLDED_BYTES + _FOLDED_GROWTH * constants
    for stored in operators:
        try:
            operator = list_update(stored, makers, result) or stored
        except ValueError as error:
            raise InterpreterError(prepare_message(stored, error)) from error
        makers.update((i, stored) for i in stored.outputs if i >= 0)
        kernel = KERNELS.get(operator.name)
        if kernel is None:  # an unknown custom operator: the host says so when it has to run it
            continue
        inputs = gather(result, operator.inputs)
        declared = gather(result, operator.outputs)
        outputs = _outputs(operator, kernel, inputs, declared, subgraphs, limits)
        made = [(i, s) for i, s in zip(operator.outputs, outputs, strict=False) if i >= 0]
        if limits is not None:
            limits.check_sizes(made)
        folded = _folded(operator, kernel, inputs, outputs, room)
        if folded is not None:
            room -= sum(spec_bytes(spec) for spec in folded if spec is not None)
            made = [(i, s) for i, s in zip(operator.outputs, folded, strict=False) if i >= 0]
        for index, spec in made:
            result[index] = spec
    return result


def declared_specs(subgraph: Subgraph) -> list[TensorSpec]:
    """The specs of a subgraph's tensors as its file has them, sparse constants unfolded."""
    found = _DECLARED.get(subgraph)
    if found is None:
        found = _DECLARED[subgraph] = tuple(unfolded(tensor.spec()) for tensor in subgraph.tensors)
    return list(found)


def unfolded(spec: TensorSpec) -> TensorSpec:
    """The spec of a sparse constant as the dense one that it stands for; others as they are."""
    if spec.const is None or spec.sparsity is None:
        return spec
    return dataclasses.replace(spec, const=densified(spec), sparsity=None)


class Subgraphs(tuple[Subgraph, ...]):
    """A model's subgraphs, and what is known of calls of them.

    Calls nest, and each level asks about all below it: what is the same is found out once.
    """

    _known: dict[Hashable, tuple[Any, Any]]
    _size = 0

    def known(self, key: Hashable, held: Any, size: int, find: Callable[[], T]) -> T:
        """What `find` answers; it is not called again for an equal key.

        Args:
            key: of what it depends on; may have the `id` of what `held` keeps alive.
            held: whatever lives as long as the answer is known.
            size: how many tensors the answer tells of.
            find: what it raises is not kept.
        """
        known = self.__dict__.setdefault("_known", {})
        if key in known:
            return cast("T", known[key][0])
        answer = find()
        if self._size > _MOST_KNOWN:
            known = self._known = {}
            self._size = 0
        known[key] = answer, held
        self._size += size + _ENTRY
        return answer


def call_key(inputs: Specs | None) -> Hashable:
    """What a call of a subgraph depends on; has the `id` of constants."""
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
    """Specs of a called subgraph's tensors, for inputs like these; None: as declared.

    Raises:
        InterpreterError: the inputs do not fit, an operator refuses the shapes, or the tensors
            take more than `limits` allow.
    """

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
    found = propagate(subgraph.operators, specs, subgraphs, limits)
    if limits is not None:
        steps = reads_and_writes(subgraph.operators)
        limits.check_graph(steps, found, (*subgraph.inputs, *subgraph.outputs))
    return found


def reads_and_writes(operators: Iterable[Operator]) -> list[Row]:
    """What each operator reads and writes, for `Limits.check_graph`."""
    return [
        ([i for i in op.inputs if i >= 0], [i for i in op.outputs if i >= 0]) for op in operators
    ]


def _infer(subgraphs: Sequence[Subgraph], limits: Limits | None) -> Infer:
    def infer(index: int, inputs: Specs) -> Specs:
        callee = subgraphs[index]
        return gather(subgraph_specs(callee, inputs, subgraphs, limits), callee.outputs)

    return infer


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
    """The outputs with their shapes, not folded."""
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
    """TFLite's message for an operator that refuses its tensors, with the cause after it."""
    return f"Node number {operator.index} ({printable(operator.name)}) failed to prepare: {error}"


def with_shape(spec: TensorSpec, shape: Shape | None) -> TensorSpec:
    """The spec with a propagated shape; None: known only at run time."""
    if shape is None:
        return dataclasses.replace(spec, is_dynamic=True)
    return dataclasses.replace(spec, shape=tuple(int(n) for n in shape), is_dynamic=False)


def _folded(
    operator: Operator, kernel: Kernel, inputs: Specs, outputs: Specs, room: int
) -> Specs | None:
    """The outputs with their values; None: they are not known, or take too much."""
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
    """The operator's results. Large ones are computed once for all plans of an open model."""
    consts = tuple(None if spec is None else spec.const for spec in inputs)
    known = _COMPUTED.get(operator)
    if known is not None and known[0] is kernel and _are_same(known[1], consts):
        return known[2]
    read = as_read(record_of(operator.name), inputs, outputs)
    arrays = kernel(operator.options, *read, *map(_stand_in, inputs))  # type: ignore[arg-type]
    check_dtypes(outputs, arrays)
    is_complete = all(s is None or s.const is not None for s in inputs)
    if is_complete and sum(array.nbytes for array in arrays) >= _SHARED_BYTES:
        _COMPUTED[operator] = kernel, consts, arrays
    return arrays


def _are_same(arrays: Sequence[Any], others: Sequence[Any]) -> bool:
    return len(arrays) == len(others) and all(a is b for a, b in zip(arrays, others, strict=True))


def check_dtypes(outputs: Specs, results: Iterable[np.ndarray]) -> None:
    """Refuse results that whoever reads the tensors would take for something else.

    Raises:
        ValueError: a kernel that hands its input's dtype on (RESHAPE) found another one declared.
    """
    for spec, array in zip(outputs, results, strict=False):
        if spec is not None and array.dtype != spec.dtype:
            raise ValueError(
                f"{spec.name!r} is {spec.dtype}, but the operator yields {array.dtype}"
            )


def _stand_in(spec: TensorSpec | None) -> np.ndarray | None:
    if spec is None or spec.const is not None:
        return None if spec is None else spec.const
    return np.broadcast_to(np.zeros((), spec.dtype), spec.shape)


def _nbytes(spec: TensorSpec) -> int:
    return math.prod(spec.shape) * spec.dtype.itemsize
