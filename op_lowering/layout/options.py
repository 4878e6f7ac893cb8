"""Options and records of operators that move elements."""

import numpy as np

from jaxdelegate.op_lowering.records import c_struct as c
from jaxdelegate.op_lowering.records import costs
from jaxdelegate.op_lowering.records.custom import CustomOptions
from jaxdelegate.op_lowering.records.enums import ActivationFunctionType
from jaxdelegate.op_lowering.records.operator import (
    WIDE_OR_INT16,
    WIDE_OR_UINT16,
    Batch,
    OperatorRecord,
    Result,
    Scales,
    table,
)
from jaxdelegate.op_lowering.records.record import Record


class ConcatenationOptions(Record):
    """Table `ConcatenationOptions`: CONCATENATION."""

    axis: int = 0
    fused_activation_function: ActivationFunctionType = ActivationFunctionType.NONE


class SpaceToDepthOptions(Record):
    """Table `SpaceToDepthOptions`: SPACE_TO_DEPTH."""

    block_size: int = 0


class BatchToSpaceNDOptions(Record):
    """Table `BatchToSpaceNDOptions`: BATCH_TO_SPACE_ND."""


class SpaceToBatchNDOptions(Record):
    """Table `SpaceToBatchNDOptions`: SPACE_TO_BATCH_ND."""


class TransposeOptions(Record):
    """Table `TransposeOptions`: TRANSPOSE."""


class TileOptions(Record):
    """Table `TileOptions`: TILE."""


class PackOptions(Record):
    """Table `PackOptions`: PACK."""

    values_count: int = 0
    axis: int = 0


class ReverseV2Options(Record):
    """Table `ReverseV2Options`: REVERSE_V2."""


class DepthToSpaceOptions(Record):
    """Table `DepthToSpaceOptions`: DEPTH_TO_SPACE."""

    block_size: int = 0


RECORDS = table(
    *(
        OperatorRecord(
            name,
            options,
            cost=costs.movement,
            result=Result.MOVED,
            scales=Scales.EQUAL,
            ignores_scales=WIDE_OR_UINT16,
        )
        for name, options in (
            ("BATCH_TO_SPACE_ND", BatchToSpaceNDOptions),
            ("SPACE_TO_BATCH_ND", SpaceToBatchNDOptions),
        )
    ),
    OperatorRecord(
        "CONCATENATION",
        ConcatenationOptions,
        cost=costs.movement,
        struct={"axis": c.INT, "fused_activation_function": c.ACTIVATION},
        result=Result.MOVED,
        batch=Batch.CONCATENATED,
        scales=Scales.EQUAL,
        ignores_scales=WIDE_OR_INT16,
        rescales=frozenset([np.dtype(np.uint8)]),
    ),
    *(
        OperatorRecord(
            name,
            options,
            cost=costs.movement,
            struct={"block_size": c.INT},
            result=Result.MOVED,
            batch=Batch.FIRST_INPUT,
            scales=Scales.EQUAL,
        )
        for name, options in (
            ("DEPTH_TO_SPACE", DepthToSpaceOptions),
            ("SPACE_TO_DEPTH", SpaceToDepthOptions),
        )
    ),
    OperatorRecord(
        "PACK",
        PackOptions,
        cost=costs.movement,
        struct={"values_count": c.INT, "axis": c.INT},
        result=Result.MOVED,
        scales=Scales.EQUAL,
    ),
    OperatorRecord(
        "REVERSE_V2",
        ReverseV2Options,
        cost=costs.movement,
        result=Result.MOVED,
        scales=Scales.EQUAL,
    ),
    OperatorRecord(
        "Roll", CustomOptions, cost=costs.movement, result=Result.MOVED, scales=Scales.EQUAL
    ),
    OperatorRecord(
        "TILE", TileOptions, cost=costs.movement, result=Result.MOVED, scales=Scales.EQUAL
    ),
    OperatorRecord(
        "TRANSPOSE",
        TransposeOptions,
        cost=costs.movement,
        result=Result.MOVED,
        batch=Batch.PERMUTATION,
        scales=Scales.EQUAL,
    ),
)
