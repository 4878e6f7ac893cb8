"""Options and records of table lookups."""

from jaxdelegate.op_lowering.records import c_struct as c
from jaxdelegate.op_lowering.records import costs
from jaxdelegate.op_lowering.records.enums import CombinerType, LSHProjectionType
from jaxdelegate.op_lowering.records.operator import OperatorRecord, table
from jaxdelegate.op_lowering.records.record import Record


class ConcatEmbeddingsOptions(Record):
    num_channels: int = 0
    num_columns_per_channel: tuple[int, ...] = ()
    embedding_dim_per_channel: tuple[int, ...] = ()


class LSHProjectionOptions(Record):
    type: LSHProjectionType = LSHProjectionType.UNKNOWN


class EmbeddingLookupSparseOptions(Record):
    combiner: CombinerType = CombinerType.SUM


RECORDS = table(
    OperatorRecord(
        "CONCAT_EMBEDDINGS", ConcatEmbeddingsOptions, cost=costs.unknown, struct=c.HIDDEN
    ),
    OperatorRecord(
        "EMBEDDING_LOOKUP_SPARSE", EmbeddingLookupSparseOptions, cost=costs.embedding_lookup_sparse
    ),
    OperatorRecord("HASHTABLE_LOOKUP", cost=costs.host_work),
    OperatorRecord("LSH_PROJECTION", LSHProjectionOptions, cost=costs.host_work),
)
