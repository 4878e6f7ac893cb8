"""Matrix products: kernels/internal/reference/fully_connected.h and batch_matmul.h."""

from typing import Any

import ml_dtypes
import numpy as np

from jaxdelegate.op_lowering.matmul.options import BatchMatMulOptions, FullyConnectedOptions
from jaxdelegate.op_lowering.records.enums import (
    ActivationFunctionType,
    FullyConnectedOptionsWeightsFormat,
    TensorType,
)
from jaxdelegate.op_lowering.spec import Shape, Specs, TensorSpec
from jaxdelegate.quant.affine import block_parameters, spread
from jaxdelegate.quant.params import (
    Quantization,
    activation_range,
    channel_scales,
    tensor_zero_point,
)
from jaxdelegate.quant.requantize import (
    convolution_multipliers,
    effective_scales,
    product_multiplier,
    requantize_accumulator_by_real,
)
from jaxdelegate.reference.kernel import Array, Kernel
from jaxdelegate.reference.products import accumulated, centered, quantize_rows, requantized, signed
from jaxdelegate.reference.quantization import quantization_of, require_symmetric
from jaxdelegate.reference.window import clamp, require_floats, sums_of

# ---- integers; quantized.py names the sources

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


def quantized_fully_connected(
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


def quantized_batch_matmul(
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


# ---- dynamic range; dynamic_range.py names the sources

_IN_BLOCKS = [np.dtype(t) for t in (np.int8, ml_dtypes.int4, ml_dtypes.int2)]


def dynamic_range_fully_connected(
    o: FullyConnectedOptions, inputs: Specs, outputs: Specs, x: Array, w: Array, b: Array | None
) -> tuple[Array]:
    """Rows [rows, K] times weights [N, K]."""
    require_floats("FULLY_CONNECTED", inputs[0], *inputs[2:], *outputs)
    if inputs[1].blocks is not None:
        y = _product_in_blocks(x, w, inputs[1])
    else:
        dtypes = (np.int8, np.uint8, ml_dtypes.int4, ml_dtypes.int2)
        scales = quantization_of("FULLY_CONNECTED", inputs[1], *dtypes)
        y = _product(x, signed(w).T, scales, asymmetric=o.asymmetric_quantize_inputs)
    if b is not None:
        y = y + b.ravel()
    y = _activated(o.fused_activation_function, y)
    return (y.reshape(outputs[0].shape).astype(outputs[0].dtype),)


def _product_in_blocks(x: Array, w: Array, spec: TensorSpec) -> Array:
    """Rows [rows, K] times weights [N, K] that have a scale for each block of a row.

    EvalBlockwise4Bit of kernels/fully_connected.cc: blocks are added up one after another, in
    float32. It reads int4 only, and no zero points.
    """
    if spec.blocks is None or spec.dtype not in _IN_BLOCKS:
        raise TypeError(f"FULLY_CONNECTED: no kernel for blocks of {spec.dtype} {spec.name!r}")
    scales, points = block_parameters(spec.blocks, w.shape)
    steps = w.astype(np.float64) - spread(points, w.shape)
    count = scales.shape[1]
    scales = spread(scales, (len(w), count))
    q, scale, zero = quantize_rows(x, asymmetric=True)
    y, moved = np.zeros((len(x), len(w)), np.float32), np.zeros(len(w), np.float32)
    parts = np.split(q.astype(np.float64), count, 1), np.split(steps, count, 1)
    for of_block, row, part in zip(scales.T, *parts, strict=True):
        y = y + (row @ part.T).astype(np.float32) * of_block
        moved = moved + part.sum(1).astype(np.float32) * of_block
    y = y - zero[:, None].astype(np.float32) * moved
    return np.asarray(y * scale[:, None])


def _activated(activation: ActivationFunctionType, y: Array) -> Array:
    """Activations of ApplyActivationToVector (kernels/internal/tensor_utils.h), not only clamps."""
    if activation is ActivationFunctionType.TANH:
        return np.asarray(np.tanh(y))
    if activation is ActivationFunctionType.SIGN_BIT:
        return np.asarray(np.signbit(y))
    return clamp(activation, y)


def dynamic_range_batch_matmul(
    o: BatchMatMulOptions, inputs: Specs, outputs: Specs, x: Array, w: Array
) -> tuple[Array]:
    """Each row has its own scale; LiteRT's kernel sometimes reads another's (dynamic_range.py)."""
    require_floats("BATCH_MATMUL", inputs[0], *outputs)
    scales = quantization_of("BATCH_MATMUL", inputs[1], np.int8)
    x = x.swapaxes(-1, -2) if o.adj_x else x
    w = w.swapaxes(-1, -2) if o.adj_y else w
    return (_product(x, w, scales, asymmetric=o.asymmetric_quantize_inputs),)


def _product(x: Array, w: Array, scales: Quantization, *, asymmetric: bool) -> Array:
    """Rows [..., M, K] times int8 [..., K, N]; the scales are those of the columns."""
    q, scale, zero = quantize_rows(x, asymmetric=asymmetric)
    integers = q.astype(np.float64) - zero[..., None]
    total = np.matmul(integers, w.astype(np.float64)).astype(np.float32)
    return np.asarray(total * (scale[..., None] * channel_scales(scales, w.shape[-1])))


# ---- the operators

_UNFUSED = (ActivationFunctionType.TANH, ActivationFunctionType.SIGN_BIT)


def fully_connected_shape(o: FullyConnectedOptions, inputs: Specs) -> tuple[Shape | None, ...]:
    """Weights [N, K] turn rows of K values into [rows, N], or [..., K] into [..., N]."""
    x, w = inputs[0].shape, inputs[1].shape
    if o.weights_format is not FullyConnectedOptionsWeightsFormat.DEFAULT:
        raise ValueError(f"FULLY_CONNECTED: weights stored as {o.weights_format.name}")
    if o.fused_activation_function in _UNFUSED and not _is_dynamic_range(inputs):
        raise ValueError(f"FULLY_CONNECTED: a fused {o.fused_activation_function.name}")
    if len(w) != 2:
        raise ValueError(f"FULLY_CONNECTED: weights {list(w)} must have 2 dimensions")
    if o.keep_num_dims and x[-1:] != w[1:]:
        raise ValueError(f"FULLY_CONNECTED: input {list(x)} does not end in rows of {w[1]}")
    bias = inputs[2] if len(inputs) > 2 else None
    if bias is not None and np.prod(bias.shape) != w[0]:
        raise ValueError(f"FULLY_CONNECTED: a bias {list(bias.shape)} for {w[0]} output channels")
    if o.keep_num_dims:
        return ((*x[:-1], w[0]),)
    rows = int(np.prod(x)) // w[1] if w[1] else int(np.prod(x[:-1]))
    return ((rows, w[0]),)


def fully_connected(
    o: FullyConnectedOptions,
    inputs: Specs,
    outputs: Specs,
    x: Array,
    w: Array,
    b: Array | None = None,
) -> tuple[Array]:
    """Rows of K values times weights [N, K]; an incomplete last row is ignored."""
    depth = w.shape[1]
    if depth == 0:  # fully_connected.cc clears the output then, without the bias
        return (np.zeros(outputs[0].shape, outputs[0].dtype),)
    rows = x.size // depth
    x = x.ravel()[: rows * depth].reshape(rows, depth)
    if inputs[0].is_quantized:
        return quantized_fully_connected(o, inputs, outputs, x, w, b)
    if _is_dynamic_range(inputs):
        return dynamic_range_fully_connected(o, inputs, outputs, x, w, b)
    require_floats("FULLY_CONNECTED", *inputs, *outputs)
    y = sums_of(x) @ sums_of(w).T
    if b is not None:
        y = y + sums_of(b).ravel()
    y = clamp(o.fused_activation_function, y)
    return (y.reshape(outputs[0].shape).astype(outputs[0].dtype),)


def _is_dynamic_range(inputs: Specs) -> bool:
    return inputs[1].is_quantized and not inputs[0].is_quantized


def batch_matmul_shape(o: BatchMatMulOptions, inputs: Specs) -> tuple[Shape | None, ...]:
    """[..., M, K] times [..., K, N] -> [..., M, N]; the leading dimensions broadcast."""
    x, w = inputs[0].shape, inputs[1].shape
    if min(len(x), len(w)) < 2:
        raise ValueError(f"BATCH_MATMUL: {list(x)} and {list(w)} must have 2 dimensions or more")
    rows, depth = x[-2:][::-1] if o.adj_x else x[-2:]
    other_depth, columns = w[-2:][::-1] if o.adj_y else w[-2:]
    if depth != other_depth:
        raise ValueError(f"BATCH_MATMUL: rows of {depth} values times columns of {other_depth}")
    return ((*np.broadcast_shapes(x[:-2], w[:-2]), rows, columns),)


def batch_matmul(
    o: BatchMatMulOptions, inputs: Specs, outputs: Specs, x: Array, w: Array
) -> tuple[Array]:
    """int8 times int8 may give int32, whatever the scales."""
    if x.dtype == w.dtype == np.int8 and outputs[0].dtype == np.int32:
        x, w = x.astype(np.int32), w.astype(np.int32)
    elif inputs[0].is_quantized:
        return quantized_batch_matmul(o, inputs, outputs, x, w)
    elif _is_dynamic_range(inputs):
        return dynamic_range_batch_matmul(o, inputs, outputs, x, w)
    else:
        require_floats("BATCH_MATMUL", *inputs, *outputs)
        x, w = sums_of(x), sums_of(w)
    x = x.swapaxes(-1, -2) if o.adj_x else x
    w = w.swapaxes(-1, -2) if o.adj_y else w
    return (np.matmul(x, w).astype(outputs[0].dtype),)


KERNELS = {
    "FULLY_CONNECTED": Kernel(fully_connected, fully_connected_shape),
    "BATCH_MATMUL": Kernel(batch_matmul, batch_matmul_shape),
}
