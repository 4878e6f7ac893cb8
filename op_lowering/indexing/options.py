"""Options and records of gather, scatter and index operators."""

from jaxdelegate.op_lowering.records import c_struct as c
from jaxdelegate.op_lowering.records import costs
from jaxdelegate.op_lowering.records.enums import TensorType
from jaxdelegate.op_lowering.records.operator import INTEGERS, OperatorRecord, Result, Scales, table
from jaxdelegate.op_lowering.records.record import Record


class GatherOptions(Record):
    """Table `GatherOptions`: GATHER."""

    axis: int = 0
    batch_dims: int = 0


class SparseToDenseOptions(Record):
    """Table `SparseToDenseOptions`: SPARSE_TO_DENSE."""

    validate_indices: bool = False


class OneHotOptions(Record):
    """Table `OneHotOptions`: ONE_HOT."""

    axis: int = 0


class UniqueOptions(Record):
    """Table `UniqueOptions`: UNIQUE."""

    idx_out_type: TensorType = TensorType.INT32


class GatherNdOptions(Record):
    """Table `GatherNdOptions`: GATHER_ND."""


class WhereOptions(Record):
    """Table `WhereOptions`: WHERE."""


class ReverseSequenceOptions(Record):
    """Table `ReverseSequenceOptions`: REVERSE_SEQUENCE."""

    seq_dim: int = 0
    batch_dim: int = 0


class MatrixDiagOptions(Record):
    """Table `MatrixDiagOptions`: MATRIX_DIAG."""


class MatrixSetDiagOptions(Record):
    """Table `MatrixSetDiagOptions`: MATRIX_SET_DIAG."""


class ScatterNdOptions(Record):
    """Table `ScatterNdOptions`: SCATTER_ND."""


RECORDS = table(
    OperatorRecord(
        "EMBEDDING_LOOKUP",
        cost=costs.movement,
        result=Result.MOVED,
        reads_uint8_as_int8=True,
        picks_from=1,
        scales=Scales.EQUAL,
    ),
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
    OperatorRecord("MATRIX_DIAG", MatrixDiagOptions, cost=costs.movement, ignores_scales=INTEGERS),
    OperatorRecord(
        "MATRIX_SET_DIAG", MatrixSetDiagOptions, cost=costs.movement, scales=Scales.EQUAL
    ),
    OperatorRecord(
        "ONE_HOT", OneHotOptions, cost=costs.movement, struct={"axis": c.INT}, scales=Scales.EQUAL
    ),
    OperatorRecord(
        "REVERSE_SEQUENCE",
        ReverseSequenceOptions,
        cost=costs.movement,
        struct={"seq_dim": c.INT, "batch_dim": c.INT},
        result=Result.MOVED,
        scales=Scales.EQUAL,
    ),
    OperatorRecord("SCATTER_ND", ScatterNdOptions, cost=costs.movement, ignores_scales=INTEGERS),
    OperatorRecord(
        "SPARSE_TO_DENSE",
        SparseToDenseOptions,
        cost=costs.movement,
        struct={"validate_indices": c.BOOL},
        scales=Scales.EQUAL,
    ),
    OperatorRecord(
        "UNIQUE",
        UniqueOptions,
        cost=costs.host_work,
        struct={"idx_out_type": c.TYPE},
        scales=Scales.EQUAL,
    ),
    OperatorRecord("WHERE", WhereOptions, cost=costs.movement, ignores_scales=INTEGERS),
)
