"""Every operator that XLA can run, written out; `reference/registry.py` is its twin in numpy."""

from jaxdelegate.op_lowering.activation import (
    ELU,
    GELU,
    HARD_SWISH,
    LEAKY_RELU,
    LOGISTIC,
    PRELU,
    RELU,
    RELU6,
    RELU_0_TO_1,
    RELU_N1_TO_1,
    TANH,
)
from jaxdelegate.op_lowering.cast import CAST, DEQUANTIZE, FAKE_QUANT, QUANTIZE
from jaxdelegate.op_lowering.comparison import (
    EQUAL,
    GREATER,
    GREATER_EQUAL,
    LESS,
    LESS_EQUAL,
    LOGICAL_AND,
    LOGICAL_NOT,
    LOGICAL_OR,
    NOT_EQUAL,
    SELECT,
    SELECT_V2,
)
from jaxdelegate.op_lowering.control_flow import (
    CALL,
    CALL_ONCE,
    IF,
    STABLEHLO_CASE,
    STABLEHLO_COMPOSITE,
    STABLEHLO_WHILE,
    WHILE,
)
from jaxdelegate.op_lowering.convolution import CONV_2D, CONV_3D, DEPTHWISE_CONV_2D
from jaxdelegate.op_lowering.detection import (
    DETECTION_POSTPROCESS,
    NON_MAX_SUPPRESSION_V4,
    NON_MAX_SUPPRESSION_V5,
)
from jaxdelegate.op_lowering.elementwise import (
    ABS,
    ADD,
    ADD_N,
    ATAN2,
    BITCAST,
    BITWISE_XOR,
    CEIL,
    COMPLEX_ABS,
    COS,
    DIV,
    EXP,
    FLOOR,
    FLOOR_DIV,
    FLOOR_MOD,
    IMAG,
    LOG,
    MAXIMUM,
    MINIMUM,
    MUL,
    NEG,
    POW,
    REAL,
    RIGHT_SHIFT,
    ROUND,
    RSQRT,
    SIGN,
    SIN,
    SQRT,
    SQUARE,
    SQUARED_DIFFERENCE,
    SUB,
    ZEROS_LIKE,
)
from jaxdelegate.op_lowering.indexing import (
    EMBEDDING_LOOKUP,
    GATHER,
    GATHER_ND,
    MATRIX_DIAG,
    MATRIX_SET_DIAG,
    ONE_HOT,
    REVERSE_SEQUENCE,
    SCATTER_ND,
    SPARSE_TO_DENSE,
    UNIQUE,
    WHERE,
)
from jaxdelegate.op_lowering.layout import (
    BATCH_TO_SPACE_ND,
    CONCATENATION,
    DEPTH_TO_SPACE,
    PACK,
    REVERSE_V2,
    ROLL,
    SPACE_TO_BATCH_ND,
    SPACE_TO_DEPTH,
    TILE,
    TRANSPOSE,
)
from jaxdelegate.op_lowering.lookup import EMBEDDING_LOOKUP_SPARSE, HASHTABLE_LOOKUP
from jaxdelegate.op_lowering.lstm import (
    BIDIRECTIONAL_SEQUENCE_LSTM,
    LSTM,
    UNIDIRECTIONAL_SEQUENCE_LSTM,
)
from jaxdelegate.op_lowering.matmul import BATCH_MATMUL, FULLY_CONNECTED
from jaxdelegate.op_lowering.normalization import (
    L2_NORMALIZATION,
    LOCAL_RESPONSE_NORMALIZATION,
    LOG_SOFTMAX,
    SOFTMAX,
)
from jaxdelegate.op_lowering.padding import (
    MIRROR_PAD,
    PAD,
    PADV2,
)
from jaxdelegate.op_lowering.pooling import (
    AVERAGE_POOL_2D,
    AVG_POOL_3D,
    L2_POOL_2D,
    MAX_POOL_2D,
    MAX_POOL_3D,
)
from jaxdelegate.op_lowering.pooling_argmax import (
    MAX_POOL_WITH_ARGMAX,
    MAX_POOLING_WITH_ARGMAX_2D,
    MAX_UNPOOLING_2D,
)
from jaxdelegate.op_lowering.random import (
    MULTINOMIAL,
    RANDOM_STANDARD_NORMAL,
    RANDOM_UNIFORM,
    STABLEHLO_RNG_BIT_GENERATOR,
)
from jaxdelegate.op_lowering.recurrent import (
    BIDIRECTIONAL_SEQUENCE_RNN,
    RNN,
    SVDF,
    UNIDIRECTIONAL_SEQUENCE_RNN,
)
from jaxdelegate.op_lowering.reduction import (
    ARG_MAX,
    ARG_MIN,
    CUMSUM,
    MEAN,
    REDUCE_ALL,
    REDUCE_ANY,
    REDUCE_MAX,
    REDUCE_MIN,
    REDUCE_PROD,
    SUM,
)
from jaxdelegate.op_lowering.resize import RESIZE_BILINEAR, RESIZE_NEAREST_NEIGHBOR
from jaxdelegate.op_lowering.resources import (
    ASSIGN_VARIABLE,
    HASHTABLE,
    HASHTABLE_FIND,
    HASHTABLE_IMPORT,
    HASHTABLE_SIZE,
    READ_VARIABLE,
    VAR_HANDLE,
)
from jaxdelegate.op_lowering.rule import OpRule
from jaxdelegate.op_lowering.segment import (
    SEGMENT_SUM,
    UNSORTED_SEGMENT_MAX,
    UNSORTED_SEGMENT_MIN,
    UNSORTED_SEGMENT_PROD,
    UNSORTED_SEGMENT_SUM,
)
from jaxdelegate.op_lowering.shape import (
    BROADCAST_ARGS,
    BROADCAST_GRADIENT_ARGS,
    BROADCAST_TO,
    EXPAND_DIMS,
    FILL,
    RANGE,
    RANK,
    RESHAPE,
    SHAPE,
    SQUEEZE,
)
from jaxdelegate.op_lowering.signal import AUDIO_SPECTROGRAM, IRFFT2D, MFCC, RFFT2D
from jaxdelegate.op_lowering.slicing import (
    DYNAMIC_UPDATE_SLICE,
    SLICE,
    SPLIT,
    SPLIT_V,
    STRIDED_SLICE,
    UNPACK,
)
from jaxdelegate.op_lowering.sorting import BUCKETIZE, TOPK_V2
from jaxdelegate.op_lowering.sparse import DENSIFY
from jaxdelegate.op_lowering.transpose_conv import (
    CONV_3D_TRANSPOSE,
    CONVOLUTION_2D_TRANSPOSE_BIAS,
    TRANSPOSE_CONV,
)


