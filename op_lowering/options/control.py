"""Options tables, field names as in schema.fbs: control flow, resources, random numbers."""

from jaxdelegate.op_lowering.options import c_struct as c
from jaxdelegate.op_lowering.options import costs
from jaxdelegate.op_lowering.options.enums import TensorType
from jaxdelegate.op_lowering.options.operator import OperatorRecord, table
from jaxdelegate.op_lowering.options.record import Record


class CallOptions(Record):
    """Table `CallOptions`: CALL."""

    subgraph: int = 0


class IfOptions(Record):
    """Table `IfOptions`: IF."""

    then_subgraph_index: int = 0
    else_subgraph_index: int = 0


class WhileOptions(Record):
    """Table `WhileOptions`: WHILE."""

    cond_subgraph_index: int = 0
    body_subgraph_index: int = 0


class CallOnceOptions(Record):
    """Table `CallOnceOptions`: CALL_ONCE."""

    init_subgraph_index: int = 0


class HashtableOptions(Record):
    """Table `HashtableOptions`: HASHTABLE."""

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
    """Table `VarHandleOptions`: VAR_HANDLE."""

    container: str = ""
    shared_name: str = ""


class ReadVariableOptions(Record):
    """Table `ReadVariableOptions`: READ_VARIABLE."""


class AssignVariableOptions(Record):
    """Table `AssignVariableOptions`: ASSIGN_VARIABLE."""


class RandomOptions(Record):
    """Table `RandomOptions`: RANDOM_UNIFORM, RANDOM_STANDARD_NORMAL, MULTINOMIAL."""

    seed: int = 0
    seed2: int = 0


RECORDS = table(
    OperatorRecord("ASSIGN_VARIABLE", AssignVariableOptions, cost=costs.movement),
    OperatorRecord("CALL", CallOptions, cost=costs.call, struct=c.NOT_HANDED_OUT),
    OperatorRecord(
        "CALL_ONCE", CallOnceOptions, cost=costs.once, struct={"init_subgraph_index": c.INT}
    ),
    OperatorRecord(
        "HASHTABLE",
        HashtableOptions,
        cost=costs.host_work,
        struct={"table_id": c.INT, "key_dtype": c.TYPE, "value_dtype": c.TYPE},
    ),
    OperatorRecord("HASHTABLE_FIND", HashtableFindOptions, cost=costs.host_work),
    OperatorRecord("HASHTABLE_IMPORT", HashtableImportOptions, cost=costs.host_work),
    OperatorRecord("HASHTABLE_SIZE", HashtableSizeOptions, cost=costs.host_work),
    OperatorRecord(
        "IF",
        IfOptions,
        cost=costs.if_,
        struct={"then_subgraph_index": c.INT, "else_subgraph_index": c.INT},
    ),
    OperatorRecord("MULTINOMIAL", RandomOptions, cost=costs.random, struct=c.RANDOM),
    OperatorRecord("RANDOM_STANDARD_NORMAL", RandomOptions, cost=costs.random, struct=c.RANDOM),
    OperatorRecord("RANDOM_UNIFORM", RandomOptions, cost=costs.random, struct=c.RANDOM),
    OperatorRecord("READ_VARIABLE", ReadVariableOptions, cost=costs.movement),
    OperatorRecord(
        "VAR_HANDLE",
        VarHandleOptions,
        cost=costs.movement,
        struct={"container": c.TEXT, "shared_name": c.TEXT},
    ),
    OperatorRecord(
        "WHILE",
        WhileOptions,
        cost=costs.loop,
        struct={"cond_subgraph_index": c.INT, "body_subgraph_index": c.INT},
    ),
)
