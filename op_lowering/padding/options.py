"""Options and records of padding."""

from jaxdelegate.op_lowering.records.enums import MirrorPadMode
from jaxdelegate.op_lowering.records.operator import (
    WIDE_OR_UINT16,
    Batch,
    Scales,
    Scaling,
    moves,
    table,
)
from jaxdelegate.op_lowering.records.record import Record


class MirrorPadOptions(Record):
    mode: MirrorPadMode = MirrorPadMode.REFLECT


RECORDS = table(
    moves(
        "MIRROR_PAD",
        MirrorPadOptions,
        batch=Batch.EDGES,
        scales=Scaling(Scales.EQUAL, ignored=WIDE_OR_UINT16),
    ),
    moves("PAD", materializes_integers=True, batch=Batch.EDGES),
    moves("PADV2", materializes_integers=True, batch=Batch.EDGES),
)
