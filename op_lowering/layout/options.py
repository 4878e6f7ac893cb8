"""Options and records of operators that move elements."""

import functools

import numpy as np

from jaxdelegate.op_lowering.records.custom import CustomOptions
from jaxdelegate.op_lowering.records.enums import ActivationFunctionType
from jaxdelegate.op_lowering.records.operator import (
    WIDE_OR_INT16,
    WIDE_OR_UINT16,
    Batch,
    Scales,
    Scaling,
    moves,
    table,
)
from jaxdelegate.op_lowering.records.record import Record


class ConcatenationOptions(Record):
    axis: int = 0
    fused_activation_function: ActivationFunctionType = ActivationFunctionType.NONE


class SpaceToDepthOptions(Record):
    block_size: int = 0


class PackOptions(Record):
    values_count: int = 0
    axis: int = 0


class DepthToSpaceOptions(Record):
    block_size: int = 0


_blocks = functools.partial(moves, scales=Scaling(Scales.EQUAL, ignored=WIDE_OR_UINT16))
_JOINED = Scaling(Scales.EQUAL, ignored=WIDE_OR_INT16, rescaled=frozenset([np.dtype(np.uint8)]))
RECORDS = table(
    _blocks("BATCH_TO_SPACE_ND"),
    moves("CONCATENATION", ConcatenationOptions, batch=Batch.CONCATENATED, scales=_JOINED),
    moves("DEPTH_TO_SPACE", DepthToSpaceOptions, batch=Batch.FIRST_INPUT),
    moves("PACK", PackOptions),
    moves("REVERSE_V2"),
    moves("Roll", CustomOptions),
    _blocks("SPACE_TO_BATCH_ND"),
    moves("SPACE_TO_DEPTH", SpaceToDepthOptions, batch=Batch.FIRST_INPUT),
    moves("TILE"),
    moves("TRANSPOSE", batch=Batch.PERMUTATION),
)
