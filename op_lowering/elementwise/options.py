"""Options and records of elementwise arithmetic."""

from jaxdelegate.op_lowering.records import c_struct as c
from jaxdelegate.op_lowering.records import costs
from jaxdelegate.op_lowering.records.enums import ActivationFunctionType
from jaxdelegate.op_lowering.records.operator import (
    INTEGERS,
    Float16,
    OperatorRecord,
    Result,
    Scales,
    table,
)
from jaxdelegate.op_lowering.records.record import Record


class AddOptions(Record):
    """Table `AddOptions`: ADD."""

    fused_activation_function: ActivationFunctionType = ActivationFunctionType.NONE
    pot_scale_int16: bool = True


class MulOptions(Record):
    """Table `MulOptions`: MUL."""

    fused_activation_function: ActivationFunctionType = ActivationFunctionType.NONE


class SubOptions(Record):
    """Table `SubOptions`: SUB."""

    fused_activation_function: ActivationFunctionType = ActivationFunctionType.NONE
    pot_scale_int16: bool = True


class DivOptions(Record):
    """Table `DivOptions`: DIV."""

    fused_activation_function: ActivationFunctionType = ActivationFunctionType.NONE


class ExpOptions(Record):
    """Table `ExpOptions`: EXP."""


class MaximumMinimumOptions(Record):
    """Table `MaximumMinimumOptions`: MAXIMUM, MINIMUM."""


class NegOptions(Record):
    """Table `NegOptions`: NEG."""


class PowOptions(Record):
    """Table `PowOptions`: POW."""


class FloorDivOptions(Record):
    """Table `FloorDivOptions`: FLOOR_DIV."""


class SquareOptions(Record):
    """Table `SquareOptions`: SQUARE."""


class FloorModOptions(Record):
    """Table `FloorModOptions`: FLOOR_MOD."""


class SquaredDifferenceOptions(Record):
    """Table `SquaredDifferenceOptions`: SQUARED_DIFFERENCE."""


class AbsOptions(Record):
    """Table `AbsOptions`: ABS."""


class AddNOptions(Record):
    """Table `AddNOptions`: ADD_N."""


class CosOptions(Record):
    """Table `CosOptions`: COS."""


class ATan2Options(Record):
    """Table `ATan2Options`: ATAN2."""


class SignOptions(Record):
    """Table `SignOptions`: SIGN."""


class BitcastOptions(Record):
    """Table `BitcastOptions`: BITCAST."""


class BitwiseXorOptions(Record):
    """Table `BitwiseXorOptions`: BITWISE_XOR."""


class RightShiftOptions(Record):
    """Table `RightShiftOptions`: RIGHT_SHIFT."""


class ZerosLikeOptions(Record):
    """Table `ZerosLikeOptions`: ZEROS_LIKE."""


RECORDS = table(
    OperatorRecord(
        "ABS",
        AbsOptions,
        cost=costs.elementwise,
        is_elementwise=True,
        result=Result.MOVED,
        scales=Scales.FREE,
    ),
    *(
        OperatorRecord(
            name,
            options,
            cost=costs.elementwise,
            struct=c.ADDED,
            is_elementwise=True,
            result=Result.REDUCED,
            scales=Scales.FREE,
        )
        for name, options in (("ADD", AddOptions), ("SUB", SubOptions))
    ),
    OperatorRecord("ADD_N", AddNOptions, cost=costs.add_n, result=Result.REDUCED),
    OperatorRecord("ATAN2", ATan2Options, cost=costs.transcendental, is_elementwise=True),
    OperatorRecord("BITCAST", BitcastOptions, cost=costs.elementwise, ignores_scales=INTEGERS),
    OperatorRecord(
        "BITWISE_XOR",
        BitwiseXorOptions,
        cost=costs.elementwise,
        is_elementwise=True,
        ignores_scales=INTEGERS,
    ),
    OperatorRecord("CEIL", cost=costs.elementwise, is_elementwise=True, reads_unrounded=True),
    OperatorRecord("COMPLEX_ABS", cost=costs.elementwise, is_elementwise=True),
    OperatorRecord(
        "COS", CosOptions, cost=costs.transcendental, is_elementwise=True, reads_unrounded=True
    ),
    OperatorRecord(
        "DIV",
        DivOptions,
        cost=costs.elementwise,
        struct=c.ACTIVATED,
        is_elementwise=True,
        reads_unrounded=True,
        scales=Scales.FREE,
    ),
    OperatorRecord(
        "EXP",
        ExpOptions,
        cost=costs.transcendental,
        is_elementwise=True,
        reads_unrounded=True,
        float16=Float16.GROWTH,
        scales=Scales.FREE,
    ),
    OperatorRecord("FLOOR", cost=costs.elementwise, is_elementwise=True, reads_unrounded=True),
    *(
        OperatorRecord(
            name,
            options,
            cost=costs.elementwise,
            is_elementwise=True,
            reads_unrounded=True,
            ignores_scales=INTEGERS,
        )
        for name, options in (("FLOOR_DIV", FloorDivOptions), ("FLOOR_MOD", FloorModOptions))
    ),
    OperatorRecord("IMAG", cost=costs.movement),
    *(
        OperatorRecord(
            name,
            cost=costs.transcendental,
            is_elementwise=True,
            reads_unrounded=True,
            scales=Scales.FREE,
        )
        for name in ("LOG", "RSQRT", "SQRT")
    ),
    *(
        OperatorRecord(
            name,
            MaximumMinimumOptions,
            cost=costs.elementwise,
            is_elementwise=True,
            result=Result.MOVED,
            scales=Scales.EQUAL,
            ignores_scales=INTEGERS,
        )
        for name in ("MAXIMUM", "MINIMUM")
    ),
    OperatorRecord(
        "MUL",
        MulOptions,
        cost=costs.elementwise,
        struct=c.ACTIVATED,
        is_elementwise=True,
        result=Result.REDUCED,
        scales=Scales.FREE,
    ),
    OperatorRecord(
        "NEG",
        NegOptions,
        cost=costs.elementwise,
        is_elementwise=True,
        result=Result.MOVED,
        ignores_scales=INTEGERS,
    ),
    OperatorRecord(
        "POW",
        PowOptions,
        cost=costs.transcendental,
        is_elementwise=True,
        reads_unrounded=True,
        float16=Float16.GROWTH,
    ),
    OperatorRecord("REAL", cost=costs.movement),
    OperatorRecord(
        "RIGHT_SHIFT", RightShiftOptions, cost=costs.elementwise, ignores_scales=INTEGERS
    ),
    OperatorRecord("ROUND", cost=costs.elementwise, is_elementwise=True, reads_unrounded=True),
    OperatorRecord("SIGN", SignOptions, cost=costs.elementwise, is_elementwise=True),
    OperatorRecord("SIN", cost=costs.transcendental, is_elementwise=True, reads_unrounded=True),
    OperatorRecord(
        "SQUARE", SquareOptions, cost=costs.elementwise, is_elementwise=True, float16=Float16.GROWTH
    ),
    OperatorRecord(
        "SQUARED_DIFFERENCE",
        SquaredDifferenceOptions,
        cost=costs.elementwise,
        is_elementwise=True,
        scales=Scales.FREE,
    ),
    OperatorRecord(
        "ZEROS_LIKE", ZerosLikeOptions, cost=costs.movement, reads_values=False, scales=Scales.EQUAL
    ),
)
