"""Options and records of shape operators."""

from jaxdelegate.op_lowering.records import c_struct as c
from jaxdelegate.op_lowering.records import costs
from jaxdelegate.op_lowering.records.custom import CustomOptions
from jaxdelegate.op_lowering.records.enums import TensorType
from jaxdelegate.op_lowering.records.operator import EQUAL, Batch, OperatorRecord, moves, table
from jaxdelegate.op_lowering.records.record import Record


class ReshapeOptions(Record):
    new_shape: tuple[int, ...] = ()


class SqueezeOptions(Record):
    squeeze_dims: tuple[int, ...] = ()


class ShapeOptions(Record):
    out_type: TensorType = TensorType.FLOAT32


RECORDS = table(
    OperatorRecord("BROADCAST_ARGS", cost=costs.movement),
    moves("BROADCAST_TO"),
    OperatorRecord("BroadcastGradientArgs", CustomOptions, cost=costs.movement),
    moves("EXPAND_DIMS", batch=Batch.FIRST_INPUT),
    OperatorRecord("FILL", cost=costs.movement, scales=EQUAL),
    OperatorRecord("RANGE", cost=costs.movement),
    OperatorRecord("RANK", cost=costs.movement, reads_values=False),
    moves(
        "RESHAPE",
        ReshapeOptions,
        struct={"new_shape": c.counted(c.INT32, 8)},
        batch=Batch.FIRST_INPUT,
    ),
    OperatorRecord("SHAPE", ShapeOptions, cost=costs.movement, reads_values=False, scales=EQUAL),
    moves(
        "SQUEEZE",
        SqueezeOptions,
        struct={"squeeze_dims": c.counted(c.INT32, 8)},
        batch=Batch.FIRST_INPUT,
    ),
)
