"""Enumerations of schema.fbs, with the schema's names and numbers."""

import enum


class ActivationFunctionType(enum.IntEnum):
    NONE = 0
    RELU = 1
    RELU_N1_TO_1 = 2
    RELU6 = 3
    TANH = 4
    SIGN_BIT = 5


class CombinerType(enum.IntEnum):
    SUM = 0
    MEAN = 1
    SQRTN = 2


class CustomOptionsFormat(enum.IntEnum):
    FLEXBUFFERS = 0


class FullyConnectedOptionsWeightsFormat(enum.IntEnum):
    DEFAULT = 0
    SHUFFLED4x16INT8 = 1


class LSHProjectionType(enum.IntEnum):
    UNKNOWN = 0
    SPARSE = 1
    DENSE = 2


class LSTMKernelType(enum.IntEnum):
    FULL = 0
    BASIC = 1


class MirrorPadMode(enum.IntEnum):
    REFLECT = 0
    SYMMETRIC = 1


class Padding(enum.IntEnum):
    SAME = 0
    VALID = 1


class ReduceWindowFunction(enum.IntEnum):
    UNSUPPORTED = 0
    ADD = 1
    MUL = 2
    MINIMUM = 3
    MAXIMUM = 4
    ALL = 5
    ANY = 6


class RngAlgorithm(enum.IntEnum):
    DEFAULT = 0
    PHILOX = 1
    THREEFRY = 2


class StablehloComparisonDirection(enum.IntEnum):
    STABLEHLO_COMPARISON_DIRECTION_EQ = 0
    STABLEHLO_COMPARISON_DIRECTION_NE = 1
    STABLEHLO_COMPARISON_DIRECTION_GE = 2
    STABLEHLO_COMPARISON_DIRECTION_GT = 3
    STABLEHLO_COMPARISON_DIRECTION_LE = 4
    STABLEHLO_COMPARISON_DIRECTION_LT = 5


class StablehloComparisonType(enum.IntEnum):
    STABLEHLO_COMPARISON_TYPE_NOTYPE = 0
    STABLEHLO_COMPARISON_TYPE_FLOAT = 1
    STABLEHLO_COMPARISON_TYPE_FLOAT_TOTAL_ORDER = 2
    STABLEHLO_COMPARISON_TYPE_SIGNED = 3
    STABLEHLO_COMPARISON_TYPE_UNSIGNED = 4


class StablehloPrecisionConfig(enum.IntEnum):
    DEFAULT = 0
    HIGH = 1
    HIGHEST = 2


class TensorType(enum.IntEnum):
    FLOAT32 = 0
    FLOAT16 = 1
    INT32 = 2
    UINT8 = 3
    INT64 = 4
    STRING = 5
    BOOL = 6
    INT16 = 7
    COMPLEX64 = 8
    INT8 = 9
    FLOAT64 = 10
    COMPLEX128 = 11
    UINT64 = 12
    RESOURCE = 13
    VARIANT = 14
    UINT32 = 15
    UINT16 = 16
    INT4 = 17
    BFLOAT16 = 18
    INT2 = 19
    UINT4 = 20
    FLOAT8_E4M3FN = 21
    FLOAT8_E5M2 = 22


class Nonlinearity(enum.IntEnum):
    """An activation that is not a clamp: x * min(max(x + 3, 0), 6) / 6, or x / (1 + e^-x)."""

    NONE = 0
    HARD_SWISH = 1
    SWISH = 2


class Gate(enum.IntEnum):
    """What one product goes through before it multiplies another one.

    1 / (1 + e^-x), x / (1 + e^-x), or GELU by its approximation with tanh.
    """

    NONE = 0
    LOGISTIC = 1
    SWISH = 2
    GELU = 3
