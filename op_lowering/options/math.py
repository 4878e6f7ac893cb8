"""Options tables, field names as in schema.fbs: arithmetic, comparisons, reductions."""

from dataclasses import dataclass

from jaxdelegate.op_lowering.options.base import Options
from jaxdelegate.op_lowering.options.enums import ActivationFunctionType, TensorType


@dataclass(frozen=True)
class AddOptions(Options):
    """Table `AddOptions`: ADD."""

    operators = ("ADD",)
    fused_activation_function: ActivationFunctionType = ActivationFunctionType.NONE
    pot_scale_int16: bool = True


@dataclass(frozen=True)
class MulOptions(Options):
    """Table `MulOptions`: MUL."""

    operators = ("MUL",)
    fused_activation_function: ActivationFunctionType = ActivationFunctionType.NONE


@dataclass(frozen=True)
class ReducerOptions(Options):
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


@dataclass(frozen=True)
class SubOptions(Options):
    """Table `SubOptions`: SUB."""

    operators = ("SUB",)
    fused_activation_function: ActivationFunctionType = ActivationFunctionType.NONE
    pot_scale_int16: bool = True


@dataclass(frozen=True)
class DivOptions(Options):
    """Table `DivOptions`: DIV."""

    operators = ("DIV",)
    fused_activation_function: ActivationFunctionType = ActivationFunctionType.NONE


@dataclass(frozen=True)
class ExpOptions(Options):
    """Table `ExpOptions`: EXP."""

    operators = ("EXP",)


@dataclass(frozen=True)
class CastOptions(Options):
    """Table `CastOptions`: CAST."""

    operators = ("CAST",)
    in_data_type: TensorType = TensorType.FLOAT32
    out_data_type: TensorType = TensorType.FLOAT32


@dataclass(frozen=True)
class MaximumMinimumOptions(Options):
    """Table `MaximumMinimumOptions`: MAXIMUM, MINIMUM."""

    operators = ("MAXIMUM", "MINIMUM")


@dataclass(frozen=True)
class LessOptions(Options):
    """Table `LessOptions`: LESS."""

    operators = ("LESS",)


@dataclass(frozen=True)
class NegOptions(Options):
    """Table `NegOptions`: NEG."""

    operators = ("NEG",)


@dataclass(frozen=True)
class GreaterOptions(Options):
    """Table `GreaterOptions`: GREATER."""

    operators = ("GREATER",)


@dataclass(frozen=True)
class GreaterEqualOptions(Options):
    """Table `GreaterEqualOptions`: GREATER_EQUAL."""

    operators = ("GREATER_EQUAL",)


@dataclass(frozen=True)
class LessEqualOptions(Options):
    """Table `LessEqualOptions`: LESS_EQUAL."""

    operators = ("LESS_EQUAL",)


@dataclass(frozen=True)
class EqualOptions(Options):
    """Table `EqualOptions`: EQUAL."""

    operators = ("EQUAL",)


@dataclass(frozen=True)
class NotEqualOptions(Options):
    """Table `NotEqualOptions`: NOT_EQUAL."""

    operators = ("NOT_EQUAL",)


@dataclass(frozen=True)
class PowOptions(Options):
    """Table `PowOptions`: POW."""

    operators = ("POW",)


@dataclass(frozen=True)
class LogicalOrOptions(Options):
    """Table `LogicalOrOptions`: LOGICAL_OR."""

    operators = ("LOGICAL_OR",)


@dataclass(frozen=True)
class LogicalAndOptions(Options):
    """Table `LogicalAndOptions`: LOGICAL_AND."""

    operators = ("LOGICAL_AND",)


@dataclass(frozen=True)
class LogicalNotOptions(Options):
    """Table `LogicalNotOptions`: LOGICAL_NOT."""

    operators = ("LOGICAL_NOT",)


@dataclass(frozen=True)
class FloorDivOptions(Options):
    """Table `FloorDivOptions`: FLOOR_DIV."""

    operators = ("FLOOR_DIV",)


@dataclass(frozen=True)
class SquareOptions(Options):
    """Table `SquareOptions`: SQUARE."""

    operators = ("SQUARE",)


@dataclass(frozen=True)
class FloorModOptions(Options):
    """Table `FloorModOptions`: FLOOR_MOD."""

    operators = ("FLOOR_MOD",)


@dataclass(frozen=True)
class SquaredDifferenceOptions(Options):
    """Table `SquaredDifferenceOptions`: SQUARED_DIFFERENCE."""

    operators = ("SQUARED_DIFFERENCE",)


@dataclass(frozen=True)
class AbsOptions(Options):
    """Table `AbsOptions`: ABS."""

    operators = ("ABS",)


@dataclass(frozen=True)
class AddNOptions(Options):
    """Table `AddNOptions`: ADD_N."""

    operators = ("ADD_N",)


@dataclass(frozen=True)
class CosOptions(Options):
    """Table `CosOptions`: COS."""

    operators = ("COS",)


@dataclass(frozen=True)
class SegmentSumOptions(Options):
    """Table `SegmentSumOptions`: SEGMENT_SUM."""

    operators = ("SEGMENT_SUM",)


@dataclass(frozen=True)
class CumsumOptions(Options):
    """Table `CumsumOptions`: CUMSUM."""

    operators = ("CUMSUM",)
    exclusive: bool = False
    reverse: bool = False


@dataclass(frozen=True)
class BucketizeOptions(Options):
    """Table `BucketizeOptions`: BUCKETIZE."""

    operators = ("BUCKETIZE",)
    boundaries: tuple[float, ...] = ()


@dataclass(frozen=True)
class UnsortedSegmentProdOptions(Options):
    """Table `UnsortedSegmentProdOptions`: UNSORTED_SEGMENT_PROD."""

    operators = ("UNSORTED_SEGMENT_PROD",)


@dataclass(frozen=True)
class UnsortedSegmentMaxOptions(Options):
    """Table `UnsortedSegmentMaxOptions`: UNSORTED_SEGMENT_MAX."""

    operators = ("UNSORTED_SEGMENT_MAX",)


@dataclass(frozen=True)
class UnsortedSegmentMinOptions(Options):
    """Table `UnsortedSegmentMinOptions`: UNSORTED_SEGMENT_MIN."""

    operators = ("UNSORTED_SEGMENT_MIN",)


@dataclass(frozen=True)
class UnsortedSegmentSumOptions(Options):
    """Table `UnsortedSegmentSumOptions`: UNSORTED_SEGMENT_SUM."""

    operators = ("UNSORTED_SEGMENT_SUM",)


@dataclass(frozen=True)
class ATan2Options(Options):
    """Table `ATan2Options`: ATAN2."""

    operators = ("ATAN2",)


@dataclass(frozen=True)
class SignOptions(Options):
    """Table `SignOptions`: SIGN."""

    operators = ("SIGN",)


@dataclass(frozen=True)
class BitcastOptions(Options):
    """Table `BitcastOptions`: BITCAST."""

    operators = ("BITCAST",)


@dataclass(frozen=True)
class BitwiseXorOptions(Options):
    """Table `BitwiseXorOptions`: BITWISE_XOR."""

    operators = ("BITWISE_XOR",)


@dataclass(frozen=True)
class RightShiftOptions(Options):
    """Table `RightShiftOptions`: RIGHT_SHIFT."""

    operators = ("RIGHT_SHIFT",)