def table(*rules: OpRule) -> dict[str, OpRule]:
    """The rules by name.

    Raises:
        ValueError: two rules claim one operator.
    """
    rows = {rule.name: rule for rule in rules}
    if len(rows) != len(rules):
        raise ValueError(f"duplicate rules among {sorted(rule.name for rule in rules)}")
    return rows


# Custom operators stand under their custom name.
RULES = table(
    # convolution, pooling, matmul
    CONV_2D,
    DEPTHWISE_CONV_2D,
    CONV_3D,
    TRANSPOSE_CONV,
    CONV_3D_TRANSPOSE,
    CONVOLUTION_2D_TRANSPOSE_BIAS,
    AVERAGE_POOL_2D,
    MAX_POOL_2D,
    L2_POOL_2D,
    AVG_POOL_3D,
    MAX_POOL_3D,
    MAX_POOL_WITH_ARGMAX,
    MAX_POOLING_WITH_ARGMAX_2D,
    MAX_UNPOOLING_2D,
    FULLY_CONNECTED,
    BATCH_MATMUL,
    # shape
    RESHAPE,
    SQUEEZE,
    EXPAND_DIMS,
    SHAPE,
    RANK,
    BROADCAST_TO,
    BROADCAST_ARGS,
    FILL,
    RANGE,
    BROADCAST_GRADIENT_ARGS,
    # slicing
    SLICE,
    STRIDED_SLICE,
    SPLIT,
    SPLIT_V,
    UNPACK,
    DYNAMIC_UPDATE_SLICE,
    # padding
    PAD,
    PADV2,
    MIRROR_PAD,
    # layout
    TRANSPOSE,
    CONCATENATION,
    PACK,
    TILE,
    REVERSE_V2,
    ROLL,
    SPACE_TO_BATCH_ND,
    BATCH_TO_SPACE_ND,
    SPACE_TO_DEPTH,
    DEPTH_TO_SPACE,
    # indexing
    GATHER,
    GATHER_ND,
    SCATTER_ND,
    SPARSE_TO_DENSE,
    EMBEDDING_LOOKUP,
    ONE_HOT,
    REVERSE_SEQUENCE,
    MATRIX_DIAG,
    MATRIX_SET_DIAG,
    WHERE,
    UNIQUE,
    # activation
    RELU,
    RELU6,
    RELU_N1_TO_1,
    RELU_0_TO_1,
    LOGISTIC,
    TANH,
    PRELU,
    LEAKY_RELU,
    ELU,
    GELU,
    HARD_SWISH,
    # elementwise
    ADD,
    SUB,
    MUL,
    DIV,
    FLOOR_DIV,
    FLOOR_MOD,
    MAXIMUM,
    MINIMUM,
    POW,
    SQUARED_DIFFERENCE,
    ADD_N,
    ATAN2,
    BITWISE_XOR,
    RIGHT_SHIFT,
    ABS,
    NEG,
    SIGN,
    SQUARE,
    SQRT,
    RSQRT,
    EXP,
    LOG,
    SIN,
    COS,
    FLOOR,
    CEIL,
    ROUND,
    REAL,
    IMAG,
    COMPLEX_ABS,
    ZEROS_LIKE,
    BITCAST,
    # comparison
    EQUAL,
    NOT_EQUAL,
    LESS,
    LESS_EQUAL,
    GREATER,
    GREATER_EQUAL,
    LOGICAL_AND,
    LOGICAL_OR,
    LOGICAL_NOT,
    SELECT,
    SELECT_V2,
    # cast
    CAST,
    DEQUANTIZE,
    QUANTIZE,
    FAKE_QUANT,
    # reduction
    MEAN,
    SUM,
    REDUCE_PROD,
    REDUCE_MAX,
    REDUCE_MIN,
    REDUCE_ANY,
    REDUCE_ALL,
    ARG_MAX,
    ARG_MIN,
    CUMSUM,
    # sorting
    TOPK_V2,
    BUCKETIZE,
    # segment
    SEGMENT_SUM,
    UNSORTED_SEGMENT_SUM,
    UNSORTED_SEGMENT_PROD,
    UNSORTED_SEGMENT_MAX,
    UNSORTED_SEGMENT_MIN,
    # normalization
    SOFTMAX,
    LOG_SOFTMAX,
    L2_NORMALIZATION,
    LOCAL_RESPONSE_NORMALIZATION,
    # resize
    RESIZE_BILINEAR,
    RESIZE_NEAREST_NEIGHBOR,
    # detection
    DETECTION_POSTPROCESS,
    NON_MAX_SUPPRESSION_V4,
    NON_MAX_SUPPRESSION_V5,
    # signal
    RFFT2D,
    IRFFT2D,
    AUDIO_SPECTROGRAM,
    MFCC,
    # random
    RANDOM_UNIFORM,
    RANDOM_STANDARD_NORMAL,
    MULTINOMIAL,
    STABLEHLO_RNG_BIT_GENERATOR,
    # lookup
    EMBEDDING_LOOKUP_SPARSE,
    HASHTABLE_LOOKUP,
    # sparse
    DENSIFY,
    # recurrent
    LSTM,
    UNIDIRECTIONAL_SEQUENCE_LSTM,
    BIDIRECTIONAL_SEQUENCE_LSTM,
    RNN,
    UNIDIRECTIONAL_SEQUENCE_RNN,
    BIDIRECTIONAL_SEQUENCE_RNN,
    SVDF,
    # control flow
    CALL,
    CALL_ONCE,
    IF,
    STABLEHLO_CASE,
    STABLEHLO_COMPOSITE,
    STABLEHLO_WHILE,
    WHILE,
    # resources
    ASSIGN_VARIABLE,
    HASHTABLE,
    HASHTABLE_FIND,
    HASHTABLE_IMPORT,
    HASHTABLE_SIZE,
    READ_VARIABLE,
    VAR_HANDLE,
)
