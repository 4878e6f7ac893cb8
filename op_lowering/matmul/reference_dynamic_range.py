"""Dynamic range matrix products, in numpy; dynamic_range.py names the sources."""

import ml_dtypes
import numpy as np

from jaxdelegate.op_lowering.matmul.options import BatchMatMulOptions, FullyConnectedOptions
from jaxdelegate.op_lowering.records.enums import ActivationFunctionType
from jaxdelegate.op_lowering.spec import Specs, TensorSpec
from jaxdelegate.quant.affine import block_parameters, spread
from jaxdelegate.quant.params import Quantization, channel_scales
from jaxdelegate.reference.kernel import Array
from jaxdelegate.reference.products import quantize_rows, signed
from jaxdelegate.reference.quantization import quantization_of
from jaxdelegate.reference.window import clamp, require_floats

_IN_BLOCKS = [np.dtype(t) for t in (np.int8, ml_dtypes.int4, ml_dtypes.int2)]


def fully_connected(
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


def batch_matmul(
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
