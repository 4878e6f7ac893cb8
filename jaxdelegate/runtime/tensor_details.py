"""The dictionaries that interpreters describe tensors and operators with; keys as in tf.lite."""

from typing import Any

import numpy as np

from jaxdelegate.model.records import Subgraph, Tensor
from jaxdelegate.op_lowering.options import TensorType
from jaxdelegate.quant.params import Blockwise

# What stock interpreters hand out for types that numpy lacks (interpreter_wrapper/numpy.cc).
_ARRAY_TYPES: dict[TensorType, type] = {
    TensorType.STRING: np.bytes_,
    TensorType.RESOURCE: np.object_,
    TensorType.VARIANT: np.object_,
    TensorType.INT4: np.int8,
    TensorType.INT2: np.int8,
    TensorType.UINT4: np.uint8,
    TensorType.FLOAT8_E4M3FN: np.int8,
    TensorType.FLOAT8_E5M2: np.int8,
}
_WIDENED = (TensorType.INT4, TensorType.INT2, TensorType.UINT4)


def array_type(tensor: Tensor) -> type:
    """The numpy scalar type in `details["dtype"]`."""
    return _ARRAY_TYPES.get(tensor.type, tensor.dtype.type)


def is_held_as_given(tensor: Tensor) -> bool:
    """Whether values are stored with the dtype that stock interpreters give and take."""
    return tensor.dtype == array_type(tensor) and not tensor.dtype.hasobject


def to_api_dtype(tensor: Tensor, array: np.ndarray) -> np.ndarray:
    """A copy of a tensor's value as stock interpreters give it: packed integers one to a byte."""
    return array.astype(array_type(tensor)) if tensor.type in _WIDENED else np.array(array)


def to_device_dtype(tensor: Tensor, array: Any) -> Any:
    """Convert a device array as `to_api_dtype` does, without a copy where none is needed."""
    return array.astype(array_type(tensor)) if tensor.type in _WIDENED else array


def from_api_dtype(tensor: Tensor, array: Any) -> Any:
    """An array that a user sets, in the tensor's own dtype where stock interpreters widen it."""
    is_held_wider = tensor.type in _WIDENED and array.dtype == array_type(tensor)
    return array.astype(tensor.dtype) if is_held_wider else array


def tensor_details(tensor: Tensor, shape: tuple[int, ...]) -> dict[str, Any]:
    """What `get_tensor_details` says of one tensor with its current shape."""
    q = tensor.quantization
    scales = np.empty(0, np.float32) if q is None else np.array(q.scale, np.float32)
    zero_points = np.empty(0, np.int32) if q is None else np.array(q.zero_point, np.int32)
    per_tensor = scales.size == 1
    if q is not None and q.blockwise is not None:
        scales, zero_points = _block_values(q.blockwise)
    signature = tensor.shape_signature or shape
    return {
        "name": tensor.name,
        "index": tensor.index,
        "shape": np.array(shape, np.int32),
        "shape_signature": np.array(signature, np.int32),
        "dtype": array_type(tensor),
        "quantization": (float(scales[0]), int(zero_points[0])) if per_tensor else (0.0, 0),
        "quantization_parameters": {
            "scales": scales,
            "zero_points": zero_points,
            "quantized_dimension": 0 if q is None else q.quantized_dimension,
            "block_size": q.blockwise.block_size if q is not None and q.blockwise else 0,
        },
        "sparsity_parameters": _sparsity_details(tensor),
    }


def _block_values(blocks: Blockwise) -> tuple[np.ndarray, np.ndarray]:
    """Flat scales, of the dtype that the file has, and zero points, as LiteRT shows them."""
    scale = np.empty(0, np.float16) if blocks.scale is None else blocks.scale
    points = np.empty(0, np.int32) if blocks.zero_point is None else blocks.zero_point
    return np.array(scale).ravel(), np.array(points, np.int32).ravel()


def _sparsity_details(tensor: Tensor) -> dict[str, Any]:
    sparsity = tensor.sparsity
    if sparsity is None:
        return {}
    return {
        "traversal_order": np.array(sparsity.traversal_order, np.int32),
        "block_map": np.array(sparsity.block_map, np.int32),
        "dim_metadata": [
            {"format": 0, "dense_size": d.dense_size}
            if d.segments is None
            else {"format": 1, "array_segments": d.segments, "array_indices": d.indices}
            for d in sparsity.dimensions
        ],
    }


def op_details(subgraph: Subgraph, index: int) -> dict[str, Any]:
    operator = subgraph.operators[index]
    tensors = subgraph.tensors
    return {
        "index": index,
        "op_name": operator.name,
        "inputs": np.array(operator.inputs, np.int32),
        "outputs": np.array(operator.outputs, np.int32),
        "operand_types": [array_type(tensors[i]) for i in operator.inputs if i >= 0],
        "result_types": [array_type(tensors[i]) for i in operator.outputs if i >= 0],
    }
