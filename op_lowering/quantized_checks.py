"""What integer kernels ask of the tensors that they compute on. Knows no jax."""

import numpy as np

from jaxdelegate.op_lowering.options import ActivationFunctionType
from jaxdelegate.op_lowering.rule import first_reason
from jaxdelegate.op_lowering.spec import TensorSpec
from jaxdelegate.quant.params import (
    Quantization,
    activation_range,
    integer_range,
    tensor_scale,
    tensor_zero_point,
)

_INT16 = np.dtype(np.int16)


def why_not_per_tensor(spec: TensorSpec, dtypes: frozenset[np.dtype]) -> str | None:
    """A sentence unless `spec` holds one of these integer dtypes, with one scale above zero."""
    if spec.dtype not in dtypes:
        return f"{spec.name!r} is quantized {spec.dtype}, which this operator has no kernel for"
    if spec.quantization is None or not spec.is_quantized:
        return f"{spec.name!r} is {spec.dtype}, and the quantized kernel needs its scale"
    return _why_not_one_scale(spec, spec.quantization)


def _why_not_one_scale(spec: TensorSpec, quantization: Quantization) -> str | None:
    if quantization.blockwise is not None:
        return f"{spec.name!r} is quantized in blocks, and the kernel takes one scale"
    if quantization.scale.size != 1 or quantization.zero_point.size > 1:
        return f"{spec.name!r} is quantized per channel, and the kernel takes one scale"
    scale, (low, high) = tensor_scale(quantization), integer_range(spec.dtype)
    if not 0 < scale < np.inf:
        return f"the scale of {spec.name!r} is {scale}"
    point = tensor_zero_point(quantization)
    return None if low <= point <= high else f"{point} is no zero point of {spec.dtype}"


def why_not_same(x: TensorSpec, y: TensorSpec, dtypes: frozenset[np.dtype]) -> str | None:
    """A sentence unless `x` and `y` hold one of these dtypes, the same, each with its scale."""
    same = f"{x.name!r} is {x.dtype} and {y.name!r} {y.dtype}" if x.dtype != y.dtype else None
    return first_reason(why_not_per_tensor(x, dtypes), why_not_per_tensor(y, dtypes), same)


def why_not_symmetric(*specs: TensorSpec) -> str | None:
    """A sentence if an int16 tensor has a zero point: the kernels take it for symmetric."""
    return first_reason(*(why_not_zero_point(s, 0) for s in specs if s.dtype == _INT16))


def why_not_zero_point(spec: TensorSpec, wanted: int) -> str | None:
    """A sentence unless the zero point is the one that the kernel takes for granted."""
    found = tensor_zero_point(quantization_of(spec))
    if found == wanted:
        return None
    return f"the zero point of {spec.name!r} is {found}, and the {spec.dtype} kernel wants {wanted}"


def why_not_activation_range(activation: ActivationFunctionType, y: TensorSpec) -> str | None:
    """A sentence if a bound of the fused activation is no integer of the output's scale."""
    try:
        activation_range(activation, quantization_of(y), y.dtype)
    except ValueError as error:
        return str(error)
    return None


def quantization_of(spec: TensorSpec) -> Quantization:
    """The scale and zero point of a tensor that a check above has let pass.

    Raises:
        ValueError: it has none.
    """
    if spec.quantization is None:
        raise ValueError(f"{spec.name!r} has no scale")
    return spec.quantization
