"""Options and records of TOPK_V2 and BUCKETIZE."""

from jaxdelegate.op_lowering.records import c_struct as c
from jaxdelegate.op_lowering.records import costs
from jaxdelegate.op_lowering.records.operator import OperatorRecord, Scales, table
from jaxdelegate.op_lowering.records.record import Record


class BucketizeOptions(Record):
    """Table `BucketizeOptions`: BUCKETIZE."""

    boundaries: tuple[float, ...] = ()


class TopKV2Options(Record):
    """Table `TopKV2Options`: TOPK_V2."""


RECORDS = table(
    OperatorRecord(
        "BUCKETIZE", BucketizeOptions, cost=costs.per_input, struct={"boundaries": c.FLOATS}
    ),
    OperatorRecord(
        "TOPK_V2", TopKV2Options, cost=costs.top_k, reads_unrounded=True, scales=Scales.EQUAL
    ),
)
