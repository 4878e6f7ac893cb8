"""Integer matrix products, in numpy; quantized.py names the sources."""

from typing import Any

import ml_dtypes
import numpy as np

from jaxdelegate.op_lowering.matmul.options import BatchMatMulOptions, FullyConnectedOptions
from jaxdelegate.op_lowering.records.enums import ActivationFunctionType, TensorType
from jaxdelegate.op_lowering.spec import Specs, TensorSpec
from jaxdelegate.quant.params import Quantization, activation_range, tensor_zero_point
from jaxdelegate.quant.requantize import (
    convolution_multipliers,
    effective_scales,
    product_multiplier,
    requantize_accumulator_by_real,
)
from jaxdelegate.reference.kernel import Array
from jaxdelegate.reference.products import accumulated, centered, requantized
from jaxdelegate.reference.quantization import quantization_of, require_symmetric

_PACKED = (ml_dtypes.int4, ml_dtypes.int2)
_Scales = tuple[Quantization, Quantization, Quantization]  # activations, filter, output
# Dtypes of the filter and of the output, by that of the activations.
_FULLY_CONNECTED: dict[Any, tuple[tuple[Any, ...], tuple[Any, ...]]] = {
    np.dtype(np.uint8): ((np.uint8,), (np.uint8, np.int16)),
    np.dtype(np.int8): ((np.int8, *_PACKED), (np.int8,)),
    np.dtype(np.int16): ((np.int8, np.int16, *_PACKED), (np.int16,)),
}
_BATCH_MATMUL: dict[Any, tuple[tuple[Any, ...], tuple[Any, ...]]] = {
    np.dtype(np.int8): ((np.int8,), (np.int8,)),
    np.dtype(np.int16): ((np.int8, np.int16), (np.int16,)),
}


def fully_connected(
    o: FullyConnectedOptions, inputs: Specs, outputs: Specs, x: Array, w: Array, b: Array | None
) -> tuple[Array]:
    """Rows [rows, K] times weights [N, K]."""
    y = outputs[0]
    scales = _scales("FULLY_CONNECTED", _FULLY_CONNECTED, inputs, y)
    source, filters, target = scales
    zero = 0 if filters.is_per_channel else tensor_zero_point(filters)
    total = centered(x, tensor_zero_point(source)) @ centered(w, zero).T
    if w.dtype == np.int16:
        accumulator = accumulated(total, inputs[0], TensorType.INT64, b)
        result = _requantized(accumulator, scales, o.fused_activation_function, y.dtype)
    else:
        accumulator = accumulated(total, inputs[0], o.quantized_bias_type, b)
        bounds = activation_range(o.fused_activation_function, target, y.dtype)
        result = requantize_accumulator_by_real(
            accumulator,
            effective_scales(*scales, len(w)),
            tensor_zero_point(target),
            bounds,
            y.dtype,
        )
    return (result.reshape(y.shape),)


def batch_matmul(
    o: BatchMatMulOptions, inputs: Specs, outputs: Specs, x: Array, w: Array
) -> tuple[Array]:
    y = outputs[0]
    scales = _scales("BATCH_MATMUL", _BATCH_MATMUL, inputs, y)
    source, filters, _ = scales
    x = centered(x, tensor_zero_point(source))
    w = centered(w, 0 if filters.is_per_channel else tensor_zero_point(filters))
    total = np.matmul(x.swapaxes(-1, -2) if o.adj_x else x, w.swapaxes(-1, -2) if o.adj_y else w)
    accumulator = accumulated(total, inputs[0], TensorType.FLOAT32, None)
    return (_requantized(accumulator, scales, ActivationFunctionType.NONE, y.dtype),)


def _requantized(
    accumulator: Array, scales: _Scales, activation: ActivationFunctionType, dtype: np.dtype
) -> Array:
    multiplier, shift = (
        convolution_multipliers(*scales, accumulator.shape[-1])
        if scales[1].is_per_channel  # in BATCH_MATMUL LiteRT takes the product of these for zero
        else product_multiplier(*scales)
    )
    return requantized(accumulator, multiplier, shift, scales[2], activation, dtype)


def _scales(
    name: str,
    dtypes: dict[Any, tuple[tuple[Any, ...], tuple[Any, ...]]],
    inputs: Specs,
    y: TensorSpec,
) -> _Scales:
    source = quantization_of(name, inputs[0], *dtypes)
    filters, outputs = dtypes[inputs[0].dtype]
    require_symmetric(name, inputs[0], y)
    return source, quantization_of(name, inputs[1], *filters), quantization_of(name, y, *outputs)
