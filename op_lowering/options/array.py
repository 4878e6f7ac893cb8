"""Options tables, field names as in schema.fbs: shapes, indexing, padding, slicing and layout."""

import numpy as np

from jaxdelegate.op_lowering.options import c_struct as c
from jaxdelegate.op_lowering.options import costs
from jaxdelegate.op_lowering.options.enums import ActivationFunctionType, MirrorPadMode, TensorType
from jaxdelegate.op_lowering.options.operator import (
    INTEGERS,
    WIDE_OR_INT16,
    WIDE_OR_UINT16,
    Batch,
    OperatorRecord,
    Result,
    Scales,
    table,
)
from jaxdelegate.op_lowering.options.record import Record


class ConcatenationOptions(Record):
    """Table `ConcatenationOptions`: CONCATENATION."""

    axis: int = 0
    fused_activation_function: ActivationFunctionType = ActivationFunctionType.NONE


class ReshapeOptions(Record):
    """Table `ReshapeOptions`: RESHAPE."""

    new_shape: tuple[int, ...] = ()


class SpaceToDepthOptions(Record):
    """Table `SpaceToDepthOptions`: SPACE_TO_DEPTH."""

    block_size: int = 0


class PadOptions(Record):
    """Table `PadOptions`: PAD."""


class GatherOptions(Record):
    """Table `GatherOptions`: GATHER."""

    axis: int = 0
    batch_dims: int = 0


class BatchToSpaceNDOptions(Record):
    """Table `BatchToSpaceNDOptions`: BATCH_TO_SPACE_ND."""


class SpaceToBatchNDOptions(Record):
    """Table `SpaceToBatchNDOptions`: SPACE_TO_BATCH_ND."""


class TransposeOptions(Record):
    """Table `TransposeOptions`: TRANSPOSE."""


class SqueezeOptions(Record):
    """Table `SqueezeOptions`: SQUEEZE."""

    squeeze_dims: tuple[int, ...] = ()


class StridedSliceOptions(Record):
    """Table `StridedSliceOptions`: STRIDED_SLICE."""

    begin_mask: int = 0
    end_mask: int = 0
    ellipsis_mask: int = 0
    new_axis_mask: int = 0
    shrink_axis_mask: int = 0
    offset: bool = False


class TopKV2Options(Record):
    """Table `TopKV2Options`: TOPK_V2."""


class SplitOptions(Record):
    """Table `SplitOptions`: SPLIT."""

    num_splits: int = 0


class ArgMaxOptions(Record):
    """Table `ArgMaxOptions`: ARG_MAX."""

    output_type: TensorType = TensorType.FLOAT32


class PadV2Options(Record):
    """Table `PadV2Options`: PADV2."""


class SelectOptions(Record):
    """Table `SelectOptions`: SELECT."""


class SliceOptions(Record):
    """Table `SliceOptions`: SLICE."""


class SparseToDenseOptions(Record):
    """Table `SparseToDenseOptions`: SPARSE_TO_DENSE."""

    validate_indices: bool = False


class TileOptions(Record):
    """Table `TileOptions`: TILE."""


class ExpandDimsOptions(Record):
    """Table `ExpandDimsOptions`: EXPAND_DIMS."""


class ShapeOptions(Record):
    """Table `ShapeOptions`: SHAPE."""

    out_type: TensorType = TensorType.FLOAT32


class ArgMinOptions(Record):
    """Table `ArgMinOptions`: ARG_MIN."""

    output_type: TensorType = TensorType.FLOAT32


class PackOptions(Record):
    """Table `PackOptions`: PACK."""

    values_count: int = 0
    axis: int = 0


class OneHotOptions(Record):
    """Table `OneHotOptions`: ONE_HOT."""

    axis: int = 0


class UnpackOptions(Record):
    """Table `UnpackOptions`: UNPACK."""

    num: int = 0
    axis: int = 0


class ZerosLikeOptions(Record):
    """Table `ZerosLikeOptions`: ZEROS_LIKE."""


