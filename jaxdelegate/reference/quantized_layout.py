"""Data movement that changes the stored numbers: CONCATENATION of uint8, EMBEDDING_LOOKUP."""

import ml_dtypes
import numpy as np

from jaxdelegate.op_lowering.spec import TensorSpec
from jaxdelegate.quant.affine import round_half_away
from jaxdelegate.quant.params import integer_range, tensor_scale, tensor_zero_point
from jaxdelegate.reference.kernel import Array
from jaxdelegate.reference.quantized_checks import quantization_of

_TABLES = (np.int8, np.uint8, ml_dtypes.int4, ml_dtypes.int2)


@np.errstate(all="ignore")
def rescaled(x_spec: TensorSpec, y_spec: TensorSpec, x: Array) -> Array:
    """An input of CONCATENATION as integers of the output's scale, rounded in float32.

    As ConcatenationWithScaling of kernels/internal/reference/concatenation.h.

    Raises:
        TypeError: the scales differ and the dtypes are not uint8, for which there is no kernel.
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
    """The rows `ids` of a table with one scale, or one for each row, as floats.

    As EvalHybrid of kernels/embedding_lookup.cc: uint8 counts as int8.

    Raises:
        TypeError: the table is not quantized, or of another dtype, or the output no float.
        ValueError: a zero point, or scales along another dimension.
    """
    quantization = quantization_of("EMBEDDING_LOOKUP", table, *_TABLES)
    if y.dtype not in (np.float32, np.float16):
        raise TypeError(
            f"EMBEDDING_LOOKUP: {table.name!r} is {table.dtype} and {y.name!r} {y.dtype}"
        )
    scales = quantization.scale.astype(np.float32)
    if scales.size > 1 and (quantization.quantized_dimension or scales.size != len(rows)):
        raise ValueError(f"EMBEDDING_LOOKUP: {scales.size} scales for {len(rows)} rows")
    if np.any(quantization.zero_point):
        raise ValueError(f"EMBEDDING_LOOKUP: {table.name!r} must have zero points of 0")
    of_row = np.broadcast_to(scales, (len(rows),))[ids]
    values = rows[ids].astype(np.int8).astype(np.float32)
    return np.asarray(values * of_row.reshape(-1, *[1] * (values.ndim - 1)), y.dtype)
