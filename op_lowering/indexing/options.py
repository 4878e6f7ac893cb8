"""Options and records of gather, scatter and index operators."""

from jaxdelegate.op_lowering.records import costs
from jaxdelegate.op_lowering.records.enums import TensorType
from jaxdelegate.op_lowering.records.operator import (
    EQUAL,
    INTEGERS_ONLY,
    OperatorRecord,
    moves,
    table,
)
from jaxdelegate.op_lowering.records.record import Record


class GatherOptions(Record):
    axis: int = 0
    batch_dims: int = 0


class SparseToDenseOptions(Record):
    validate_indices: bool = False


class OneHotOptions(Record):
    axis: int = 0


class UniqueOptions(Record):
    idx_out_type: TensorType = TensorType.INT32


class ReverseSequenceOptions(Record):
    seq_dim: int = 0
    batch_dim: int = 0


RECORDS = table(
    moves("EMBEDDING_LOOKUP", reads_uint8_as_int8=True, picks_from=1),
    moves("GATHER", GatherOptions, picks_from=0),
    moves("GATHER_ND", picks_from=0),
    OperatorRecord("MATRIX_DIAG", cost=costs.movement, scales=INTEGERS_ONLY),
    OperatorRecord("MATRIX_SET_DIAG", cost=costs.movement, scales=EQUAL),
    OperatorRecord("ONE_HOT", OneHotOptions, cost=costs.movement, scales=EQUAL),
    moves("REVERSE_SEQUENCE", ReverseSequenceOptions),
    OperatorRecord("SCATTER_ND", cost=costs.movement, scales=INTEGERS_ONLY),
    OperatorRecord("SPARSE_TO_DENSE", SparseToDenseOptions, cost=costs.movement, scales=EQUAL),
    OperatorRecord("UNIQUE", UniqueOptions, cost=costs.host_work, scales=EQUAL),
    OperatorRecord("WHERE", cost=costs.movement, scales=INTEGERS_ONLY),
)
