"""Options tables, field names as in schema.fbs: arithmetic, comparisons, reductions."""

from jaxdelegate.op_lowering.options.enums import ActivationFunctionType, TensorType
from jaxdelegate.op_lowering.options.record import Record


class AddOptions(Record):
    """Table `AddOptions`: ADD."""

    operators = ("ADD",)
    fused_activation_function: ActivationFunctionType = ActivationFunctionType.NONE
    pot_scale_int16: bool = True


class MulOptions(Record):
    """Table `MulOptions`: MUL."""

    operators = ("MUL",)
    fused_activation_function: ActivationFunctionType = ActivationFunctionType.NONE


class ReducerOptions(Record):
    """Table `ReducerOptions`: MEAN, SUM and the REDUCE_ operators."""

    operators = (
        "MEAN",
        "SUM",
        "REDUCE_PROD",
        "REDUCE_MAX",
        "REDUCE_MIN",
        "REDUCE_ANY",
        "REDUCE_ALL",
    )
    keep_dims: bool = False


class SubOptions(Record):
    """Table `SubOptions`: SUB."""

    operators = ("SUB",)
    fused_activation_function: ActivationFunctionType = ActivationFunctionType.NONE
    pot_scale_int16: bool = True


class DivOptions(Record):
    """Table `DivOptions`: DIV."""

    operators = ("DIV",)
    fused_activation_function: ActivationFunctionType = ActivationFunctionType.NONE


class ExpOptions(Record):
    """Table `ExpOptions`: EXP."""

    operators = ("EXP",)


class CastOptions(Record):
    """Table `CastOptions`: CAST."""

    operators = ("CAST",)
    in_data_type: TensorType = TensorType.FLOAT32
    out_data_type: TensorType = TensorType.FLOAT32


class MaximumMinimumOptions(Record):
    """Table `MaximumMinimumOptions`: MAXIMUM, MINIMUM."""

    operators = ("MAXIMUM", "MINIMUM")


class LessOptions(Record):
    """Table `LessOptions`: LESS."""

    operators = ("LESS",)


class NegOptions(Record):
    """Table `NegOptions`: NEG."""

    operators = ("NEG",)


class GreaterOptions(Record):
    """Table `GreaterOptions`: GREATER."""

    operators = ("GREATER",)


class GreaterEqualOptions(Record):
    """Table `GreaterEqualOptions`: GREATER_EQUAL."""

    operators = ("GREATER_EQUAL",)


class LessEqualOptions(Record):
    """Table `LessEqualOptions`: LESS_EQUAL."""

    operators = ("LESS_EQUAL",)


class EqualOptions(Record):
    """Table `EqualOptions`: EQUAL."""

    operators = ("EQUAL",)


class NotEqualOptions(Record):
    """Table `NotEqualOptions`: NOT_EQUAL."""

    operators = ("NOT_EQUAL",)


class PowOptions(Record):
    """Table `PowOptions`: POW."""

    operators = ("POW",)


class LogicalOrOptions(Record):
    """Table `LogicalOrOptions`: LOGICAL_OR."""

    operators = ("LOGICAL_OR",)


class LogicalAndOptions(Record):
    """Table `LogicalAndOptions`: LOGICAL_AND."""

    operators = ("LOGICAL_AND",)


class LogicalNotOptions(Record):
    """Table `LogicalNotOptions`: LOGICAL_NOT."""

    operators = ("LOGICAL_NOT",)


class FloorDivOptions(Record):
    """Table `FloorDivOptions`: FLOOR_DIV."""

    operators = ("FLOOR_DIV",)


class SquareOptions(Record):
    """Table `SquareOptions`: SQUARE."""

    operators = ("SQUARE",)


class FloorModOptions(Record):
    """Table `FloorModOptions`: FLOOR_MOD."""

    operators = ("FLOOR_MOD",)


class SquaredDifferenceOptions(Record):
    """Table `SquaredDifferenceOptions`: SQUARED_DIFFERENCE."""

    operators = ("SQUARED_DIFFERENCE",)


class AbsOptions(Record):
    """Table `AbsOptions`: ABS."""

    operators = ("ABS",)


class AddNOptions(Record):
    """Table `AddNOptions`: ADD_N."""

    operators = ("ADD_N",)


class CosOptions(Record):
    """Table `CosOptions`: COS."""

    operators = ("COS",)


class SegmentSumOptions(Record):
    """Table `SegmentSumOptions`: SEGMENT_SUM."""

    operators = ("SEGMENT_SUM",)


class CumsumOptions(Record):
    """Table `CumsumOptions`: CUMSUM."""

    operators = ("CUMSUM",)
    exclusive: bool = False
    reverse: bool = False


class BucketizeOptions(Record):
    """Table `BucketizeOptions`: BUCKETIZE."""

    operators = ("BUCKETIZE",)
    boundaries: tuple[float, ...] = ()


class UnsortedSegmentProdOptions(Record):
    """Table `UnsortedSegmentProdOptions`: UNSORTED_SEGMENT_PROD."""

    operators = ("UNSORTED_SEGMENT_PROD",)


class UnsortedSegmentMaxOptions(Record):
    """Table `UnsortedSegmentMaxOptions`: UNSORTED_SEGMENT_MAX."""

    operators = ("UNSORTED_SEGMENT_MAX",)


class UnsortedSegmentMinOptions(Record):
    """Table `UnsortedSegmentMinOptions`: UNSORTED_SEGMENT_MIN."""

    operators = ("UNSORTED_SEGMENT_MIN",)


class UnsortedSegmentSumOptions(Record):
    """Table `UnsortedSegmentSumOptions`: UNSORTED_SEGMENT_SUM."""

    operators = ("UNSORTED_SEGMENT_SUM",)


class ATan2Options(Record):
    """Table `ATan2Options`: ATAN2."""

    operators = ("ATAN2",)


class SignOptions(Record):
    """Table `SignOptions`: SIGN."""

    operators = ("SIGN",)


class BitcastOptions(Record):
    """Table `BitcastOptions`: BITCAST."""

    operators = ("BITCAST",)


class BitwiseXorOptions(Record):
    """Table `BitwiseXorOptions`: BITWISE_XOR."""

    operators = ("BITWISE_XOR",)


class RightShiftOptions(Record):
    """Table `RightShiftOptions`: RIGHT_SHIFT."""

    operators = ("RIGHT_SHIFT",)