class FillOptions(Record):
    """Table `FillOptions`: FILL."""


class RangeOptions(Record):
    """Table `RangeOptions`: RANGE."""


class MirrorPadOptions(Record):
    """Table `MirrorPadOptions`: MIRROR_PAD."""

    mode: MirrorPadMode = MirrorPadMode.REFLECT


class SplitVOptions(Record):
    """Table `SplitVOptions`: SPLIT_V."""

    num_splits: int = 0


class UniqueOptions(Record):
    """Table `UniqueOptions`: UNIQUE."""

    idx_out_type: TensorType = TensorType.INT32


class ReverseV2Options(Record):
    """Table `ReverseV2Options`: REVERSE_V2."""


class GatherNdOptions(Record):
    """Table `GatherNdOptions`: GATHER_ND."""


class WhereOptions(Record):
    """Table `WhereOptions`: WHERE."""


class RankOptions(Record):
    """Table `RankOptions`: RANK."""


class ReverseSequenceOptions(Record):
    """Table `ReverseSequenceOptions`: REVERSE_SEQUENCE."""

    seq_dim: int = 0
    batch_dim: int = 0


class MatrixDiagOptions(Record):
    """Table `MatrixDiagOptions`: MATRIX_DIAG."""


class MatrixSetDiagOptions(Record):
    """Table `MatrixSetDiagOptions`: MATRIX_SET_DIAG."""


class DepthToSpaceOptions(Record):
    """Table `DepthToSpaceOptions`: DEPTH_TO_SPACE."""

    block_size: int = 0


class ScatterNdOptions(Record):
    """Table `ScatterNdOptions`: SCATTER_ND."""


class SelectV2Options(Record):
    """Table `SelectV2Options`: SELECT_V2."""


class BroadcastToOptions(Record):
    """Table `BroadcastToOptions`: BROADCAST_TO."""


class DynamicUpdateSliceOptions(Record):
    """Table `DynamicUpdateSliceOptions`: DYNAMIC_UPDATE_SLICE."""


