"""Data movement that changes the stored numbers: CONCATENATION of uint8, EMBEDDING_LOOKUP."""

import ml_dtypes
import numpy as np

from jaxdelegate.op_lowering.spec import TensorSpec
from jaxdelegate.quant.affine import block_parameters, round_half_away, spread
from jaxdelegate.quant.params import Blockwise, integer_range, tensor_scale, tensor_zero_point
from jaxdelegate.reference.kernel import Array
from jaxdelegate.reference.quantization import quantization_of

_TABLES = (np.int8, np.uint8, ml_dtypes.int4, ml_dtypes.int2)


@np.errstate(all="ignore")
def rescaled(x_spec: TensorSpec, y_spec: TensorSpec, x: Array) -> Array:
    """An input of CONCATENATION as integers of the output's scale, rounded in float32.

    As ConcatenationWithScaling of kernels/internal/reference/concatenation.h.
    """
    source = quantization_of("CONCATENATION", x_spec, np.uint8)
    target = quantization_of("CONCATENATION", y_spec, np.uint8)
    inverse = np.float32(1) / np.float32(tensor_scale(target))
    scale = np.float32(tensor_scale(source)) * inverse
    bias = np.float32(-tensor_zero_point(source)) * scale
    y = round_half_away(x.astype(np.float32) * scale + bias).astype(np.float64)
    low, high = integer_range(y_spec.dtype)
    return np.clip(y + tensor_zero_point(target), low, high).astype(y_spec.dtype)


def dequantized_rows(table: TensorSpec, y: TensorSpec, rows: Array, ids: Array) -> Array:
    """The rows `ids` of a table with one scale, or one for each row or block, as floats.

    As EvalHybrid and EvalBlockwise of kernels/embedding_lookup.cc: uint8 is read as int8. Unlike
    that kernel, it applies the zero points of blocks.
    """
    if y.dtype not in (np.float32, np.float16):
        raise TypeError(
            f"EMBEDDING_LOOKUP: {table.name!r} is {table.dtype} and {y.name!r} {y.dtype}"
        )
    if table.blocks is not None:
        return _dequantized_blocks(table.blocks, rows, ids).astype(y.dtype)
    quantization = quantization_of("EMBEDDING_LOOKUP", table, *_TABLES)
    scales, points = quantization.scale, quantization.zero_point
    if scales.size > 1 and (quantization.quantized_dimension or scales.size != len(rows)):
        raise ValueError(f"EMBEDDING_LOOKUP: {scales.size} scales for {len(rows)} rows")
    if np.any(points[ids] if len(points) == len(rows) else points):  # not of the whole table
        raise ValueError(f"EMBEDDING_LOOKUP: {table.name!r} must have zero points of 0")
    of_row = np.broadcast_to(scales, (len(rows),))[ids].astype(np.float32)
    values = rows[ids].astype(np.int8).astype(np.float32)
    return np.asarray(values * of_row.reshape(-1, *[1] * (values.ndim - 1)), y.dtype)


def _dequantized_blocks(blocks: Blockwise, rows: Array, ids: Array) -> Array:
    taken = rows[ids].astype(np.int32)
    parameters = block_parameters(blocks, rows.shape, ids)
    scale, points = (spread(values, taken.shape) for values in parameters)
    return np.asarray((taken - points).astype(np.float32) * scale)
