"""Options and records of segment reductions."""

from jaxdelegate.op_lowering.records import costs
from jaxdelegate.op_lowering.records.operator import OperatorRecord, table

RECORDS = table(
    OperatorRecord("SEGMENT_SUM", cost=costs.per_input),
    OperatorRecord("UNSORTED_SEGMENT_MAX", cost=costs.per_input),
    OperatorRecord("UNSORTED_SEGMENT_MIN", cost=costs.per_input),
    OperatorRecord("UNSORTED_SEGMENT_PROD", cost=costs.per_input),
    OperatorRecord("UNSORTED_SEGMENT_SUM", cost=costs.per_input),
)
