"""Integer kernels of CONV_2D, DEPTHWISE_CONV_2D and TRANSPOSE_CONV.

Sources: kernels/internal/reference/conv.h, depthwiseconv_uint8.h and transpose_conv.h for uint8,
the headers of integer_ops/ for int8, and for int16 with filters of int8.
"""

import jax
import numpy as np

from jaxdelegate.op_lowering.common.basics import Array
from jaxdelegate.op_lowering.common.packed_weights import WeightStorage
from jaxdelegate.op_lowering.common.quantization import quantization_of, zero_point_of
from jaxdelegate.op_lowering.common.quantized_products import (
    INT4,
    INT8,
    INT16,
    INT32,
    INT64,
    UINT8,
    Dtypes,
    Epilogue,
    Kernels,
    Tensors,
    accumulator,
    epilogue,
    why_not_bias_scale,
    why_not_epilogue,
    why_not_sums,
    why_not_tensors,
)
from jaxdelegate.op_lowering.common.window import Spreads
from jaxdelegate.op_lowering.convolution import cpu_kernel_integer, cpu_kernel_transposed
from jaxdelegate.op_lowering.convolution.algorithms import Convolution
from jaxdelegate.op_lowering.convolution.integer import (
    IntegerConvolution,
    IntegerTransposedConvolution,
    constant,
)
from jaxdelegate.op_lowering.records.enums import TensorType
from jaxdelegate.op_lowering.records.record import Activated
from jaxdelegate.op_lowering.rule import Function, Lowered, Op, Prepare, first_reason
from jaxdelegate.op_lowering.spec import TensorSpec
from jaxdelegate.quant.requantize import convolution_multipliers, product_multiplier

_NARROW = frozenset([INT8, INT4])
_BYTES = Dtypes(frozenset([UINT8]), frozenset([INT32]), frozenset([UINT8]), symmetric=False)


def _kernels(filters: frozenset[np.dtype], wide_biases: frozenset[np.dtype]) -> Kernels:
    return {
        UINT8: _BYTES,
        INT8: Dtypes(filters, frozenset([INT32]), frozenset([INT8])),
        INT16: Dtypes(filters, wide_biases, frozenset([INT16])),
    }


CONV_2D = _kernels(_NARROW, frozenset([INT32, INT64]))
DEPTHWISE_CONV_2D = _kernels(_NARROW, frozenset([INT64]))
TRANSPOSE_CONV = _kernels(frozenset([INT8]), frozenset([INT32, INT64]))
NONE: Kernels = {}  # CONV_3D, CONV_3D_TRANSPOSE


def why_not(
    kernels: Kernels, options: Activated, tensors: Tensors, channel_axis: int, products: int
) -> str | None:
    """`products` is the number that one output value sums."""
    return first_reason(
        why_not_tensors(kernels, tensors, channel_axis),
        why_not_sums(tensors, _bias_type(options), products),
    ) or first_reason(
        why_not_bias_scale(tensors) if tensors.x.dtype == UINT8 else None,
        why_not_epilogue(lambda: _epilogue(options, tensors)),
    )


def _bias_type(options: Activated) -> TensorType:
    # DEPTHWISE_CONV_2D has no such option; FLOAT32 means that the file does not say.
    return getattr(options, "quantized_bias_type", TensorType.FLOAT32)


def _epilogue(options: Activated, tensors: Tensors) -> Epilogue:
    x, w, _, y = tensors
    scales = quantization_of(x), quantization_of(w), quantization_of(y)
    multiplier, shift = (
        product_multiplier(*scales)
        if x.dtype == UINT8
        else convolution_multipliers(*scales, y.shape[-1])
    )
    return epilogue(
        options.fused_activation_function,
        y,
        accumulator(x, _bias_type(options)),
        multiplier=multiplier,
        shift=shift,
    )


def _filter_zero(w: TensorSpec) -> int:
    # The kernels of int8 filters assume that these are symmetric.
    return zero_point_of(w) if w.dtype == UINT8 else 0


def lower(op: Op[Activated], c: Convolution, spatial_io: Prepare) -> Function:
    """Plain convolutions; `spatial_io` transposes the file's filter to [*spatial, I, O]."""
    context, tensors = op.context, Tensors.of(op)
    w, zero, end = tensors.w, zero_point_of(tensors.x), _epilogue(op.options, tensors)
    if cpu_kernel_integer.is_chosen(context, tensors, spatial_io, c):
        return cpu_kernel_integer.convolution(c, spatial_io, tensors, _filter_zero(w), end)
    convolve = IntegerConvolution.of(context, c, w.dtype, _filter_zero(w), constant(w, spatial_io))
    storage = WeightStorage.of_convolution(w, c.output_channels, c.groups)
    is_fused = convolve.fuses(context, tensors, end)

    def convolution(x: jax.Array, w: jax.Array, bias: jax.Array | None = None) -> tuple[jax.Array]:
        if is_fused:
            return (convolve.fused(x, zero, storage.read(w), bias, end),)
        return end(convolve(x, zero, storage.read(w)), bias)

    def prepare(w: Array) -> Array:
        return storage.prepare(convolve.prepare(spatial_io(w)))

    return Lowered(convolution, {1: prepare}, (convolve.layout, storage))


def lower_transposed(
    op: Op[Activated], spreads: Spreads, spatial_io: Prepare, tensors: Tensors
) -> Function:
    """Transposed convolutions; inputs are (output shape, filter, x, bias)."""
    x, w, end = tensors.x, tensors.w, _epilogue(op.options, tensors)
    if cpu_kernel_transposed.takes_int8(op.context, spreads, tensors):
        run, layout = cpu_kernel_transposed.transposed_int8(spreads, spatial_io, tensors, end)
        return Lowered(
            lambda _shape, w, x, bias=None: run(x, w, bias), {1: lambda w: layout(spatial_io(w))}
        )
    convolve = IntegerTransposedConvolution.of(
        spreads, w.dtype, _filter_zero(w), constant(w, spatial_io)
    )
    zero = zero_point_of(x)

    def transposed(
        _shape: object, w: jax.Array, x: jax.Array, bias: jax.Array | None = None
    ) -> tuple[jax.Array]:
        return end(convolve(x, zero, w), bias)

    return Lowered(transposed, {1: lambda w: convolve.prepare(spatial_io(w))}, ())
