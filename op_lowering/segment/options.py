"""Options and records of segment reductions."""

from jaxdelegate.op_lowering.records import costs
from jaxdelegate.op_lowering.records.operator import OperatorRecord, table
from jaxdelegate.op_lowering.records.record import Record


class SegmentSumOptions(Record):
    """Table `SegmentSumOptions`: SEGMENT_SUM."""


class UnsortedSegmentProdOptions(Record):
    """Table `UnsortedSegmentProdOptions`: UNSORTED_SEGMENT_PROD."""


class UnsortedSegmentMaxOptions(Record):
    """Table `UnsortedSegmentMaxOptions`: UNSORTED_SEGMENT_MAX."""


class UnsortedSegmentMinOptions(Record):
    """Table `UnsortedSegmentMinOptions`: UNSORTED_SEGMENT_MIN."""


class UnsortedSegmentSumOptions(Record):
    """Table `UnsortedSegmentSumOptions`: UNSORTED_SEGMENT_SUM."""


RECORDS = table(
    OperatorRecord("SEGMENT_SUM", SegmentSumOptions, cost=costs.per_input),
    OperatorRecord("UNSORTED_SEGMENT_MAX", UnsortedSegmentMaxOptions, cost=costs.per_input),
    OperatorRecord("UNSORTED_SEGMENT_MIN", UnsortedSegmentMinOptions, cost=costs.per_input),
    OperatorRecord("UNSORTED_SEGMENT_PROD", UnsortedSegmentProdOptions, cost=costs.per_input),
    OperatorRecord("UNSORTED_SEGMENT_SUM", UnsortedSegmentSumOptions, cost=costs.per_input),
)
