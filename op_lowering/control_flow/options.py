"""Options and records of operators that call subgraphs."""

from jaxdelegate.op_lowering.records import c_struct as c
from jaxdelegate.op_lowering.records import costs
from jaxdelegate.op_lowering.records.enums import CustomOptionsFormat
from jaxdelegate.op_lowering.records.operator import (
    OperatorRecord,
    table,
)
from jaxdelegate.op_lowering.records.record import Record
from jaxdelegate.op_lowering.spec import Specs


class CallOptions(Record):
    subgraph: int = 0


class IfOptions(Record):
    then_subgraph_index: int = 0
    else_subgraph_index: int = 0


class WhileOptions(Record):
    cond_subgraph_index: int = 0
    body_subgraph_index: int = 0


class CallOnceOptions(Record):
    init_subgraph_index: int = 0


class StablehloWhileOptions(Record):
    cond_subgraph_index: int = 0
    body_subgraph_index: int = 0


class StableHLOCompositeOptions(Record):
    name: str = ""
    decomposition_subgraph_index: int = 0
    composite_attributes: bytes = b""
    composite_attributes_format: CustomOptionsFormat = CustomOptionsFormat.FLEXBUFFERS
    version: int = 0


class StablehloCaseOptions(Record):
    branch_subgraph_indices: tuple[int, ...] = ()


def _loop(
    o: WhileOptions | StablehloWhileOptions, _inputs: Specs, _outputs: Specs, called: costs.Called
) -> costs.Work:
    works = [called(o.cond_subgraph_index), called(o.body_subgraph_index)]
    return costs.total(works, "per iteration; how many there are depends on data")


RECORDS = table(
    OperatorRecord("CALL", CallOptions, cost=costs.call, struct=c.HIDDEN),
    OperatorRecord("CALL_ONCE", CallOnceOptions, cost=costs.once),
    OperatorRecord("IF", IfOptions, cost=costs.if_),
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
        struct=c.members(
            StableHLOCompositeOptions,
            *("name", "decomposition_subgraph_index", "version", "composite_attributes"),
        ),
    ),
    OperatorRecord("STABLEHLO_WHILE", StablehloWhileOptions, cost=_loop, struct=c.HIDDEN),
    OperatorRecord("WHILE", WhileOptions, cost=_loop),
)
