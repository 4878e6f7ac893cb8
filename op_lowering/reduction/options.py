"""Options and records of reductions."""

from jaxdelegate.op_lowering.records import costs
from jaxdelegate.op_lowering.records.enums import TensorType
from jaxdelegate.op_lowering.records.operator import (
    EQUAL,
    FREE,
    MOVED,
    SUM,
    UNROUNDED,
    Batch,
    OperatorRecord,
    table,
)
from jaxdelegate.op_lowering.records.record import Record


class ReducerOptions(Record):
    keep_dims: bool = False


class CumsumOptions(Record):
    exclusive: bool = False
    reverse: bool = False


class ArgMaxOptions(Record):
    output_type: TensorType = TensorType.FLOAT32


class ArgMinOptions(Record):
    output_type: TensorType = TensorType.FLOAT32


RECORDS = table(
    OperatorRecord(
        "ARG_MAX",
        ArgMaxOptions,
        cost=costs.per_input,
        precision=UNROUNDED,
        rereads=True,
        batch=Batch.AXES,
        scales=EQUAL,
    ),
    OperatorRecord(
        "ARG_MIN",
        ArgMinOptions,
        cost=costs.per_input,
        precision=UNROUNDED,
        rereads=True,
        batch=Batch.AXES,
        scales=EQUAL,
    ),
    OperatorRecord("CUMSUM", CumsumOptions, cost=costs.per_input, precision=SUM),
    OperatorRecord(
        "MEAN", ReducerOptions, cost=costs.per_input, precision=SUM, batch=Batch.AXES, scales=FREE
    ),
    OperatorRecord("REDUCE_ALL", ReducerOptions, cost=costs.per_input),
    OperatorRecord("REDUCE_ANY", ReducerOptions, cost=costs.per_input),
    OperatorRecord(
        "REDUCE_MAX",
        ReducerOptions,
        cost=costs.per_input,
        precision=MOVED,
        batch=Batch.AXES,
        scales=EQUAL,
    ),
    OperatorRecord(
        "REDUCE_MIN",
        ReducerOptions,
        cost=costs.per_input,
        precision=MOVED,
        batch=Batch.AXES,
        scales=EQUAL,
    ),
    OperatorRecord("REDUCE_PROD", ReducerOptions, cost=costs.per_input, precision=SUM, scales=FREE),
    OperatorRecord(
        "SUM", ReducerOptions, cost=costs.per_input, precision=SUM, batch=Batch.AXES, scales=FREE
    ),
)
