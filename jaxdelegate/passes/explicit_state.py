"""Makes hidden state explicit: random counters and resource variables, which have no tensor.

Each becomes a variable tensor after the file's tensors and an additional input of the operators
that use it. The partitioner and programs then treat it like the state of a recurrent operator: its
users run in order, and programs take it as an input and return its new value.
"""

import dataclasses
from collections.abc import Callable, Collection, Hashable, Mapping

import numpy as np

from jaxdelegate.model.records import Operator, Subgraph, Tensor
from jaxdelegate.op_lowering.dtypes import HANDLES, TENSOR_TYPES
from jaxdelegate.op_lowering.resources.reference import handle_key, one_handle
from jaxdelegate.op_lowering.spec import TensorSpec
from jaxdelegate.quant.params import Quantization
from jaxdelegate.reference.registry import KERNELS

Initial = Callable[[], np.ndarray]


def state_zero(spec: TensorSpec) -> int:
    """The initial value of a variable tensor: 0, or the zero point if it is int8.

    Source: Subgraph::ResetVariableTensors, core/subgraph.cc.
    """
    if spec.dtype != np.int8 or spec.quantization is None or not spec.quantization.zero_point.size:
        return 0
    return int(spec.quantization.zero_point[0])


@dataclasses.dataclass(frozen=True, eq=False)
class ExplicitStates:
    subgraph: Subgraph
    initial: Mapping[int, Initial]  # tensor -> its initial value, where that is not zeros
    resources: Mapping[int, Hashable]  # tensor -> its key in the model's store, shared by subgraphs
    read_first: Collection[int]  # tensors in `resources` that are read before they are assigned


def with_explicit_states(subgraph: Subgraph) -> ExplicitStates:
    """Append each hidden state to the tensors, and to the inputs of its operators."""
    builder = _Builder(subgraph)
    operators = tuple(builder.extended(operator) for operator in subgraph.operators)
    if len(builder.tensors) == len(subgraph.tensors):
        return ExplicitStates(subgraph, {}, {}, ())
    extended = dataclasses.replace(subgraph, tensors=tuple(builder.tensors), operators=operators)
    return ExplicitStates(extended, builder.initial, builder.resources, builder.read_first)


class _Builder:
    def __init__(self, subgraph: Subgraph) -> None:
        self.tensors: list[Tensor] = list(subgraph.tensors)
        self.initial: dict[int, Initial] = {}
        self.resources: dict[int, Hashable] = {}
        self.read_first: set[int] = set()
        self._variables: dict[Hashable, int] = {}
        self._handles = _known_handles(subgraph)
        self._users: dict[Hashable, list[Operator]] = {}
        for operator in subgraph.operators:
            if operator.inputs and operator.inputs[0] in self._handles:
                self._users.setdefault(self._handles[operator.inputs[0]], []).append(operator)

    def extended(self, operator: Operator) -> Operator:
        kernel = KERNELS.get(operator.name)
        if kernel is None:
            return operator
        added: tuple[int, ...] = ()
        if kernel.initial_state is not None:
            added = self._hidden(operator, kernel.initial_state)
        elif kernel.takes_handle and self._holds_value(operator):
            added = (self._variable(operator, self._handles[operator.inputs[0]]),)
        if not added:
            return operator
        return dataclasses.replace(operator, inputs=(*operator.inputs, *added))

    def _hidden(
        self, operator: Operator, first: Callable[..., tuple[np.ndarray, ...]]
    ) -> tuple[int, ...]:
        added = []
        for position, array in enumerate(first(operator.options)):
            name = f"{operator.name}.{operator.index}/state"
            index = self._add(name, array.shape, array.dtype)
            self.initial[index] = lambda p=position: first(operator.options)[p]  # type: ignore[misc]
            added.append(index)
        return tuple(added)

    def _variable(self, operator: Operator, key: Hashable) -> int:
        if key not in self._variables:
            value = self._value(operator)
            index = self._add(f"{value.name}/variable", value.shape, value.dtype, self._scale(key))
            self._variables[key] = index
            self.resources[index] = key
            if operator.outputs:
                self.read_first.add(index)
        return self._variables[key]

    def _holds_value(self, operator: Operator) -> bool:
        """Whether an operator reads or assigns a variable that is known beforehand."""
        values = operator.outputs or operator.inputs[1:2]
        if not values or values[0] < 0 or self.tensors[values[0]].dtype in HANDLES:
            return False
        return bool(operator.inputs) and operator.inputs[0] in self._handles

    def _value(self, operator: Operator) -> Tensor:
        """The tensor that an operator reads from a variable, or assigns to it."""
        return self.tensors[operator.outputs[0] if operator.outputs else operator.inputs[1]]

    def _scale(self, key: Hashable) -> Quantization | None:
        """A variable's quantization, if all its users agree."""
        users = filter(self._holds_value, self._users[key])
        values = [self._value(operator).quantization for operator in users]
        first = values[0]
        return first if all(_is_same(first, other) for other in values) else None

    def _add(
        self,
        name: str,
        shape: tuple[int, ...],
        dtype: np.dtype,
        quantization: Quantization | None = None,
    ) -> int:
        index = len(self.tensors)
        tensor_type = TENSOR_TYPES[np.dtype(dtype)]
        self.tensors.append(
            Tensor(
                index=index,
                name=name,
                shape=shape,
                shape_signature=None,
                type=tensor_type,
                buffer=0,
                stored=None,
                quantization=quantization,
                sparsity=None,
                is_variable=True,
                has_rank=True,
                variant_types=(),
                stored_shape=shape,
            )
        )
        return index


def _is_same(a: Quantization | None, b: Quantization | None) -> bool:
    if a is None or b is None:
        return a is b
    return np.array_equal(a.scale, b.scale) and np.array_equal(a.zero_point, b.zero_point)


def _known_handles(subgraph: Subgraph) -> dict[int, Hashable]:
    """Handles that an operator without inputs creates: their variables are known beforehand.

    Nothing has checked the operators yet: in a damaged file, a SUM may have no inputs and a handle
    as its output.
    """
    known: dict[int, Hashable] = {}
    for operator in subgraph.operators:
        kernel = KERNELS.get(operator.name)
        if kernel is None or kernel.shapes is not one_handle or kernel.most_inputs != 0:
            continue
        if operator.inputs or len(operator.outputs) != 1:
            continue
        if subgraph.tensors[operator.outputs[0]].dtype in HANDLES:
            (handle,) = kernel(operator.options, (), ())
            known[operator.outputs[0]] = handle_key(handle)
    return known
