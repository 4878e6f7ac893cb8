"""Options and records of comparisons, logic and selection."""

from jaxdelegate.op_lowering.records.operator import (
    EQUAL,
    FREE,
    MOVED,
    UNROUNDED,
    WIDE_OR_INT16,
    Scales,
    Scaling,
    elementwise,
    table,
)

RECORDS = table(
    elementwise("EQUAL", precision=UNROUNDED, scales=FREE),
    elementwise("GREATER", precision=UNROUNDED, scales=Scaling(Scales.FREE, ignored=WIDE_OR_INT16)),
    elementwise(
        "GREATER_EQUAL", precision=UNROUNDED, scales=Scaling(Scales.FREE, ignored=WIDE_OR_INT16)
    ),
    elementwise("LESS", precision=UNROUNDED, scales=Scaling(Scales.FREE, ignored=WIDE_OR_INT16)),
    elementwise(
        "LESS_EQUAL", precision=UNROUNDED, scales=Scaling(Scales.FREE, ignored=WIDE_OR_INT16)
    ),
    elementwise("LOGICAL_AND"),
    elementwise("LOGICAL_NOT"),
    elementwise("LOGICAL_OR"),
    elementwise("NOT_EQUAL", precision=UNROUNDED, scales=FREE),
    elementwise("SELECT", precision=MOVED, scales=EQUAL),
    elementwise("SELECT_V2", precision=MOVED, scales=EQUAL),
)
