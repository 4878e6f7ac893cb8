"""Options tables, field names as in schema.fbs: shapes, indexing, padding, slicing and layout."""

from dataclasses import dataclass

from jaxdelegate.op_lowering.options.base import Options
from jaxdelegate.op_lowering.options.enums import ActivationFunctionType, MirrorPadMode, TensorType


@dataclass(frozen=True)
class ConcatenationOptions(Options):
    """Table `ConcatenationOptions`: CONCATENATION."""

    operators = ("CONCATENATION",)
    axis: int = 0
    fused_activation_function: ActivationFunctionType = ActivationFunctionType.NONE


@dataclass(frozen=True)
class ReshapeOptions(Options):
    """Table `ReshapeOptions`: RESHAPE."""

    operators = ("RESHAPE",)
    new_shape: tuple[int, ...] = ()


@dataclass(frozen=True)
class SpaceToDepthOptions(Options):
    """Table `SpaceToDepthOptions`: SPACE_TO_DEPTH."""

    operators = ("SPACE_TO_DEPTH",)
    block_size: int = 0


@dataclass(frozen=True)
class PadOptions(Options):
    """Table `PadOptions`: PAD."""

    operators = ("PAD",)


@dataclass(frozen=True)
class GatherOptions(Options):
    """Table `GatherOptions`: GATHER."""

    operators = ("GATHER",)
    axis: int = 0
    batch_dims: int = 0


@dataclass(frozen=True)
class BatchToSpaceNDOptions(Options):
    """Table `BatchToSpaceNDOptions`: BATCH_TO_SPACE_ND."""

    operators = ("BATCH_TO_SPACE_ND",)


@dataclass(frozen=True)
class SpaceToBatchNDOptions(Options):
    """Table `SpaceToBatchNDOptions`: SPACE_TO_BATCH_ND."""

    operators = ("SPACE_TO_BATCH_ND",)


@dataclass(frozen=True)
class TransposeOptions(Options):
    """Table `TransposeOptions`: TRANSPOSE."""

    operators = ("TRANSPOSE",)


@dataclass(frozen=True)
class SqueezeOptions(Options):
    """Table `SqueezeOptions`: SQUEEZE."""

    operators = ("SQUEEZE",)
    squeeze_dims: tuple[int, ...] = ()


@dataclass(frozen=True)
class StridedSliceOptions(Options):
    """Table `StridedSliceOptions`: STRIDED_SLICE."""

    operators = ("STRIDED_SLICE",)
    begin_mask: int = 0
    end_mask: int = 0
    ellipsis_mask: int = 0
    new_axis_mask: int = 0
    shrink_axis_mask: int = 0
    offset: bool = False


@dataclass(frozen=True)
class TopKV2Options(Options):
    """Table `TopKV2Options`: TOPK_V2."""

    operators = ("TOPK_V2",)


@dataclass(frozen=True)
class SplitOptions(Options):
    """Table `SplitOptions`: SPLIT."""

    operators = ("SPLIT",)
    num_splits: int = 0


@dataclass(frozen=True)
class ArgMaxOptions(Options):
    """Table `ArgMaxOptions`: ARG_MAX."""

    operators = ("ARG_MAX",)
    output_type: TensorType = TensorType.FLOAT32


@dataclass(frozen=True)
class PadV2Options(Options):
    """Table `PadV2Options`: PADV2."""

    operators = ("PADV2",)


@dataclass(frozen=True)
class SelectOptions(Options):
    """Table `SelectOptions`: SELECT."""

    operators = ("SELECT",)


@dataclass(frozen=True)
class SliceOptions(Options):
    """Table `SliceOptions`: SLICE."""

    operators = ("SLICE",)


@dataclass(frozen=True)
class SparseToDenseOptions(Options):
    """Table `SparseToDenseOptions`: SPARSE_TO_DENSE."""

    operators = ("SPARSE_TO_DENSE",)
    validate_indices: bool = False


@dataclass(frozen=True)
class TileOptions(Options):
    """Table `TileOptions`: TILE."""

    operators = ("TILE",)


@dataclass(frozen=True)
class ExpandDimsOptions(Options):
    """Table `ExpandDimsOptions`: EXPAND_DIMS."""

    operators = ("EXPAND_DIMS",)


@dataclass(frozen=True)
class ShapeOptions(Options):
    """Table `ShapeOptions`: SHAPE."""

    operators = ("SHAPE",)
    out_type: TensorType = TensorType.FLOAT32


