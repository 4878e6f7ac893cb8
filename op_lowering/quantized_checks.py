"""What integer kernels ask of the tensors that they compute on."""

import numpy as np

from jaxdelegate.op_lowering.options import ActivationFunctionType
from jaxdelegate.op_lowering.pointwise import quantization_of, why_not_one_scale, zero_point_of
from jaxdelegate.op_lowering.rule import first_reason
from jaxdelegate.op_lowering.spec import TensorSpec
from jaxdelegate.quant.params import activation_range


def why_not_per_tensor(spec: TensorSpec, dtypes: frozenset[np.dtype]) -> str | None:
    """A sentence unless `spec` is quantized in one of these dtypes, with one scale."""
    if spec.dtype not in dtypes:
        return f"{spec.name!r} is quantized {spec.dtype}, which this operator has no kernel for"
    return why_not_one_scale(spec)


def why_not_same(x: TensorSpec, y: TensorSpec, dtypes: frozenset[np.dtype]) -> str | None:
    """A sentence unless `x` and `y` hold one of these dtypes, the same, each with its scale."""
    same = f"{x.name!r} is {x.dtype} and {y.name!r} {y.dtype}" if x.dtype != y.dtype else None
    return first_reason(why_not_per_tensor(x, dtypes), why_not_per_tensor(y, dtypes), same)


def why_not_zero_point(spec: TensorSpec, wanted: int) -> str | None:
    """A sentence unless the zero point is the one that the kernel takes for granted."""
    found = zero_point_of(spec)
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
