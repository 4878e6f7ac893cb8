"""Reads a tensor's type, shape, quantization and sparsity, with LiteRT's checks."""

import dataclasses
import math
from collections.abc import Callable

import numpy as np

from jaxdelegate.model.flatbuffer import INT8, INT32, UINT8, Table
from jaxdelegate.op_lowering.dtypes import DTYPES, FLOATS
from jaxdelegate.op_lowering.records.enums import TensorType
from jaxdelegate.op_lowering.spec import DimensionSparsity, Shape, Sparsity
from jaxdelegate.quant.packing import BITS
from jaxdelegate.quant.params import Blockwise, Quantization

_MAX_RANK = 64  # numpy's
_DENSE, _SPARSE_CSR = 0, 1  # DimensionType
_DETAILS = {1: "CustomQuantization", 2: "BlockwiseQuantization", 3: "MultiAxisQuantization"}
_INDEX_VECTORS = {
    1: ("Int32Vector", np.int32),
    2: ("Uint16Vector", np.uint16),
    3: ("Uint8Vector", np.uint8),
}


def read_type(table: Table) -> TensorType:
    number = table.scalar("type", INT8)
    try:
        return TensorType(number)
    except ValueError:
        table.fail("type", f"must be a type of the schema, at most {max(TensorType):d}", number)


def read_shape(table: Table, tensor_type: TensorType) -> Shape:
    """The declared shape, whose size in bytes is limited."""
    shape = table.integers("shape")
    if len(shape) > _MAX_RANK:
        table.fail("shape", f"must have at most {_MAX_RANK} dimensions", len(shape))
    if min(shape, default=0) < 0:
        table.fail("shape", "dimensions must not be negative", list(shape))
    if math.prod(filter(None, shape)) * DTYPES[tensor_type].itemsize >= 2**63:
        table.fail("shape", "the tensor's size in bytes must be below 2**63", list(shape))
    return shape


def read_shape_signature(table: Table, shape: Shape) -> Shape | None:
    """The shape with -1 for unknown dimensions; None: the file has none."""
    signature = table.integers("shape_signature")
    if not signature:
        return None
    if len(signature) != len(shape) or min(signature) < -1:
        rule = f"must have {len(shape)} dimensions like shape, each at least -1"
        table.fail("shape_signature", rule, list(signature))
    return signature


def read_quantization(tensor: Table, shape: Shape, tensor_count: int) -> Quantization | None:
    """Read QuantizationParameters; None: the table is absent or empty.

    Source of the rules: core/interpreter_builder.cc ParseQuantization.
    """
    table = tensor.table("quantization", "QuantizationParameters")
    if table is None or table.is_empty:  # converters write empty tables for floats
        return None
    minimum, maximum, scale = (table.vector(name, np.float32) for name in ("min", "max", "scale"))
    zero_point, dimension = (
        table.vector("zero_point", np.int64),
        table.scalar("quantized_dimension"),
    )
    blockwise, custom = _read_details(table, tensor_count)
    known = (minimum, maximum, scale, zero_point, blockwise, custom)
    if all(part is None for part in known):
        return None
    if blockwise is not None:  # schema.fbs: the scales in the same table are ignored
        _check_dimensions(table, blockwise.quantized_dimensions or (dimension,), shape)
        scale = zero_point = None
    scale, zero_point = _or_empty(scale, np.float32), _or_empty(zero_point, np.int64)
    _check_scales(table, scale, zero_point, dimension, shape)
    return Quantization(
        scale=scale,
        zero_point=zero_point,
        quantized_dimension=dimension,
        minimum=minimum,
        maximum=maximum,
        blockwise=blockwise,
        custom=custom,
    )


def _or_empty(values: np.ndarray | None, dtype: type) -> np.ndarray:
    return np.empty(0, dtype) if values is None else values


def _read_details(table: Table, tensor_count: int) -> tuple[Blockwise | None, bytes | None]:
    kind = table.scalar("details_type", UINT8)
    if kind == 0:
        return None, None
    if kind not in _DETAILS:
        table.fail("details_type", f"must be one of {sorted(_DETAILS)}", kind)
    details = table.table("details", _DETAILS[kind])
    if details is None:
        table.fail("details", f"must be present, since the type is {_DETAILS[kind]}", None)
    if kind == 1:
        values = details.vector("custom", np.uint8)
        return None, b"" if values is None else values.tobytes()
    zero_points = details.scalar("zero_points")
    if not -1 <= zero_points < tensor_count:
        details.fail("zero_points", f"must be at least -1 and below {tensor_count}", zero_points)
    block_size = details.scalar("block_size")
    if block_size < 0:
        details.fail("block_size", "must not be negative", block_size)
    dimensions = details.integers("quantized_dimensions") if kind == 3 else ()
    if kind == 3 and not dimensions:
        details.fail("quantized_dimensions", "must name at least one dimension", dimensions)
    return Blockwise(
        details.index("scales", tensor_count, INT32), zero_points, block_size, dimensions
    ), None


def with_block_values(
    quantization: Quantization, value_of: Callable[[int], np.ndarray | None]
) -> Quantization:
    """Blockwise quantization with the values of its scale and zero point tensors."""
    blocks = quantization.blockwise
    if blocks is None:
        return quantization
    scale = value_of(blocks.scales)
    points = None if blocks.zero_points < 0 else value_of(blocks.zero_points)
    are_integers = points is not None and (points.dtype.kind in "iu" or points.dtype in BITS)
    blocks = dataclasses.replace(
        blocks,
        scale=scale if scale is not None and scale.dtype in FLOATS else None,
        zero_point=points if are_integers else None,
    )
    return dataclasses.replace(quantization, blockwise=blocks)


