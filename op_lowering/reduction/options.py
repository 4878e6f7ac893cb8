"""Options and records of reductions."""

import functools

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


_fold = functools.partial(OperatorRecord, cost=costs.per_input)
_along_axes = functools.partial(_fold, batch=Batch.AXES)
_find = functools.partial(_along_axes, precision=UNROUNDED, rereads=True, scales=EQUAL)
RECORDS = table(
    _find("ARG_MAX", ArgMaxOptions),
    _find("ARG_MIN", ArgMinOptions),
    _fold("CUMSUM", CumsumOptions, precision=SUM),
    _along_axes("MEAN", ReducerOptions, precision=SUM, scales=FREE),
    _fold("REDUCE_ALL", ReducerOptions),
    _fold("REDUCE_ANY", ReducerOptions),
    _along_axes("REDUCE_MAX", ReducerOptions, precision=MOVED, scales=EQUAL),
    _along_axes("REDUCE_MIN", ReducerOptions, precision=MOVED, scales=EQUAL),
    _fold("REDUCE_PROD", ReducerOptions, precision=SUM, scales=FREE),
    _along_axes("SUM", ReducerOptions, precision=SUM, scales=FREE),
)
