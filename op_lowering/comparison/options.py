"""Options and records of comparisons, logic and selection."""

from jaxdelegate.op_lowering.records import costs
from jaxdelegate.op_lowering.records.operator import (
    WIDE_OR_INT16,
    OperatorRecord,
    Result,
    Scales,
    table,
)
from jaxdelegate.op_lowering.records.record import Record


class LessOptions(Record):
    """Table `LessOptions`: LESS."""


class GreaterOptions(Record):
    """Table `GreaterOptions`: GREATER."""


class GreaterEqualOptions(Record):
    """Table `GreaterEqualOptions`: GREATER_EQUAL."""


class LessEqualOptions(Record):
    """Table `LessEqualOptions`: LESS_EQUAL."""


class EqualOptions(Record):
    """Table `EqualOptions`: EQUAL."""


class NotEqualOptions(Record):
    """Table `NotEqualOptions`: NOT_EQUAL."""


class LogicalOrOptions(Record):
    """Table `LogicalOrOptions`: LOGICAL_OR."""


class LogicalAndOptions(Record):
    """Table `LogicalAndOptions`: LOGICAL_AND."""


class LogicalNotOptions(Record):
    """Table `LogicalNotOptions`: LOGICAL_NOT."""


class SelectOptions(Record):
    """Table `SelectOptions`: SELECT."""


class SelectV2Options(Record):
    """Table `SelectV2Options`: SELECT_V2."""


RECORDS = table(
    *(
        OperatorRecord(
            name,
            options,
            cost=costs.elementwise,
            is_elementwise=True,
            reads_unrounded=True,
            scales=Scales.FREE,
        )
        for name, options in (("EQUAL", EqualOptions), ("NOT_EQUAL", NotEqualOptions))
    ),
    *(
        OperatorRecord(
            name,
            options,
            cost=costs.elementwise,
            is_elementwise=True,
            reads_unrounded=True,
            scales=Scales.FREE,
            ignores_scales=WIDE_OR_INT16,
        )
        for name, options in (
            ("GREATER", GreaterOptions),
            ("GREATER_EQUAL", GreaterEqualOptions),
            ("LESS", LessOptions),
            ("LESS_EQUAL", LessEqualOptions),
        )
    ),
    OperatorRecord("LOGICAL_AND", LogicalAndOptions, cost=costs.elementwise, is_elementwise=True),
    OperatorRecord("LOGICAL_NOT", LogicalNotOptions, cost=costs.elementwise, is_elementwise=True),
    OperatorRecord("LOGICAL_OR", LogicalOrOptions, cost=costs.elementwise, is_elementwise=True),
    *(
        OperatorRecord(
            name,
            options,
            cost=costs.elementwise,
            is_elementwise=True,
            result=Result.MOVED,
            scales=Scales.EQUAL,
        )
        for name, options in (("SELECT", SelectOptions), ("SELECT_V2", SelectV2Options))
    ),
)
