"""Options tables, field names as in schema.fbs: control flow, resources, random numbers."""

from jaxdelegate.op_lowering.options.enums import TensorType
from jaxdelegate.op_lowering.options.record import Record


class CallOptions(Record):
    """Table `CallOptions`: CALL."""

    operators = ("CALL",)
    subgraph: int = 0


class IfOptions(Record):
    """Table `IfOptions`: IF."""

    operators = ("IF",)
    then_subgraph_index: int = 0
    else_subgraph_index: int = 0


class WhileOptions(Record):
    """Table `WhileOptions`: WHILE."""

    operators = ("WHILE",)
    cond_subgraph_index: int = 0
    body_subgraph_index: int = 0


class CallOnceOptions(Record):
    """Table `CallOnceOptions`: CALL_ONCE."""

    operators = ("CALL_ONCE",)
    init_subgraph_index: int = 0


class HashtableOptions(Record):
    """Table `HashtableOptions`: HASHTABLE."""

    operators = ("HASHTABLE",)
    table_id: int = 0
    key_dtype: TensorType = TensorType.FLOAT32
    value_dtype: TensorType = TensorType.FLOAT32


class HashtableFindOptions(Record):
    """Table `HashtableFindOptions`: HASHTABLE_FIND."""

    operators = ("HASHTABLE_FIND",)


class HashtableImportOptions(Record):
    """Table `HashtableImportOptions`: HASHTABLE_IMPORT."""

    operators = ("HASHTABLE_IMPORT",)


class HashtableSizeOptions(Record):
    """Table `HashtableSizeOptions`: HASHTABLE_SIZE."""

    operators = ("HASHTABLE_SIZE",)


class VarHandleOptions(Record):
    """Table `VarHandleOptions`: VAR_HANDLE."""

    operators = ("VAR_HANDLE",)
    container: str = ""
    shared_name: str = ""


class ReadVariableOptions(Record):
    """Table `ReadVariableOptions`: READ_VARIABLE."""

    operators = ("READ_VARIABLE",)


class AssignVariableOptions(Record):
    """Table `AssignVariableOptions`: ASSIGN_VARIABLE."""

    operators = ("ASSIGN_VARIABLE",)


class RandomOptions(Record):
    """Table `RandomOptions`: RANDOM_UNIFORM, RANDOM_STANDARD_NORMAL, MULTINOMIAL."""

    operators = ("RANDOM_UNIFORM", "RANDOM_STANDARD_NORMAL", "MULTINOMIAL")
    seed: int = 0
    seed2: int = 0
