"""Options tables, field names as in schema.fbs: arithmetic, comparisons, reductions."""

from jaxdelegate.op_lowering.options import c_struct as c
from jaxdelegate.op_lowering.options import costs
from jaxdelegate.op_lowering.options.enums import ActivationFunctionType, TensorType
from jaxdelegate.op_lowering.options.operator import (
    INTEGERS,
    WIDE_OR_INT16,
    Batch,
    Float16,
    OperatorRecord,
    Result,
    Scales,
    table,
)
from jaxdelegate.op_lowering.options.record import Record


class AddOptions(Record):
    """Table `AddOptions`: ADD."""

    fused_activation_function: ActivationFunctionType = ActivationFunctionType.NONE
    pot_scale_int16: bool = True


class MulOptions(Record):
    """Table `MulOptions`: MUL."""

    fused_activation_function: ActivationFunctionType = ActivationFunctionType.NONE


class ReducerOptions(Record):
    """Table `ReducerOptions`: MEAN, SUM and the REDUCE_ operators."""

    keep_dims: bool = False


class SubOptions(Record):
    """Table `SubOptions`: SUB."""

    fused_activation_function: ActivationFunctionType = ActivationFunctionType.NONE
    pot_scale_int16: bool = True


class DivOptions(Record):
    """Table `DivOptions`: DIV."""

    fused_activation_function: ActivationFunctionType = ActivationFunctionType.NONE


class ExpOptions(Record):
    """Table `ExpOptions`: EXP."""


class CastOptions(Record):
    """Table `CastOptions`: CAST."""

    in_data_type: TensorType = TensorType.FLOAT32
    out_data_type: TensorType = TensorType.FLOAT32


class MaximumMinimumOptions(Record):
    """Table `MaximumMinimumOptions`: MAXIMUM, MINIMUM."""


class LessOptions(Record):
    """Table `LessOptions`: LESS."""


class NegOptions(Record):
    """Table `NegOptions`: NEG."""


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


class PowOptions(Record):
    """Table `PowOptions`: POW."""


class LogicalOrOptions(Record):
    """Table `LogicalOrOptions`: LOGICAL_OR."""


class LogicalAndOptions(Record):
    """Table `LogicalAndOptions`: LOGICAL_AND."""


class LogicalNotOptions(Record):
    """Table `LogicalNotOptions`: LOGICAL_NOT."""


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


class SegmentSumOptions(Record):
    """Table `SegmentSumOptions`: SEGMENT_SUM."""


class CumsumOptions(Record):
    """Table `CumsumOptions`: CUMSUM."""

    exclusive: bool = False
    reverse: bool = False


class BucketizeOptions(Record):
    """Table `BucketizeOptions`: BUCKETIZE."""

    boundaries: tuple[float, ...] = ()


class UnsortedSegmentProdOptions(Record):
    """Table `UnsortedSegmentProdOptions`: UNSORTED_SEGMENT_PROD."""


class UnsortedSegmentMaxOptions(Record):
    """Table `UnsortedSegmentMaxOptions`: UNSORTED_SEGMENT_MAX."""


class UnsortedSegmentMinOptions(Record):
    """Table `UnsortedSegmentMinOptions`: UNSORTED_SEGMENT_MIN."""


class UnsortedSegmentSumOptions(Record):
    """Table `UnsortedSegmentSumOptions`: UNSORTED_SEGMENT_SUM."""


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