def _check_scales(
    table: Table, scale: np.ndarray, zero_point: np.ndarray, dimension: int, shape: Shape
) -> None:
    if scale.size == 0:
        return
    if zero_point.size != scale.size:
        rule = f"must have one entry for each of the {scale.size} scales"
        table.fail("zero_point", rule, zero_point.size)
    _check_dimensions(table, (dimension,), shape)
    if scale.size != 1 and shape and scale.size != shape[dimension]:
        rule = f"must have 1 entry, or {shape[dimension]} as the shape at quantized_dimension"
        table.fail("scale", rule, scale.size)


def _check_dimensions(table: Table, dimensions: tuple[int, ...], shape: Shape) -> None:
    for dimension in dimensions:
        if dimension < 0 or (shape and dimension >= len(shape)):
            rule = f"must be a dimension of the shape {list(shape)}"
            table.fail("quantized_dimension", rule, dimension)


def read_sparsity(tensor: Table, shape: Shape) -> tuple[Sparsity, int] | None:
    """SparsityParameters and how many values are stored; None for a dense tensor.

    Source of the rules: core/tools/verifier.cc VerifyAndCountSparseElements.
    """
    table = tensor.table("sparsity", "SparsityParameters")
    if table is None:
        return None
    order, block_map = table.integers("traversal_order"), table.integers("block_map")
    levels = table.tables("dim_metadata", "DimensionMetadata")
    sparsity = Sparsity(order, block_map, tuple(_read_dimension(level) for level in levels))
    rank = len(shape)
    if sorted(order[:rank]) + sorted(order[rank:]) != list(range(max(len(order), rank))):
        rule = f"must permute {rank} dimensions, then the block dimensions"
        table.fail("traversal_order", rule, list(order))
    if len(levels) != len(order):
        table.fail(
            "dim_metadata", f"must have {len(order)} entries, as traversal_order", len(levels)
        )
    sizes = _level_sizes(table, sparsity, shape)
    return sparsity, _count_values(levels, sparsity, sizes)


def _read_dimension(table: Table) -> DimensionSparsity:
    kind = table.scalar("format", INT8)
    if kind == _DENSE:
        return DimensionSparsity(table.scalar("dense_size"))
    if kind != _SPARSE_CSR:
        table.fail("format", "must be DENSE (0) or SPARSE_CSR (1)", kind)
    return DimensionSparsity(
        0, _read_index_vector(table, "array_segments"), _read_index_vector(table, "array_indices")
    )


def _read_index_vector(table: Table, field: str) -> np.ndarray:
    kind = table.scalar(f"{field}_type", UINT8)
    if kind not in _INDEX_VECTORS:
        table.fail(f"{field}_type", f"must be one of {sorted(_INDEX_VECTORS)}", kind)
    name, dtype = _INDEX_VECTORS[kind]
    vector = table.table(field, name)
    values = None if vector is None else vector.vector("values", dtype)
    if values is None:
        table.fail(field, "must be present in a SPARSE_CSR dimension", None)
    table.charge(field, 3 * values.size)  # the additional bytes of int32 compared with uint8
    return values.astype(np.int32)


def _level_sizes(table: Table, sparsity: Sparsity, shape: Shape) -> list[int]:
    """The size of each dimension, block dimensions last; of blocked ones the number of blocks."""
    rank = len(shape)
    sizes = [*shape, *[0] * (len(sparsity.dimensions) - rank)]
    if len(sizes) > rank and len(sparsity.block_map) != len(sizes) - rank:
        rule = f"must have {len(sizes) - rank} entries, one for each block dimension"
        table.fail("block_map", rule, len(sparsity.block_map))
    for level in range(rank, len(sizes)):
        dimension, block = sparsity.traversal_order[level], sparsity.dimensions[level].dense_size
        blocked = sparsity.block_map[dimension - rank]
        if not 0 <= blocked < rank:
            table.fail("block_map", f"must name dimensions below {rank}", blocked)
        if block <= 0 or sizes[blocked] % block:
            rule = f"a block's dense_size must divide {sizes[blocked]}, its dimension's size"
            table.fail("dim_metadata", rule, block)
        sizes[dimension] = block
        sizes[blocked] //= block
    return sizes


def _count_values(levels: list[Table], sparsity: Sparsity, sizes: list[int]) -> int:
    count = 1
    for table, dimension, axis in zip(
        levels, sparsity.dimensions, sparsity.traversal_order, strict=True
    ):
        segments, indices = dimension.segments, dimension.indices
        if segments is None or indices is None:
            if dimension.dense_size != sizes[axis]:
                rule = f"must be {sizes[axis]}, the size of dimension {axis}"
                table.fail("dense_size", rule, dimension.dense_size)
            count *= dimension.dense_size
            continue
        if segments.size != count + 1 or segments[0] != 0 or (np.diff(segments) < 0).any():
            rule = f"must ascend from 0 in {count + 1} entries"
            table.fail("array_segments", rule, f"{segments.size} entries")
        if segments[-1] != indices.size:
            table.fail("array_indices", f"must have {segments[-1]} entries", indices.size)
        if indices.size and not 0 <= indices.min() <= indices.max() < sizes[axis]:
            rule = f"must be at least 0 and below {sizes[axis]}"
            table.fail("array_indices", rule, f"{indices.min()} to {indices.max()}")
        count = indices.size
    return count
