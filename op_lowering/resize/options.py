"""Options and records of image resizing."""

from jaxdelegate.op_lowering.records import c_struct as c
from jaxdelegate.op_lowering.records import costs
from jaxdelegate.op_lowering.records.operator import Batch, OperatorRecord, Result, Scales, table
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
        struct=c.RESIZE,
        result=Result.REDUCED,
        rereads=True,
        batch=Batch.FIRST_INPUT,
        scales=Scales.EQUAL,
    ),
    OperatorRecord(
        "RESIZE_NEAREST_NEIGHBOR",
        ResizeNearestNeighborOptions,
        cost=costs.movement,
        struct=c.RESIZE,
        result=Result.MOVED,
        batch=Batch.FIRST_INPUT,
        scales=Scales.EQUAL,
    ),
)