RECORDS = table(
    OperatorRecord(
        "ARG_MAX",
        ArgMaxOptions,
        cost=costs.per_input,
        struct={"output_type": c.TYPE},
        reads_unrounded=True,
        rereads=True,
        batch=Batch.AXES,
        scales=Scales.EQUAL,
    ),
    OperatorRecord(
        "ARG_MIN",
        ArgMinOptions,
        cost=costs.per_input,
        struct={"output_type": c.TYPE},
        reads_unrounded=True,
        rereads=True,
        batch=Batch.AXES,
        scales=Scales.EQUAL,
    ),
    OperatorRecord(
        "BATCH_TO_SPACE_ND",
        BatchToSpaceNDOptions,
        cost=costs.movement,
        result=Result.MOVED,
        scales=Scales.EQUAL,
        ignores_scales=WIDE_OR_UINT16,
    ),
    OperatorRecord("BROADCAST_ARGS", cost=costs.movement),
    OperatorRecord(
        "BROADCAST_TO",
        BroadcastToOptions,
        cost=costs.movement,
        result=Result.MOVED,
        scales=Scales.EQUAL,
    ),
    OperatorRecord(
        "CONCATENATION",
        ConcatenationOptions,
        cost=costs.movement,
        struct={"axis": c.INT, "fused_activation_function": c.ACTIVATION},
        result=Result.MOVED,
        batch=Batch.CONCATENATED,
        scales=Scales.EQUAL,
        ignores_scales=WIDE_OR_INT16,
        rescales=frozenset([np.dtype(np.uint8)]),
    ),
    OperatorRecord(
        "DEPTH_TO_SPACE",
        DepthToSpaceOptions,
        cost=costs.movement,
        struct={"block_size": c.INT},
        result=Result.MOVED,
        batch=Batch.FIRST_INPUT,
        scales=Scales.EQUAL,
    ),
    OperatorRecord(
        "DYNAMIC_UPDATE_SLICE",
        DynamicUpdateSliceOptions,
        cost=costs.movement,
        result=Result.MOVED,
        scales=Scales.EQUAL,
    ),
    OperatorRecord(
        "EMBEDDING_LOOKUP",
        cost=costs.movement,
        result=Result.MOVED,
        reads_uint8_as_int8=True,
        picks_from=1,
        scales=Scales.EQUAL,
    ),
    OperatorRecord(
        "EXPAND_DIMS",
        ExpandDimsOptions,
        cost=costs.movement,
        result=Result.MOVED,
        batch=Batch.FIRST_INPUT,
        scales=Scales.EQUAL,
    ),
    OperatorRecord("FILL", FillOptions, cost=costs.movement, scales=Scales.EQUAL),
    OperatorRecord(
        "GATHER",
        GatherOptions,
        cost=costs.movement,
        struct={"axis": c.INT, "batch_dims": c.INT},
        result=Result.MOVED,
        picks_from=0,
        scales=Scales.EQUAL,
    ),
    OperatorRecord(
        "GATHER_ND",
        GatherNdOptions,
        cost=costs.movement,
        result=Result.MOVED,
        picks_from=0,
        scales=Scales.EQUAL,
    ),
    OperatorRecord("HASHTABLE_LOOKUP", cost=costs.host_work),
    OperatorRecord("MATRIX_DIAG", MatrixDiagOptions, cost=costs.movement, ignores_scales=INTEGERS),
    OperatorRecord(
        "MATRIX_SET_DIAG", MatrixSetDiagOptions, cost=costs.movement, scales=Scales.EQUAL
    ),
    OperatorRecord(
        "MIRROR_PAD",
        MirrorPadOptions,
        cost=costs.movement,
        struct={"mode": c.after_unknown(MirrorPadMode)},
        result=Result.MOVED,
        batch=Batch.EDGES,
        scales=Scales.EQUAL,
        ignores_scales=WIDE_OR_UINT16,
    ),
    OperatorRecord(
        "ONE_HOT", OneHotOptions, cost=costs.movement, struct={"axis": c.INT}, scales=Scales.EQUAL
    ),
    OperatorRecord(
        "PACK",
        PackOptions,
        cost=costs.movement,
        struct={"values_count": c.INT, "axis": c.INT},
        result=Result.MOVED,
        scales=Scales.EQUAL,
    ),
    OperatorRecord(
        "PAD",
        PadOptions,
        cost=costs.movement,
        result=Result.MOVED,
        batch=Batch.EDGES,
        scales=Scales.EQUAL,
    ),
    OperatorRecord(
        "PADV2",
        PadV2Options,
        cost=costs.movement,
        result=Result.MOVED,
        batch=Batch.EDGES,
        scales=Scales.EQUAL,
    ),
    OperatorRecord("RANGE", RangeOptions, cost=costs.movement),
    OperatorRecord("RANK", RankOptions, cost=costs.movement, reads_values=False),
    OperatorRecord(
        "RESHAPE",
        ReshapeOptions,
        cost=costs.movement,
        struct={"new_shape": c.counted(c.INT32, 8)},
        result=Result.MOVED,
        batch=Batch.FIRST_INPUT,
        scales=Scales.EQUAL,
    ),
    OperatorRecord(
        "REVERSE_SEQUENCE",
        ReverseSequenceOptions,
        cost=costs.movement,
        struct={"seq_dim": c.INT, "batch_dim": c.INT},
        result=Result.MOVED,
        scales=Scales.EQUAL,
    ),
    OperatorRecord(
        "REVERSE_V2",
        ReverseV2Options,
        cost=costs.movement,
        result=Result.MOVED,
        scales=Scales.EQUAL,
    ),
    OperatorRecord("SCATTER_ND", ScatterNdOptions, cost=costs.movement, ignores_scales=INTEGERS),
    OperatorRecord(
        "SELECT",
        SelectOptions,
        cost=costs.elementwise,
        is_elementwise=True,
        result=Result.MOVED,
        scales=Scales.EQUAL,
    ),
    OperatorRecord(
        "SELECT_V2",
        SelectV2Options,
        cost=costs.elementwise,
        is_elementwise=True,
        result=Result.MOVED,
        scales=Scales.EQUAL,
    ),
    OperatorRecord(
        "SHAPE",
        ShapeOptions,
        cost=costs.movement,
        struct={"out_type": c.TYPE},
        reads_values=False,
        scales=Scales.EQUAL,
    ),
    OperatorRecord(
        "SLICE",
        SliceOptions,
        cost=costs.movement,
        result=Result.MOVED,
        picks_from=0,
        scales=Scales.EQUAL,
    ),
    OperatorRecord(
        "SPACE_TO_BATCH_ND",
        SpaceToBatchNDOptions,
        cost=costs.movement,
        result=Result.MOVED,
        scales=Scales.EQUAL,
        ignores_scales=WIDE_OR_UINT16,
    ),
    OperatorRecord(
        "SPACE_TO_DEPTH",
        SpaceToDepthOptions,
        cost=costs.movement,
        struct={"block_size": c.INT},
        result=Result.MOVED,
        batch=Batch.FIRST_INPUT,
        scales=Scales.EQUAL,
    ),
    OperatorRecord(
        "SPARSE_TO_DENSE",
        SparseToDenseOptions,
        cost=costs.movement,
        struct={"validate_indices": c.BOOL},
        scales=Scales.EQUAL,
    ),
    OperatorRecord(
        "SPLIT",
        SplitOptions,
        cost=costs.movement,
        struct=c.SPLIT,
        result=Result.MOVED,
        scales=Scales.EQUAL,
    ),
    OperatorRecord(
        "SPLIT_V",
        SplitVOptions,
        cost=costs.movement,
        struct=c.SPLIT,
        result=Result.MOVED,
        scales=Scales.EQUAL,
    ),
    OperatorRecord(
        "SQUEEZE",
        SqueezeOptions,
        cost=costs.movement,
        struct={"squeeze_dims": c.counted(c.INT32, 8)},
        result=Result.MOVED,
        batch=Batch.FIRST_INPUT,
        scales=Scales.EQUAL,
    ),
    OperatorRecord(
        "STRIDED_SLICE",
        StridedSliceOptions,
        cost=costs.movement,
        struct={
            "begin_mask": c.INT,
            "end_mask": c.INT,
            "ellipsis_mask": c.INT,
            "new_axis_mask": c.INT,
            "shrink_axis_mask": c.INT,
            "offset": c.BOOL,
        },
        result=Result.MOVED,
        picks_from=0,
        scales=Scales.EQUAL,
    ),
    OperatorRecord(
        "TILE", TileOptions, cost=costs.movement, result=Result.MOVED, scales=Scales.EQUAL
    ),
    OperatorRecord(
        "TOPK_V2", TopKV2Options, cost=costs.top_k, reads_unrounded=True, scales=Scales.EQUAL
    ),
    OperatorRecord(
        "TRANSPOSE",
        TransposeOptions,
        cost=costs.movement,
        result=Result.MOVED,
        batch=Batch.PERMUTATION,
        scales=Scales.EQUAL,
    ),
    OperatorRecord(
        "UNIQUE",
        UniqueOptions,
        cost=costs.host_work,
        struct={"idx_out_type": c.TYPE},
        scales=Scales.EQUAL,
    ),
    OperatorRecord(
        "UNPACK",
        UnpackOptions,
        cost=costs.movement,
        struct={"num": c.INT, "axis": c.INT},
        result=Result.MOVED,
        scales=Scales.EQUAL,
    ),
    OperatorRecord("WHERE", WhereOptions, cost=costs.movement, ignores_scales=INTEGERS),
    OperatorRecord(
        "ZEROS_LIKE", ZerosLikeOptions, cost=costs.movement, reads_values=False, scales=Scales.EQUAL
    ),
)
