"""Options and records of reductions."""

from jaxdelegate.op_lowering.records import c_struct as c
from jaxdelegate.op_lowering.records import costs
from jaxdelegate.op_lowering.records.enums import TensorType
from jaxdelegate.op_lowering.records.operator import (
    Batch,
    Float16,
    OperatorRecord,
    Result,
    Scales,
    table,
)
from jaxdelegate.op_lowering.records.record import Record


class ReducerOptions(Record):
    """Options of MEAN, SUM and the REDUCE_ operators."""

    keep_dims: bool = False


class CumsumOptions(Record):
    exclusive: bool = False
    reverse: bool = False


class ArgMaxOptions(Record):
    output_type: TensorType = TensorType.FLOAT32


class ArgMinOptions(Record):
    output_type: TensorType = TensorType.FLOAT32


RECORDS = table(
    *(
        OperatorRecord(
            name,
            options,
            cost=costs.per_input,
            struct={"output_type": c.TYPE},
            reads_unrounded=True,
            rereads=True,
            batch=Batch.AXES,
            scales=Scales.EQUAL,
        )
        for name, options in (("ARG_MAX", ArgMaxOptions), ("ARG_MIN", ArgMinOptions))
    ),
    OperatorRecord(
        "CUMSUM",
        CumsumOptions,
        cost=costs.per_input,
        struct={"exclusive": c.BOOL, "reverse": c.BOOL},
        float16=Float16.SUM,
    ),
    *(
        OperatorRecord(
            name,
            ReducerOptions,
            cost=costs.per_input,
            struct=c.REDUCER,
            float16=Float16.SUM,
            batch=Batch.AXES,
            scales=Scales.FREE,
        )
        for name in ("MEAN", "SUM")
    ),
    OperatorRecord("REDUCE_ALL", ReducerOptions, cost=costs.per_input, struct=c.REDUCER),
    OperatorRecord("REDUCE_ANY", ReducerOptions, cost=costs.per_input, struct=c.REDUCER),
    *(
        OperatorRecord(
            name,
            ReducerOptions,
            cost=costs.per_input,
            struct=c.REDUCER,
            result=Result.MOVED,
            batch=Batch.AXES,
            scales=Scales.EQUAL,
        )
        for name in ("REDUCE_MAX", "REDUCE_MIN")
    ),
    OperatorRecord(
        "REDUCE_PROD",
        ReducerOptions,
        cost=costs.per_input,
        struct=c.REDUCER,
        float16=Float16.SUM,
        scales=Scales.FREE,
    ),
)
