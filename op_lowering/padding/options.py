"""Options and records of padding."""

from jaxdelegate.op_lowering.records import costs
from jaxdelegate.op_lowering.records.enums import MirrorPadMode
from jaxdelegate.op_lowering.records.operator import (
    MOVED,
    WIDE_OR_UINT16,
    Batch,
    OperatorRecord,
    Scales,
    Scaling,
    moves,
    table,
)
from jaxdelegate.op_lowering.records.record import Record


class MirrorPadOptions(Record):
    mode: MirrorPadMode = MirrorPadMode.REFLECT


RECORDS = table(
    OperatorRecord(
        "MIRROR_PAD",
        MirrorPadOptions,
        cost=costs.movement,
        precision=MOVED,
        batch=Batch.EDGES,
        scales=Scaling(Scales.EQUAL, ignored=WIDE_OR_UINT16),
    ),
    moves("PAD", materializes_integers=True, batch=Batch.EDGES),
    moves("PADV2", materializes_integers=True, batch=Batch.EDGES),
)
