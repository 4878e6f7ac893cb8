"""Integer convolutions, plain, depthwise and transposed; quantized.py names the sources."""

import dataclasses
from collections.abc import Callable

import ml_dtypes
import numpy as np

from jaxdelegate.op_lowering.records.enums import TensorType
from jaxdelegate.op_lowering.records.protocols import Activated
from jaxdelegate.op_lowering.spec import Specs
from jaxdelegate.quant.params import tensor_zero_point
from jaxdelegate.quant.requantize import convolution_multipliers, product_multiplier
from jaxdelegate.reference.kernel import Array
from jaxdelegate.reference.products import accumulated, centered, requantized
from jaxdelegate.reference.quantization import quantization_of, require_symmetric

Sums = Callable[[Array, Array], Array]  # image and filter, padded with zeros -> [N, *out, O]


@dataclasses.dataclass(frozen=True, eq=False)
class Run:
    """What a kernel gets: specs and arrays of image, filter and bias, as the file stores them."""

    name: str
    o: Activated
    inputs: Specs
    outputs: Specs
    x: Array
    w: Array
    b: Array | None


def convolution(run: Run, sums: Sums) -> tuple[Array]:
    """`sums` of the integers less their zero points."""
    name, (source_spec, filter_spec, *_), (y, *_) = run.name, run.inputs, run.outputs
    is_uint8 = run.x.dtype == np.uint8
    dtypes = (np.uint8,) if is_uint8 else (np.int8, ml_dtypes.int4)
    source = quantization_of(name, source_spec, np.int8, np.uint8, np.int16)
    filters = quantization_of(name, filter_spec, *dtypes)
    target = quantization_of(name, y, run.x.dtype)
    require_symmetric(name, source_spec, y)
    # Signed filters are symmetric: their kernels read no zero point.
    zero = tensor_zero_point(filters) if is_uint8 else 0
    total = sums(centered(run.x, tensor_zero_point(source)), centered(run.w, zero))
    multiplier, shift = (
        product_multiplier(source, filters, target)
        if is_uint8
        else convolution_multipliers(source, filters, target, y.shape[-1])
    )
    bias_type = getattr(run.o, "quantized_bias_type", TensorType.FLOAT32)
    accumulator = accumulated(total.reshape(y.shape), source_spec, bias_type, run.b)
    activation = run.o.fused_activation_function
    return (requantized(accumulator, multiplier, shift, target, activation, y.dtype),)
