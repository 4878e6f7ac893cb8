"""Options tables, field names as in schema.fbs: control flow, resources, random numbers."""

from dataclasses import dataclass

from jaxdelegate.op_lowering.options.base import Options
from jaxdelegate.op_lowering.options.enums import TensorType


@dataclass(frozen=True)
class CallOptions(Options):
    """Table `CallOptions`: CALL."""

    operators = ("CALL",)
    subgraph: int = 0


@dataclass(frozen=True)
class IfOptions(Options):
    """Table `IfOptions`: IF."""

    operators = ("IF",)
    then_subgraph_index: int = 0
    else_subgraph_index: int = 0


@dataclass(frozen=True)
class WhileOptions(Options):
    """Table `WhileOptions`: WHILE."""

    operators = ("WHILE",)
    cond_subgraph_index: int = 0
    body_subgraph_index: int = 0


@dataclass(frozen=True)
class CallOnceOptions(Options):
    """Table `CallOnceOptions`: CALL_ONCE."""

    operators = ("CALL_ONCE",)
    init_subgraph_index: int = 0


@dataclass(frozen=True)
class HashtableOptions(Options):
    """Table `HashtableOptions`: HASHTABLE."""

    operators = ("HASHTABLE",)
    table_id: int = 0
    key_dtype: TensorType = TensorType.FLOAT32
    value_dtype: TensorType = TensorType.FLOAT32


@dataclass(frozen=True)
class HashtableFindOptions(Options):
    """Table `HashtableFindOptions`: HASHTABLE_FIND."""

    operators = ("HASHTABLE_FIND",)


@dataclass(frozen=True)
class HashtableImportOptions(Options):
    """Table `HashtableImportOptions`: HASHTABLE_IMPORT."""

    operators = ("HASHTABLE_IMPORT",)


@dataclass(frozen=True)
class HashtableSizeOptions(Options):
    """Table `HashtableSizeOptions`: HASHTABLE_SIZE."""

    operators = ("HASHTABLE_SIZE",)


@dataclass(frozen=True)
class VarHandleOptions(Options):
    """Table `VarHandleOptions`: VAR_HANDLE."""

    operators = ("VAR_HANDLE",)
    container: str = ""
    shared_name: str = ""


@dataclass(frozen=True)
class ReadVariableOptions(Options):
    """Table `ReadVariableOptions`: READ_VARIABLE."""

    operators = ("READ_VARIABLE",)


@dataclass(frozen=True)
class AssignVariableOptions(Options):
    """Table `AssignVariableOptions`: ASSIGN_VARIABLE."""

    operators = ("ASSIGN_VARIABLE",)


@dataclass(frozen=True)
class RandomOptions(Options):
    """Table `RandomOptions`: RANDOM_UNIFORM, RANDOM_STANDARD_NORMAL, MULTINOMIAL."""

    operators = ("RANDOM_UNIFORM", "RANDOM_STANDARD_NORMAL", "MULTINOMIAL")
    seed: int = 0
    seed2: int = 0
