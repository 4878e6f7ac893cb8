"""Comparisons, logic and selection. Sources: kernels/{comparisons,logical,select}.cc."""

import numpy as np

from jaxdelegate.op_lowering.elementwise import reference_quantized as quantized
from jaxdelegate.op_lowering.spec import Shape, Specs
from jaxdelegate.reference.kernel import (
    Array,
    Kernel,
    Run,
    broadcast_shape,
    same_shape,
    without_specs,
)
from jaxdelegate.reference.pointwise import by_scale, elementwise

_8_BITS, _16_BITS = "int8 uint8", "int8 uint8 int16"


def _comparison(function: np.ufunc, integer: Run, takes: str) -> Kernel:
    return Kernel(by_scale(elementwise(function), integer, takes), broadcast_shape)


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


def select_v2(_options: object, condition: Array, x: Array, y: Array) -> Array:
    """All three broadcast."""
    return np.where(condition, x, y)


KERNELS = {
    # strings are object arrays of bytes
    "EQUAL": _comparison(np.equal, quantized.equal, _16_BITS),
    "NOT_EQUAL": _comparison(np.not_equal, quantized.not_equal, _16_BITS),
    "LESS": _comparison(np.less, quantized.less, _8_BITS),
    "LESS_EQUAL": _comparison(np.less_equal, quantized.less_equal, _8_BITS),
    "GREATER": _comparison(np.greater, quantized.greater, _8_BITS),
    "GREATER_EQUAL": _comparison(np.greater_equal, quantized.greater_equal, _8_BITS),
    "LOGICAL_AND": Kernel(elementwise(np.logical_and), broadcast_shape),
    "LOGICAL_OR": Kernel(elementwise(np.logical_or), broadcast_shape),
    "LOGICAL_NOT": Kernel(elementwise(np.logical_not), same_shape),
    "SELECT": Kernel(select, select_shape),
    "SELECT_V2": Kernel(without_specs(select_v2), broadcast_shape),
}
