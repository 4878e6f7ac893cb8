"""Options and records of TOPK_V2 and BUCKETIZE."""

from jaxdelegate.op_lowering.records import c_struct as c
from jaxdelegate.op_lowering.records import costs
from jaxdelegate.op_lowering.records.operator import EQUAL, UNROUNDED, OperatorRecord, table
from jaxdelegate.op_lowering.records.record import Record


class BucketizeOptions(Record):
    boundaries: tuple[float, ...] = ()


RECORDS = table(
    OperatorRecord(
        "BUCKETIZE", BucketizeOptions, cost=costs.per_input, struct={"boundaries": c.FLOATS}
    ),
    OperatorRecord("TOPK_V2", cost=costs.top_k, precision=UNROUNDED, scales=EQUAL),
)
