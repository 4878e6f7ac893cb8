"""Rewrites a graph for one image into one for a batch: shapes, and constants that repeat them."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from jaxdelegate.errors import InterpreterError
from jaxdelegate.model.records import Operator, Subgraph, Tensor
from jaxdelegate.op_lowering.options import ReshapeOptions
from jaxdelegate.op_lowering.spec import Shape, TensorSpec
from jaxdelegate.passes.by_image import why_not_by_image
from jaxdelegate.passes.explicit_state import with_explicit_states
from jaxdelegate.passes.limits import Limits
from jaxdelegate.passes.propagation import declared_specs, propagate

_PROBE = 2  # images: a graph that is right for two is right for more
_ANY = -1  # in a shape signature


def batched_graph(
    subgraph: Subgraph, subgraphs: Sequence[Subgraph], size: int | None, limits: Limits
) -> Subgraph:
    """The graph for `size` images, each computed as by the original one; None: for any number.

    Inputs and outputs [1, ...] become [size, ...]. A RESHAPE to constant sizes gets others, in a
    new tensor; further constants stay.

    Raises:
        InterpreterError: this is not possible, or not known to be; says why.
    """
    for i in subgraph.inputs:
        if _for_one(subgraph.tensors[i])[:1] != (1,):
            raise InterpreterError(
                f"input {i} {subgraph.tensors[i].name!r} does not have the size 1 along its first "
                "axis"
            )
    count = _PROBE if size is None else size
    single = _specs(subgraph, 1, subgraphs, limits)
    reshaped = _with_reshapes(subgraph, single, _ANY if size is None else size)
    whole = _specs(reshaped, count, subgraphs, limits)
    reason = _why_not(reshaped, whole, single)
    if reason is not None:
        raise InterpreterError(reason)
    tensors = tuple(
        _resized(tensor, whole[i].shape, single[i].shape, size) if i < len(single) else tensor
        for i, tensor in enumerate(reshaped.tensors)
    )
    return dataclasses.replace(reshaped, tensors=tensors)


def _for_one(tensor: Tensor) -> Shape:
    """The shape for one image: a free first dimension is 1."""
    signature = tensor.shape_signature or tensor.shape
    return (1, *tensor.shape[1:]) if signature[:1] == (_ANY,) else tensor.shape


def _specs(
    subgraph: Subgraph, count: int, subgraphs: Sequence[Subgraph], limits: Limits
) -> list[TensorSpec]:
    """The specs of all tensors, and of states, for a number of images."""
    explicit = with_explicit_states(subgraph).subgraph
    specs = declared_specs(explicit)
    for i in subgraph.inputs:
        shape = (count, *_for_one(subgraph.tensors[i])[1:])
        specs[i] = dataclasses.replace(specs[i], shape=shape)
    return propagate(explicit.operators, specs, subgraphs, limits)


def _why_not(
    subgraph: Subgraph, whole: Sequence[TensorSpec], single: Sequence[TensorSpec]
) -> str | None:
    operators = with_explicit_states(subgraph).subgraph.operators
    for i in subgraph.outputs:
        if single[i].shape[:1] != (1,):
            return f"output {i} {single[i].name!r} is {list(single[i].shape)} for one image"
    return why_not_by_image(
        operators,
        dict(enumerate(whole)),
        subgraph.inputs,
        subgraph.outputs,
        single=dict(enumerate(single)),
    )


def _with_reshapes(subgraph: Subgraph, single: Sequence[TensorSpec], count: int) -> Subgraph:
    """The graph in which each RESHAPE of images to constant sizes is one of `count` images."""
    tensors, operators = list(subgraph.tensors), []
    for operator in subgraph.operators:
        output = single[operator.outputs[0]] if operator.name == "RESHAPE" else None
        if output is None or output.const is not None or not output.shape or output.is_dynamic:
            operators.append(operator)
        else:
            sizes = _Sizes(operator, output.shape, count, _has_free_sizes(subgraph))
            operators.append(_reshaped(operator, tensors, sizes))
    return dataclasses.replace(subgraph, tensors=tuple(tensors), operators=tuple(operators))


def _has_free_sizes(subgraph: Subgraph) -> bool:
    """Whether an input has a free dimension besides the first."""
    return any(_ANY in (subgraph.tensors[i].shape_signature or ())[1:] for i in subgraph.inputs)


@dataclasses.dataclass(frozen=True)
class _Sizes:
    """The sizes to which a RESHAPE of `count` images leads; -1: of any number."""

    operator: Operator
    single: Shape  # its result's for one image
    count: int
    has_free: bool

    def of(self, stored: Sequence[int]) -> tuple[int, ...]:
        """The constant sizes in place of those for one image."""
        if len(stored) != len(self.single) or stored[0] == _ANY:
            return tuple(stored)
        if self.count != _ANY:
            return (self.single[0] * self.count, *stored[1:])
        if _ANY in stored and self.has_free:
            raise InterpreterError(
                f"node {self.operator.index} (RESHAPE) would have two free sizes: give batched() a "
                "number"
            )
        return (_ANY, *self.single[1:])


def _reshaped(operator: Operator, tensors: list[Tensor], sizes: _Sizes) -> Operator:
    """The operator with other constant sizes, for which it adds a tensor."""
    options, inputs = operator.options, operator.inputs
    assert isinstance(options, ReshapeOptions)
    if options.new_shape:
        options = dataclasses.replace(options, new_shape=sizes.of(options.new_shape))
    shape = tensors[inputs[1]] if len(inputs) > 1 and inputs[1] >= 0 else None
    if shape is not None and shape.data is not None:
        new = sizes.of(shape.data.ravel().tolist())
        if new != tuple(shape.data.ravel().tolist()):
            stored = np.array(new, shape.dtype).view(np.uint8)
            tensors.append(dataclasses.replace(shape, index=len(tensors), stored=stored))
            inputs = (inputs[0], len(tensors) - 1)
    return dataclasses.replace(operator, options=options, inputs=inputs)


def _resized(tensor: Tensor, shape: Shape, single: Shape, size: int | None) -> Tensor:
    """The tensor with its shape for the batch, fixed or (size None) free along the first axis."""
    if tensor.stored is not None or shape == single:
        return tensor
    signature = tensor.shape_signature or shape
    rest = signature[1:] if len(signature) == len(shape) else shape[1:]
    first = _ANY if size is None else shape[0]
    free = (first, *rest)
    return dataclasses.replace(
        tensor,
        shape=single if size is None else shape,
        shape_signature=free if _ANY in free else None,
    )