RECORDS = table(
    OperatorRecord(
        "ABS",
        AbsOptions,
        cost=costs.elementwise,
        is_elementwise=True,
        result=Result.MOVED,
        scales=Scales.FREE,
    ),
    OperatorRecord(
        "ADD",
        AddOptions,
        cost=costs.elementwise,
        struct=c.ADDED,
        is_elementwise=True,
        result=Result.REDUCED,
        scales=Scales.FREE,
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
    OperatorRecord(
        "BUCKETIZE", BucketizeOptions, cost=costs.per_input, struct={"boundaries": c.FLOATS}
    ),
    OperatorRecord(
        "CAST",
        CastOptions,
        cost=costs.elementwise,
        struct={"in_data_type": c.TYPE, "out_data_type": c.TYPE},
        is_elementwise=True,
        reads_unrounded=True,
        ignores_scales=INTEGERS,
    ),
    OperatorRecord("CEIL", cost=costs.elementwise, is_elementwise=True, reads_unrounded=True),
    OperatorRecord("COMPLEX_ABS", cost=costs.elementwise, is_elementwise=True),
    OperatorRecord(
        "COS", CosOptions, cost=costs.transcendental, is_elementwise=True, reads_unrounded=True
    ),
    OperatorRecord(
        "CUMSUM",
        CumsumOptions,
        cost=costs.per_input,
        struct={"exclusive": c.BOOL, "reverse": c.BOOL},
        float16=Float16.SUM,
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
        "EQUAL",
        EqualOptions,
        cost=costs.elementwise,
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
    OperatorRecord(
        "FLOOR_DIV",
        FloorDivOptions,
        cost=costs.elementwise,
        is_elementwise=True,
        reads_unrounded=True,
        ignores_scales=INTEGERS,
    ),
    OperatorRecord(
        "FLOOR_MOD",
        FloorModOptions,
        cost=costs.elementwise,
        is_elementwise=True,
        reads_unrounded=True,
        ignores_scales=INTEGERS,
    ),
    OperatorRecord(
        "GREATER",
        GreaterOptions,
        cost=costs.elementwise,
        is_elementwise=True,
        reads_unrounded=True,
        scales=Scales.FREE,
        ignores_scales=WIDE_OR_INT16,
    ),
    OperatorRecord(
        "GREATER_EQUAL",
        GreaterEqualOptions,
        cost=costs.elementwise,
        is_elementwise=True,
        reads_unrounded=True,
        scales=Scales.FREE,
        ignores_scales=WIDE_OR_INT16,
    ),
    OperatorRecord("IMAG", cost=costs.movement),
    OperatorRecord(
        "LESS",
        LessOptions,
        cost=costs.elementwise,
        is_elementwise=True,
        reads_unrounded=True,
        scales=Scales.FREE,
        ignores_scales=WIDE_OR_INT16,
    ),
    OperatorRecord(
        "LESS_EQUAL",
        LessEqualOptions,
        cost=costs.elementwise,
        is_elementwise=True,
        reads_unrounded=True,
        scales=Scales.FREE,
        ignores_scales=WIDE_OR_INT16,
    ),
    OperatorRecord(
        "LOG",
        cost=costs.transcendental,
        is_elementwise=True,
        reads_unrounded=True,
        scales=Scales.FREE,
    ),
    OperatorRecord("LOGICAL_AND", LogicalAndOptions, cost=costs.elementwise, is_elementwise=True),
    OperatorRecord("LOGICAL_NOT", LogicalNotOptions, cost=costs.elementwise, is_elementwise=True),
    OperatorRecord("LOGICAL_OR", LogicalOrOptions, cost=costs.elementwise, is_elementwise=True),
    OperatorRecord(
        "MAXIMUM",
        MaximumMinimumOptions,
        cost=costs.elementwise,
        is_elementwise=True,
        result=Result.MOVED,
        scales=Scales.EQUAL,
        ignores_scales=INTEGERS,
    ),
    OperatorRecord(
        "MEAN",
        ReducerOptions,
        cost=costs.per_input,
        struct=c.REDUCER,
        float16=Float16.SUM,
        batch=Batch.AXES,
        scales=Scales.FREE,
    ),
    OperatorRecord(
        "MINIMUM",
        MaximumMinimumOptions,
        cost=costs.elementwise,
        is_elementwise=True,
        result=Result.MOVED,
        scales=Scales.EQUAL,
        ignores_scales=INTEGERS,
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
        "NOT_EQUAL",
        NotEqualOptions,
        cost=costs.elementwise,
        is_elementwise=True,
        reads_unrounded=True,
        scales=Scales.FREE,
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
    OperatorRecord("REDUCE_ALL", ReducerOptions, cost=costs.per_input, struct=c.REDUCER),
    OperatorRecord("REDUCE_ANY", ReducerOptions, cost=costs.per_input, struct=c.REDUCER),
    OperatorRecord(
        "REDUCE_MAX",
        ReducerOptions,
        cost=costs.per_input,
        struct=c.REDUCER,
        result=Result.MOVED,
        batch=Batch.AXES,
        scales=Scales.EQUAL,
    ),
    OperatorRecord(
        "REDUCE_MIN",
        ReducerOptions,
        cost=costs.per_input,
        struct=c.REDUCER,
        result=Result.MOVED,
        batch=Batch.AXES,
        scales=Scales.EQUAL,
    ),
    OperatorRecord(
        "REDUCE_PROD",
        ReducerOptions,
        cost=costs.per_input,
        struct=c.REDUCER,
        float16=Float16.SUM,
        scales=Scales.FREE,
    ),
    OperatorRecord(
        "RIGHT_SHIFT", RightShiftOptions, cost=costs.elementwise, ignores_scales=INTEGERS
    ),
    OperatorRecord("ROUND", cost=costs.elementwise, is_elementwise=True, reads_unrounded=True),
    OperatorRecord(
        "RSQRT",
        cost=costs.transcendental,
        is_elementwise=True,
        reads_unrounded=True,
        scales=Scales.FREE,
    ),
    OperatorRecord("SEGMENT_SUM", SegmentSumOptions, cost=costs.per_input),
    OperatorRecord("SIGN", SignOptions, cost=costs.elementwise, is_elementwise=True),
    OperatorRecord("SIN", cost=costs.transcendental, is_elementwise=True, reads_unrounded=True),
    OperatorRecord(
        "SQRT",
        cost=costs.transcendental,
        is_elementwise=True,
        reads_unrounded=True,
        scales=Scales.FREE,
    ),
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
        "SUB",
        SubOptions,
        cost=costs.elementwise,
        struct=c.ADDED,
        is_elementwise=True,
        result=Result.REDUCED,
        scales=Scales.FREE,
    ),
    OperatorRecord(
        "SUM",
        ReducerOptions,
        cost=costs.per_input,
        struct=c.REDUCER,
        float16=Float16.SUM,
        batch=Batch.AXES,
        scales=Scales.FREE,
    ),
    OperatorRecord("UNSORTED_SEGMENT_MAX", UnsortedSegmentMaxOptions, cost=costs.per_input),
    OperatorRecord("UNSORTED_SEGMENT_MIN", UnsortedSegmentMinOptions, cost=costs.per_input),
    OperatorRecord("UNSORTED_SEGMENT_PROD", UnsortedSegmentProdOptions, cost=costs.per_input),
    OperatorRecord("UNSORTED_SEGMENT_SUM", UnsortedSegmentSumOptions, cost=costs.per_input),
)
