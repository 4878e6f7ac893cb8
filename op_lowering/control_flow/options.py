"""Options and records of operators that call subgraphs."""

from jaxdelegate.op_lowering.records import c_struct as c
from jaxdelegate.op_lowering.records import costs
from jaxdelegate.op_lowering.records.enums import CustomOptionsFormat
from jaxdelegate.op_lowering.records.operator import OperatorRecord, table
from jaxdelegate.op_lowering.records.record import Record


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


class StablehloWhileOptions(Record):
    """Table `StablehloWhileOptions`: STABLEHLO_WHILE."""

    cond_subgraph_index: int = 0
    body_subgraph_index: int = 0


class StableHLOCompositeOptions(Record):
    """Table `StableHLOCompositeOptions`: STABLEHLO_COMPOSITE."""

    name: str = ""
    decomposition_subgraph_index: int = 0
    composite_attributes: bytes = b""
    composite_attributes_format: CustomOptionsFormat = CustomOptionsFormat.FLEXBUFFERS
    version: int = 0


class StablehloCaseOptions(Record):
    """Table `StablehloCaseOptions`: STABLEHLO_CASE."""

    branch_subgraph_indices: tuple[int, ...] = ()


RECORDS = table(
    OperatorRecord("CALL", CallOptions, cost=costs.call, struct=c.NOT_HANDED_OUT),
    OperatorRecord(
        "CALL_ONCE", CallOnceOptions, cost=costs.once, struct={"init_subgraph_index": c.INT}
    ),
    OperatorRecord(
        "IF",
        IfOptions,
        cost=costs.if_,
        struct={"then_subgraph_index": c.INT, "else_subgraph_index": c.INT},
    ),
    OperatorRecord(
        "STABLEHLO_CASE",
        StablehloCaseOptions,
        cost=costs.case,
        struct={"branch_subgraph_indices": c.counted(c.INT32, 20)},
    ),
    OperatorRecord(
        "STABLEHLO_COMPOSITE",
        StableHLOCompositeOptions,
        cost=costs.composite,
        struct={
            "name": c.TEXT,
            "decomposition_subgraph_index": c.INT,
            "version": c.INT,
            "composite_attributes": c.BYTES,
        },
    ),
    OperatorRecord(
        "STABLEHLO_WHILE", StablehloWhileOptions, cost=costs.loop, struct=c.NOT_HANDED_OUT
    ),
    OperatorRecord(
        "WHILE",
        WhileOptions,
        cost=costs.loop,
        struct={"cond_subgraph_index": c.INT, "body_subgraph_index": c.INT},
    ),
)
