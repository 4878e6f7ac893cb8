"""Options and records of image resizing."""

from jaxdelegate.op_lowering.records import costs
from jaxdelegate.op_lowering.records.operator import (
    EQUAL,
    REDUCED,
    Batch,
    OperatorRecord,
    moves,
    table,
)
from jaxdelegate.op_lowering.records.record import Record


class ResizeBilinearOptions(Record):
    align_corners: bool = False
    half_pixel_centers: bool = False


class ResizeNearestNeighborOptions(Record):
    align_corners: bool = False
    half_pixel_centers: bool = False


RECORDS = table(
    OperatorRecord(
        "RESIZE_BILINEAR",
        ResizeBilinearOptions,
        cost=costs.bilinear,
        precision=REDUCED,
        rereads=True,
        batch=Batch.FIRST_INPUT,
        scales=EQUAL,
    ),
    moves("RESIZE_NEAREST_NEIGHBOR", ResizeNearestNeighborOptions, batch=Batch.FIRST_INPUT),
)
