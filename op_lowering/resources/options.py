"""Options and records of resource variables and hash tables."""

from jaxdelegate.op_lowering.records import costs
from jaxdelegate.op_lowering.records.enums import TensorType
from jaxdelegate.op_lowering.records.operator import OperatorRecord, table
from jaxdelegate.op_lowering.records.record import Record


class HashtableOptions(Record):
    table_id: int = 0
    key_dtype: TensorType = TensorType.FLOAT32
    value_dtype: TensorType = TensorType.FLOAT32


class VarHandleOptions(Record):
    container: str = ""
    shared_name: str = ""


RECORDS = table(
    OperatorRecord("ASSIGN_VARIABLE", cost=costs.movement),
    OperatorRecord("HASHTABLE", HashtableOptions, cost=costs.host_work),
    OperatorRecord("HASHTABLE_FIND", cost=costs.host_work),
    OperatorRecord("HASHTABLE_IMPORT", cost=costs.host_work),
    OperatorRecord("HASHTABLE_SIZE", cost=costs.host_work),
    OperatorRecord("READ_VARIABLE", cost=costs.movement),
    OperatorRecord("VAR_HANDLE", VarHandleOptions, cost=costs.movement),
)
