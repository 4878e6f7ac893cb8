"""Reads a TfLiteTensor's spec, and its memory as numpy arrays."""

import ctypes
import math

import numpy as np

from jaxdelegate.litert import structures
from jaxdelegate.litert.structures import Tensor, elements
from jaxdelegate.model.stored import byte_count, constant, decode, why_not_stored
from jaxdelegate.op_lowering.dtypes import DTYPES
from jaxdelegate.op_lowering.options import TensorType
from jaxdelegate.op_lowering.records.c_struct import TENSOR_TYPES
from jaxdelegate.op_lowering.spec import DimensionSparsity, Shape, Sparsity, TensorSpec
from jaxdelegate.quant.params import Blockwise, Quantization

_PACKED = (TensorType.INT4, TensorType.UINT4, TensorType.INT2)
_VIEWABLE = frozenset(TensorType) - {*_PACKED, TensorType.STRING}


def tensor_type(tensor: Tensor) -> TensorType:
    """A tensor without one (a subgraph's placeholder) is treated as a handle."""
    return TENSOR_TYPES.get(tensor.type, TensorType.VARIANT)


def shape_of(tensor: Tensor) -> Shape:
    return tuple(elements(tensor.dims))


def signature_of(tensor: Tensor) -> Shape:
    """The dimensions as the file declares them, -1 for a free one; empty: all are fixed."""
    return tuple(elements(tensor.dims_signature))


def spec_of(tensor: Tensor) -> TensorSpec:
    """The spec of a tensor, with its value if it is a constant.

    Values are views of the interpreter's memory where possible: they must not outlive its tensors.
    """
    shape = shape_of(tensor)
    return TensorSpec(
        name=(tensor.name or b"").decode(errors="replace"),
        shape=shape,
        dtype=DTYPES[tensor_type(tensor)],
        quantization=_quantization(tensor),
        sparsity=_sparsity(tensor),
        is_variable=tensor.is_variable,
        const=_constant(tensor, shape),
    )


def _quantization(tensor: Tensor) -> Quantization | None:
    kind, params = tensor.quantization.type, tensor.quantization.params
    if not params:
        return None
    if kind == structures.AFFINE:
        affine = structures.AffineQuantization.from_address(params)
        scale = np.array(elements(affine.scale, ctypes.c_float), np.float32)
        zero_point = np.array(elements(affine.zero_point), np.int64)
        # Interpreters may store a single zero point if all channels have the same.
        zero_point = np.broadcast_to(zero_point, scale.shape)
        return Quantization(scale, zero_point, affine.quantized_dimension)
    nothing = np.empty(0, np.float32), np.empty(0, np.int64)
    if kind == structures.BLOCKWISE:
        one = structures.BlockwiseQuantization.from_address(params)
        blocks = Blockwise(one.scale, one.zero_point, one.blocksize)
        return Quantization(*nothing, one.quantized_dimension, blockwise=blocks)
    if kind == structures.MULTI_AXIS:
        many = structures.MultiAxisQuantization.from_address(params)
        dimensions = tuple(elements(many.quantized_dimensions))
        blocks = Blockwise(many.scales, many.zero_points, many.blocksize, dimensions)
        return Quantization(*nothing, blockwise=blocks)
    return None


def _sparsity(tensor: Tensor) -> Sparsity | None:
    if not tensor.sparsity:
        return None
    sparsity = structures.Sparsity.from_address(tensor.sparsity)
    metadata = structures.DimensionMetadata * sparsity.dim_metadata_size
    levels = tuple(metadata.from_address(sparsity.dim_metadata)) if sparsity.dim_metadata else ()
    return Sparsity(
        tuple(elements(sparsity.traversal_order)),
        tuple(elements(sparsity.block_map)),
        tuple(map(_level, levels)),
    )


def _level(level: structures.DimensionMetadata) -> DimensionSparsity:
    if level.format == 0:
        return DimensionSparsity(level.dense_size)
    segments, indices = (
        np.array(elements(a), np.int32) for a in (level.array_segments, level.array_indices)
    )
    return DimensionSparsity(0, segments, indices)


def _constant(tensor: Tensor, shape: Shape) -> np.ndarray | None:
    """The value from the file; None: it is computed at run time, or its bytes are invalid.

    Read-only memory that an operator fills in `prepare` is not constant: it depends on shapes.
    """
    kind = tensor_type(tensor)
    if tensor.allocation_type != structures.MMAP_RO:
        return None
    stored = memory(tensor)
    if tensor.sparsity:
        shape = (stored.size // byte_count(kind, 1),)
    if why_not_stored(kind, math.prod(shape), stored) is not None:
        return None
    return constant(kind, shape, stored)


def memory(tensor: Tensor) -> np.ndarray:
    """A tensor's bytes in the interpreter's memory, uint8 [n]; empty before it is allocated."""
    if not tensor.data or not tensor.bytes:
        return np.empty(0, np.uint8)
    return np.frombuffer((ctypes.c_uint8 * tensor.bytes).from_address(tensor.data), np.uint8)


def is_viewable(tensor: Tensor) -> bool:
    """Whether its memory can be viewed as an array: neither strings nor packed integers."""
    return tensor_type(tensor) in _VIEWABLE


def view(tensor: Tensor) -> np.ndarray:
    """A viewable tensor's memory as a writable array."""
    dtype, shape = DTYPES[tensor_type(tensor)], shape_of(tensor)
    return memory(tensor)[: math.prod(shape) * dtype.itemsize].view(dtype).reshape(shape)


def value(tensor: Tensor) -> np.ndarray:
    """The value of any allocated tensor, read-only; a copy if it is not viewable."""
    return decode(tensor_type(tensor), shape_of(tensor), memory(tensor))
