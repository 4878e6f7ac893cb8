"""Options and records of resource variables and hash tables."""

from jaxdelegate.op_lowering.records import c_struct as c
from jaxdelegate.op_lowering.records import costs
from jaxdelegate.op_lowering.records.enums import TensorType
from jaxdelegate.op_lowering.records.operator import OperatorRecord, table
from jaxdelegate.op_lowering.records.record import Record


class HashtableOptions(Record):
    table_id: int = 0
    key_dtype: TensorType = TensorType.FLOAT32
    value_dtype: TensorType = TensorType.FLOAT32


class HashtableFindOptions(Record):
    """Table `HashtableFindOptions`: HASHTABLE_FIND."""


class HashtableImportOptions(Record):
    """Table `HashtableImportOptions`: HASHTABLE_IMPORT."""


class HashtableSizeOptions(Record):
    """Table `HashtableSizeOptions`: HASHTABLE_SIZE."""


class VarHandleOptions(Record):
    container: str = ""
    shared_name: str = ""


class ReadVariableOptions(Record):
    """Table `ReadVariableOptions`: READ_VARIABLE."""


class AssignVariableOptions(Record):
    """Table `AssignVariableOptions`: ASSIGN_VARIABLE."""


RECORDS = table(
    OperatorRecord("ASSIGN_VARIABLE", AssignVariableOptions, cost=costs.movement),
    OperatorRecord(
        "HASHTABLE",
        HashtableOptions,
        cost=costs.host_work,
        struct={"table_id": c.INT, "key_dtype": c.TYPE, "value_dtype": c.TYPE},
    ),
    OperatorRecord("HASHTABLE_FIND", HashtableFindOptions, cost=costs.host_work),
    OperatorRecord("HASHTABLE_IMPORT", HashtableImportOptions, cost=costs.host_work),
    OperatorRecord("HASHTABLE_SIZE", HashtableSizeOptions, cost=costs.host_work),
    OperatorRecord("READ_VARIABLE", ReadVariableOptions, cost=costs.movement),
    OperatorRecord(
        "VAR_HANDLE",
        VarHandleOptions,
        cost=costs.movement,
        struct={"container": c.TEXT, "shared_name": c.TEXT},
    ),
)
