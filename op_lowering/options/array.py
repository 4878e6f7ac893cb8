"""Options tables, field names as in schema.fbs: shapes, indexing, padding, slicing and layout."""

from jaxdelegate.op_lowering.options.enums import ActivationFunctionType, MirrorPadMode, TensorType
from jaxdelegate.op_lowering.options.record import Record


class ConcatenationOptions(Record):
    """Table `ConcatenationOptions`: CONCATENATION."""

    operators = ("CONCATENATION",)
    axis: int = 0
    fused_activation_function: ActivationFunctionType = ActivationFunctionType.NONE


class ReshapeOptions(Record):
    """Table `ReshapeOptions`: RESHAPE."""

    operators = ("RESHAPE",)
    new_shape: tuple[int, ...] = ()


class SpaceToDepthOptions(Record):
    """Table `SpaceToDepthOptions`: SPACE_TO_DEPTH."""

    operators = ("SPACE_TO_DEPTH",)
    block_size: int = 0


class PadOptions(Record):
    """Table `PadOptions`: PAD."""

    operators = ("PAD",)


class GatherOptions(Record):
    """Table `GatherOptions`: GATHER."""

    operators = ("GATHER",)
    axis: int = 0
    batch_dims: int = 0


class BatchToSpaceNDOptions(Record):
    """Table `BatchToSpaceNDOptions`: BATCH_TO_SPACE_ND."""

    operators = ("BATCH_TO_SPACE_ND",)


class SpaceToBatchNDOptions(Record):
    """Table `SpaceToBatchNDOptions`: SPACE_TO_BATCH_ND."""

    operators = ("SPACE_TO_BATCH_ND",)


class TransposeOptions(Record):
    """Table `TransposeOptions`: TRANSPOSE."""

    operators = ("TRANSPOSE",)


class SqueezeOptions(Record):
    """Table `SqueezeOptions`: SQUEEZE."""

    operators = ("SQUEEZE",)
    squeeze_dims: tuple[int, ...] = ()


class StridedSliceOptions(Record):
    """Table `StridedSliceOptions`: STRIDED_SLICE."""

    operators = ("STRIDED_SLICE",)
    begin_mask: int = 0
    end_mask: int = 0
    ellipsis_mask: int = 0
    new_axis_mask: int = 0
    shrink_axis_mask: int = 0
    offset: bool = False


class TopKV2Options(Record):
    """Table `TopKV2Options`: TOPK_V2."""

    operators = ("TOPK_V2",)


class SplitOptions(Record):
    """Table `SplitOptions`: SPLIT."""

    operators = ("SPLIT",)
    num_splits: int = 0


class ArgMaxOptions(Record):
    """Table `ArgMaxOptions`: ARG_MAX."""

    operators = ("ARG_MAX",)
    output_type: TensorType = TensorType.FLOAT32


class PadV2Options(Record):
    """Table `PadV2Options`: PADV2."""

    operators = ("PADV2",)


class SelectOptions(Record):
    """Table `SelectOptions`: SELECT."""

    operators = ("SELECT",)


class SliceOptions(Record):
    """Table `SliceOptions`: SLICE."""

    operators = ("SLICE",)


class SparseToDenseOptions(Record):
    """Table `SparseToDenseOptions`: SPARSE_TO_DENSE."""

    operators = ("SPARSE_TO_DENSE",)
    validate_indices: bool = False


class TileOptions(Record):
    """Table `TileOptions`: TILE."""

    operators = ("TILE",)


class ExpandDimsOptions(Record):
    """Table `ExpandDimsOptions`: EXPAND_DIMS."""

    operators = ("EXPAND_DIMS",)


class ShapeOptions(Record):
    """Table `ShapeOptions`: SHAPE."""

    operators = ("SHAPE",)
    out_type: TensorType = TensorType.FLOAT32


class ArgMinOptions(Record):
    """Table `ArgMinOptions`: ARG_MIN."""

    operators = ("ARG_MIN",)
    output_type: TensorType = TensorType.FLOAT32


class PackOptions(Record):
    """Table `PackOptions`: PACK."""

    operators = ("PACK",)
    values_count: int = 0
    axis: int = 0


class OneHotOptions(Record):
    """Table `OneHotOptions`: ONE_HOT."""

    operators = ("ONE_HOT",)
    axis: int = 0


class UnpackOptions(Record):
    """Table `UnpackOptions`: UNPACK."""

    operators = ("UNPACK",)
    num: int = 0
    axis: int = 0


class ZerosLikeOptions(Record):
    """Table `ZerosLikeOptions`: ZEROS_LIKE."""

    operators = ("ZEROS_LIKE",)


class FillOptions(Record):
    """Table `FillOptions`: FILL."""

    operators = ("FILL",)


class RangeOptions(Record):
    """Table `RangeOptions`: RANGE."""

    operators = ("RANGE",)


class MirrorPadOptions(Record):
    """Table `MirrorPadOptions`: MIRROR_PAD."""

    operators = ("MIRROR_PAD",)
    mode: MirrorPadMode = MirrorPadMode.REFLECT


class SplitVOptions(Record):
    """Table `SplitVOptions`: SPLIT_V."""

    operators = ("SPLIT_V",)
    num_splits: int = 0


class UniqueOptions(Record):
    """Table `UniqueOptions`: UNIQUE."""

    operators = ("UNIQUE",)
    idx_out_type: TensorType = TensorType.INT32


class ReverseV2Options(Record):
    """Table `ReverseV2Options`: REVERSE_V2."""

    operators = ("REVERSE_V2",)


class GatherNdOptions(Record):
    """Table `GatherNdOptions`: GATHER_ND."""

    operators = ("GATHER_ND",)


class WhereOptions(Record):
    """Table `WhereOptions`: WHERE."""

    operators = ("WHERE",)


class RankOptions(Record):
    """Table `RankOptions`: RANK."""

    operators = ("RANK",)


class ReverseSequenceOptions(Record):
    """Table `ReverseSequenceOptions`: REVERSE_SEQUENCE."""

    operators = ("REVERSE_SEQUENCE",)
    seq_dim: int = 0
    batch_dim: int = 0


class MatrixDiagOptions(Record):
    """Table `MatrixDiagOptions`: MATRIX_DIAG."""

    operators = ("MATRIX_DIAG",)


class MatrixSetDiagOptions(Record):
    """Table `MatrixSetDiagOptions`: MATRIX_SET_DIAG."""

    operators = ("MATRIX_SET_DIAG",)


class DepthToSpaceOptions(Record):
    """Table `DepthToSpaceOptions`: DEPTH_TO_SPACE."""

    operators = ("DEPTH_TO_SPACE",)
    block_size: int = 0


class ScatterNdOptions(Record):
    """Table `ScatterNdOptions`: SCATTER_ND."""

    operators = ("SCATTER_ND",)


class SelectV2Options(Record):
    """Table `SelectV2Options`: SELECT_V2."""

    operators = ("SELECT_V2",)


class BroadcastToOptions(Record):
    """Table `BroadcastToOptions`: BROADCAST_TO."""

    operators = ("BROADCAST_TO",)


class DynamicUpdateSliceOptions(Record):
    """Table `DynamicUpdateSliceOptions`: DYNAMIC_UPDATE_SLICE."""

    operators = ("DYNAMIC_UPDATE_SLICE",)
