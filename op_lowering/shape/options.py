"""Options and records of shape operators."""

from jaxdelegate.op_lowering.records import c_struct as c
from jaxdelegate.op_lowering.records import costs
from jaxdelegate.op_lowering.records.custom import CustomOptions
from jaxdelegate.op_lowering.records.enums import TensorType
from jaxdelegate.op_lowering.records.operator import Batch, OperatorRecord, Result, Scales, table
from jaxdelegate.op_lowering.records.record import Record


class ReshapeOptions(Record):
    new_shape: tuple[int, ...] = ()


class SqueezeOptions(Record):
    squeeze_dims: tuple[int, ...] = ()


class ExpandDimsOptions(Record):
    """Table `ExpandDimsOptions`: EXPAND_DIMS."""


class ShapeOptions(Record):
    out_type: TensorType = TensorType.FLOAT32


class FillOptions(Record):
    """Table `FillOptions`: FILL."""


class RangeOptions(Record):
    """Table `RangeOptions`: RANGE."""


class RankOptions(Record):
    """Table `RankOptions`: RANK."""


class BroadcastToOptions(Record):
    """Table `BroadcastToOptions`: BROADCAST_TO."""


RECORDS = table(
    OperatorRecord("BROADCAST_ARGS", cost=costs.movement),
    OperatorRecord(
        "BROADCAST_TO",
        BroadcastToOptions,
        cost=costs.movement,
        result=Result.MOVED,
        scales=Scales.EQUAL,
    ),
    OperatorRecord("BroadcastGradientArgs", CustomOptions, cost=costs.movement),
    OperatorRecord(
        "EXPAND_DIMS",
        ExpandDimsOptions,
        cost=costs.movement,
        result=Result.MOVED,
        batch=Batch.FIRST_INPUT,
        scales=Scales.EQUAL,
    ),
    OperatorRecord("FILL", FillOptions, cost=costs.movement, scales=Scales.EQUAL),
    OperatorRecord("RANGE", RangeOptions, cost=costs.movement),
    OperatorRecord("RANK", RankOptions, cost=costs.movement, reads_values=False),
    OperatorRecord(
        "RESHAPE",
        ReshapeOptions,
        cost=costs.movement,
        struct={"new_shape": c.counted(c.INT32, 8)},
        result=Result.MOVED,
        batch=Batch.FIRST_INPUT,
        scales=Scales.EQUAL,
    ),
    OperatorRecord(
        "SHAPE",
        ShapeOptions,
        cost=costs.movement,
        struct={"out_type": c.TYPE},
        reads_values=False,
        scales=Scales.EQUAL,
    ),
    OperatorRecord(
        "SQUEEZE",
        SqueezeOptions,
        cost=costs.movement,
        struct={"squeeze_dims": c.counted(c.INT32, 8)},
        result=Result.MOVED,
        batch=Batch.FIRST_INPUT,
        scales=Scales.EQUAL,
    ),
)
