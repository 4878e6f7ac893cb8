"""Options and records of comparisons, logic and selection."""

import functools

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

_compare = functools.partial(elementwise, precision=UNROUNDED, scales=FREE)
_order = functools.partial(_compare, scales=Scaling(Scales.FREE, ignored=WIDE_OR_INT16))
RECORDS = table(
    _compare("EQUAL"),
    _order("GREATER"),
    _order("GREATER_EQUAL"),
    _order("LESS"),
    _order("LESS_EQUAL"),
    elementwise("LOGICAL_AND"),
    elementwise("LOGICAL_NOT"),
    elementwise("LOGICAL_OR"),
    _compare("NOT_EQUAL"),
    elementwise("SELECT", precision=MOVED, scales=EQUAL),
    elementwise("SELECT_V2", precision=MOVED, scales=EQUAL),
)
