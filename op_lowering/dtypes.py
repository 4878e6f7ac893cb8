"""TensorType of schema.fbs <-> numpy dtype (ml_dtypes for those that numpy lacks)."""

import ml_dtypes
import numpy as np

from jaxdelegate.op_lowering.records.enums import TensorType

DTYPES: dict[TensorType, np.dtype] = {
    TensorType.FLOAT32: np.dtype(np.float32),
    TensorType.FLOAT16: np.dtype(np.float16),
    TensorType.INT32: np.dtype(np.int32),
    TensorType.UINT8: np.dtype(np.uint8),
    TensorType.INT64: np.dtype(np.int64),
    TensorType.STRING: np.dtype(object),  # elements are bytes
    TensorType.BOOL: np.dtype(np.bool_),
    TensorType.INT16: np.dtype(np.int16),
    TensorType.COMPLEX64: np.dtype(np.complex64),
    TensorType.INT8: np.dtype(np.int8),
    TensorType.FLOAT64: np.dtype(np.float64),
    TensorType.COMPLEX128: np.dtype(np.complex128),
    TensorType.UINT64: np.dtype(np.uint64),
    TensorType.RESOURCE: np.dtype("V4"),  # an opaque handle: the resource stays on the host
    TensorType.VARIANT: np.dtype("V8"),
    TensorType.UINT32: np.dtype(np.uint32),
    TensorType.UINT16: np.dtype(np.uint16),
    TensorType.INT4: np.dtype(ml_dtypes.int4),
    TensorType.BFLOAT16: np.dtype(ml_dtypes.bfloat16),
    TensorType.INT2: np.dtype(ml_dtypes.int2),
    TensorType.UINT4: np.dtype(ml_dtypes.uint4),
    TensorType.FLOAT8_E4M3FN: np.dtype(ml_dtypes.float8_e4m3fn),
    TensorType.FLOAT8_E5M2: np.dtype(ml_dtypes.float8_e5m2),
}
TENSOR_TYPES: dict[np.dtype, TensorType] = {
    dtype: tensor_type for tensor_type, dtype in DTYPES.items()
}
HANDLES = frozenset((DTYPES[TensorType.RESOURCE], DTYPES[TensorType.VARIANT]))
INDICES = frozenset(np.dtype(t) for t in (np.int32, np.int64))
HALVES = frozenset(np.dtype(t) for t in (np.float16, ml_dtypes.bfloat16))
FLOATS = frozenset(np.dtype(t) for t in (np.float32, np.float16, np.float64, ml_dtypes.bfloat16))
