"""Comparisons, logic and selection. Sources: kernels/{comparisons,logical,select}.cc."""

import numpy as np

from jaxdelegate.op_lowering.elementwise import reference_quantized as quantized
from jaxdelegate.op_lowering.spec import Shape, Specs
from jaxdelegate.reference.kernel import Array, Kernel, broadcast_shape, same_shape
from jaxdelegate.reference.pointwise import by_scale, elementwise

_8_BITS = "int8 uint8"

# strings are object arrays of bytes
equal = by_scale(elementwise(np.equal), quantized.equal, "int8 uint8 int16")
not_equal = by_scale(elementwise(np.not_equal), quantized.not_equal, "int8 uint8 int16")
less = by_scale(elementwise(np.less), quantized.less, _8_BITS)
less_equal = by_scale(elementwise(np.less_equal), quantized.less_equal, _8_BITS)
greater = by_scale(elementwise(np.greater), quantized.greater, _8_BITS)
greater_equal = by_scale(elementwise(np.greater_equal), quantized.greater_equal, _8_BITS)


def select(
    _options: object, _inputs: Specs, outputs: Specs, condition: Array, x: Array, y: Array
) -> tuple[Array]:
    """A condition of rank 1 selects whole rows."""
    if condition.ndim == 1 and x.ndim > 1:
        condition = condition.reshape(-1, *[1] * (x.ndim - 1))
    return (np.where(condition, x, y).reshape(outputs[0].shape),)


def select_shape(_options: object, inputs: Specs) -> tuple[Shape]:
    """The condition is a scalar, or has an element per row or per element."""
    condition, x, y = (spec.shape for spec in inputs[:3])
    single = all(np.prod(shape) == 1 for shape in (condition, x))
    if x != y or not (single or condition in (x, (), x[:1])):
        raise ValueError(f"SELECT: a {condition} condition for {x} and {y}")
    return (x,)


def select_v2(
    _options: object, _inputs: Specs, _outputs: Specs, condition: Array, x: Array, y: Array
) -> tuple[Array]:
    """All three broadcast."""
    return (np.where(condition, x, y),)


KERNELS = {
    "EQUAL": Kernel(equal, broadcast_shape),
    "NOT_EQUAL": Kernel(not_equal, broadcast_shape),
    "LESS": Kernel(less, broadcast_shape),
    "LESS_EQUAL": Kernel(less_equal, broadcast_shape),
    "GREATER": Kernel(greater, broadcast_shape),
    "GREATER_EQUAL": Kernel(greater_equal, broadcast_shape),
    "LOGICAL_AND": Kernel(elementwise(np.logical_and), broadcast_shape),
    "LOGICAL_OR": Kernel(elementwise(np.logical_or), broadcast_shape),
    "LOGICAL_NOT": Kernel(elementwise(np.logical_not), same_shape),
    "SELECT": Kernel(select, select_shape),
    "SELECT_V2": Kernel(select_v2, broadcast_shape),
}
