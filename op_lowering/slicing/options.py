"""Options and records of slices and splits."""

from jaxdelegate.op_lowering.records.operator import moves, table
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


class UnpackOptions(Record):
    num: int = 0
    axis: int = 0


class SplitVOptions(Record):
    num_splits: int = 0


RECORDS = table(
    moves("DYNAMIC_UPDATE_SLICE"),
    moves("SLICE", picks_from=0),
    moves("SPLIT", SplitOptions),
    moves("SPLIT_V", SplitVOptions),
    moves("STRIDED_SLICE", StridedSliceOptions, picks_from=0),
    moves("UNPACK", UnpackOptions),
)
