"""Options and records of slices and splits."""

from jaxdelegate.op_lowering.records import c_struct as c
from jaxdelegate.op_lowering.records import costs
from jaxdelegate.op_lowering.records.operator import OperatorRecord, Result, Scales, table
from jaxdelegate.op_lowering.records.record import Record


class StridedSliceOptions(Record):
    begin_mask: int = 0
    end_mask: int = 0
    ellipsis_mask: int = 0
    new_axis_mask: int = 0
    shrink_axis_mask: int = 0
    offset: bool = False


class SplitOptions(Record):
    num_splits: int = 0


class SliceOptions(Record):
    """Table `SliceOptions`: SLICE."""


class UnpackOptions(Record):
    num: int = 0
    axis: int = 0


class SplitVOptions(Record):
    num_splits: int = 0


class DynamicUpdateSliceOptions(Record):
    """Table `DynamicUpdateSliceOptions`: DYNAMIC_UPDATE_SLICE."""


RECORDS = table(
    OperatorRecord(
        "DYNAMIC_UPDATE_SLICE",
        DynamicUpdateSliceOptions,
        cost=costs.movement,
        result=Result.MOVED,
        scales=Scales.EQUAL,
    ),
    OperatorRecord(
        "SLICE",
        SliceOptions,
        cost=costs.movement,
        result=Result.MOVED,
        picks_from=0,
        scales=Scales.EQUAL,
    ),
    OperatorRecord(
        "SPLIT",
        SplitOptions,
        cost=costs.movement,
        struct=c.SPLIT,
        result=Result.MOVED,
        scales=Scales.EQUAL,
    ),
    OperatorRecord(
        "SPLIT_V",
        SplitVOptions,
        cost=costs.movement,
        struct=c.SPLIT,
        result=Result.MOVED,
        scales=Scales.EQUAL,
    ),
    OperatorRecord(
        "STRIDED_SLICE",
        StridedSliceOptions,
        cost=costs.movement,
        struct={
            "begin_mask": c.INT,
            "end_mask": c.INT,
            "ellipsis_mask": c.INT,
            "new_axis_mask": c.INT,
            "shrink_axis_mask": c.INT,
            "offset": c.BOOL,
        },
        result=Result.MOVED,
        picks_from=0,
        scales=Scales.EQUAL,
    ),
    OperatorRecord(
        "UNPACK",
        UnpackOptions,
        cost=costs.movement,
        struct={"num": c.INT, "axis": c.INT},
        result=Result.MOVED,
        scales=Scales.EQUAL,
    ),
)
