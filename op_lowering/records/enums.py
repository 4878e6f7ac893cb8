"""Enumerations of schema.fbs, with the schema's names and numbers, which count from 0."""

from enum import IntEnum

ActivationFunctionType = IntEnum(
    "ActivationFunctionType", "NONE RELU RELU_N1_TO_1 RELU6 TANH SIGN_BIT", start=0
)
CombinerType = IntEnum("CombinerType", "SUM MEAN SQRTN", start=0)
CustomOptionsFormat = IntEnum("CustomOptionsFormat", "FLEXBUFFERS", start=0)
FullyConnectedOptionsWeightsFormat = IntEnum(
    "FullyConnectedOptionsWeightsFormat", "DEFAULT SHUFFLED4x16INT8", start=0
)
LSHProjectionType = IntEnum("LSHProjectionType", "UNKNOWN SPARSE DENSE", start=0)
LSTMKernelType = IntEnum("LSTMKernelType", "FULL BASIC", start=0)
MirrorPadMode = IntEnum("MirrorPadMode", "REFLECT SYMMETRIC", start=0)
Padding = IntEnum("Padding", "SAME VALID", start=0)
ReduceWindowFunction = IntEnum(
    "ReduceWindowFunction", "UNSUPPORTED ADD MUL MINIMUM MAXIMUM ALL ANY", start=0
)
RngAlgorithm = IntEnum("RngAlgorithm", "DEFAULT PHILOX THREEFRY", start=0)
StablehloPrecisionConfig = IntEnum("StablehloPrecisionConfig", "DEFAULT HIGH HIGHEST", start=0)
TensorType = IntEnum(
    "TensorType",
    "FLOAT32 FLOAT16 INT32 UINT8 INT64 STRING BOOL INT16 COMPLEX64 INT8 FLOAT64 COMPLEX128 UINT64 "
    "RESOURCE VARIANT UINT32 UINT16 INT4 BFLOAT16 INT2 UINT4 FLOAT8_E4M3FN FLOAT8_E5M2",
    start=0,
)


class StablehloComparisonDirection(IntEnum):
    STABLEHLO_COMPARISON_DIRECTION_EQ = 0
    STABLEHLO_COMPARISON_DIRECTION_NE = 1
    STABLEHLO_COMPARISON_DIRECTION_GE = 2
    STABLEHLO_COMPARISON_DIRECTION_GT = 3
    STABLEHLO_COMPARISON_DIRECTION_LE = 4
    STABLEHLO_COMPARISON_DIRECTION_LT = 5


class StablehloComparisonType(IntEnum):
    STABLEHLO_COMPARISON_TYPE_NOTYPE = 0
    STABLEHLO_COMPARISON_TYPE_FLOAT = 1
    STABLEHLO_COMPARISON_TYPE_FLOAT_TOTAL_ORDER = 2
    STABLEHLO_COMPARISON_TYPE_SIGNED = 3
    STABLEHLO_COMPARISON_TYPE_UNSIGNED = 4


class Nonlinearity(IntEnum):
    """An activation that is not a clamp: x * min(max(x + 3, 0), 6) / 6, or x / (1 + e^-x)."""

    NONE = 0
    HARD_SWISH = 1
    SWISH = 2


class Gate(IntEnum):
    """What one product goes through before it multiplies another one.

    1 / (1 + e^-x), x / (1 + e^-x), or GELU by its approximation with tanh.
    """

    NONE = 0
    LOGISTIC = 1
    SWISH = 2
    GELU = 3