@dataclass(frozen=True)
class ArgMinOptions(Options):
    """Table `ArgMinOptions`: ARG_MIN."""

    operators = ("ARG_MIN",)
    output_type: TensorType = TensorType.FLOAT32


@dataclass(frozen=True)
class PackOptions(Options):
    """Table `PackOptions`: PACK."""

    operators = ("PACK",)
    values_count: int = 0
    axis: int = 0


@dataclass(frozen=True)
class OneHotOptions(Options):
    """Table `OneHotOptions`: ONE_HOT."""

    operators = ("ONE_HOT",)
    axis: int = 0


@dataclass(frozen=True)
class UnpackOptions(Options):
    """Table `UnpackOptions`: UNPACK."""

    operators = ("UNPACK",)
    num: int = 0
    axis: int = 0


@dataclass(frozen=True)
class ZerosLikeOptions(Options):
    """Table `ZerosLikeOptions`: ZEROS_LIKE."""

    operators = ("ZEROS_LIKE",)


@dataclass(frozen=True)
class FillOptions(Options):
    """Table `FillOptions`: FILL."""

    operators = ("FILL",)


@dataclass(frozen=True)
class RangeOptions(Options):
    """Table `RangeOptions`: RANGE."""

    operators = ("RANGE",)


@dataclass(frozen=True)
class MirrorPadOptions(Options):
    """Table `MirrorPadOptions`: MIRROR_PAD."""

    operators = ("MIRROR_PAD",)
    mode: MirrorPadMode = MirrorPadMode.REFLECT


@dataclass(frozen=True)
class SplitVOptions(Options):
    """Table `SplitVOptions`: SPLIT_V."""

    operators = ("SPLIT_V",)
    num_splits: int = 0


@dataclass(frozen=True)
class UniqueOptions(Options):
    """Table `UniqueOptions`: UNIQUE."""

    operators = ("UNIQUE",)
    idx_out_type: TensorType = TensorType.INT32


@dataclass(frozen=True)
class ReverseV2Options(Options):
    """Table `ReverseV2Options`: REVERSE_V2."""

    operators = ("REVERSE_V2",)


@dataclass(frozen=True)
class GatherNdOptions(Options):
    """Table `GatherNdOptions`: GATHER_ND."""

    operators = ("GATHER_ND",)


@dataclass(frozen=True)
class WhereOptions(Options):
    """Table `WhereOptions`: WHERE."""

    operators = ("WHERE",)


@dataclass(frozen=True)
class RankOptions(Options):
    """Table `RankOptions`: RANK."""

    operators = ("RANK",)


@dataclass(frozen=True)
class ReverseSequenceOptions(Options):
    """Table `ReverseSequenceOptions`: REVERSE_SEQUENCE."""

    operators = ("REVERSE_SEQUENCE",)
    seq_dim: int = 0
    batch_dim: int = 0


@dataclass(frozen=True)
class MatrixDiagOptions(Options):
    """Table `MatrixDiagOptions`: MATRIX_DIAG."""

    operators = ("MATRIX_DIAG",)


@dataclass(frozen=True)
class MatrixSetDiagOptions(Options):
    """Table `MatrixSetDiagOptions`: MATRIX_SET_DIAG."""

    operators = ("MATRIX_SET_DIAG",)


@dataclass(frozen=True)
class DepthToSpaceOptions(Options):
    """Table `DepthToSpaceOptions`: DEPTH_TO_SPACE."""

    operators = ("DEPTH_TO_SPACE",)
    block_size: int = 0


@dataclass(frozen=True)
class ScatterNdOptions(Options):
    """Table `ScatterNdOptions`: SCATTER_ND."""

    operators = ("SCATTER_ND",)


@dataclass(frozen=True)
class SelectV2Options(Options):
    """Table `SelectV2Options`: SELECT_V2."""

    operators = ("SELECT_V2",)


@dataclass(frozen=True)
class BroadcastToOptions(Options):
    """Table `BroadcastToOptions`: BROADCAST_TO."""

    operators = ("BROADCAST_TO",)


@dataclass(frozen=True)
class DynamicUpdateSliceOptions(Options):
    """Table `DynamicUpdateSliceOptions`: DYNAMIC_UPDATE_SLICE."""

    operators = ("DYNAMIC_UPDATE_SLICE",)
