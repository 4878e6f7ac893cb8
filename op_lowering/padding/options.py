"""Options and records of padding."""

from jaxdelegate.op_lowering.records import c_struct as c
from jaxdelegate.op_lowering.records import costs
from jaxdelegate.op_lowering.records.enums import MirrorPadMode
from jaxdelegate.op_lowering.records.operator import (
    WIDE_OR_UINT16,
    Batch,
    OperatorRecord,
    Result,
    Scales,
    table,
)
from jaxdelegate.op_lowering.records.record import Record


class PadOptions(Record):
    """Table `PadOptions`: PAD."""


class PadV2Options(Record):
    """Table `PadV2Options`: PADV2."""


class MirrorPadOptions(Record):
    mode: MirrorPadMode = MirrorPadMode.REFLECT


RECORDS = table(
    OperatorRecord(
        "MIRROR_PAD",
        MirrorPadOptions,
        cost=costs.movement,
        struct={"mode": c.after_unknown(MirrorPadMode)},
        result=Result.MOVED,
        batch=Batch.EDGES,
        scales=Scales.EQUAL,
        ignores_scales=WIDE_OR_UINT16,
    ),
    *(
        OperatorRecord(
            name,
            options,
            cost=costs.movement,
            result=Result.MOVED,
            materializes_integers=True,
            batch=Batch.EDGES,
            scales=Scales.EQUAL,
        )
        for name, options in (("PAD", PadOptions), ("PADV2", PadV2Options))
    ),
)
