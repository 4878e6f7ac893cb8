"""Every operator in numpy, written out. Imports no jax."""

from jaxdelegate.reference import (
    activation,
    cast,
    comparison,
    control_flow,
    convolution,
    custom,
    detection,
    elementwise,
    indexing,
    layout,
    lookup,
    lstm,
    matmul,
    normalization,
    padding,
    parse_example,
    pooling,
    random,
    recurrent,
    reduction,
    resize,
    resources,
    segment,
    shape,
    signal,
    slicing,
    sorting,
    sparse,
    stablehlo,
    stablehlo_gather,
    stablehlo_products,
    stablehlo_shape,
    stablehlo_sort,
    stablehlo_window,
    text,
    transpose_conv,
)
from jaxdelegate.reference.kernel import Folds, Kernel, broadcast_shape, same_shape

# Custom operators stand under their custom name.
KERNELS: dict[str, Kernel] = {
    # convolution, pooling, matmul
    "CONV_2D": Kernel(convolution.conv_2d, convolution.conv_2d_shape),
    "DEPTHWISE_CONV_2D": Kernel(convolution.depthwise_conv_2d, convolution.depthwise_conv_2d_shape),
    "CONV_3D": Kernel(convolution.conv_3d, convolution.conv_3d_shape),
    "TRANSPOSE_CONV": Kernel(transpose_conv.transpose_conv, transpose_conv.asked_shape),
    "CONV_3D_TRANSPOSE": Kernel(transpose_conv.conv_3d_transpose, transpose_conv.asked_shape),
    "Convolution2DTransposeBias": Kernel(
        transpose_conv.convolution_2d_transpose_bias, transpose_conv.grown_shape
    ),
    "AVERAGE_POOL_2D": Kernel(pooling.average_pool_2d, pooling.pool_2d_shape),
    "MAX_POOL_2D": Kernel(pooling.max_pool_2d, pooling.pool_2d_shape),
    "L2_POOL_2D": Kernel(pooling.l2_pool_2d, pooling.pool_2d_shape),
    "AvgPool3D": Kernel(pooling.average_pool_3d, pooling.pool_3d_shape),
    "MaxPool3D": Kernel(pooling.max_pool_3d, pooling.pool_3d_shape),
    "MaxPoolWithArgmax": Kernel(pooling.max_pool_with_argmax, pooling.max_pool_with_argmax_shape),
    "MaxPoolingWithArgmax2D": Kernel(
        pooling.max_pooling_with_argmax_2d, pooling.argmax_pool_2d_shape
    ),
    "MaxUnpooling2D": Kernel(pooling.max_unpooling_2d, pooling.max_unpooling_2d_shape),
    "FULLY_CONNECTED": Kernel(matmul.fully_connected, matmul.fully_connected_shape),
    "BATCH_MATMUL": Kernel(matmul.batch_matmul, matmul.batch_matmul_shape),
    # activation
    "RELU": Kernel(activation.relu, same_shape),
    "RELU6": Kernel(activation.relu6, same_shape),
    "RELU_N1_TO_1": Kernel(activation.relu_n1_to_1, same_shape),
    "RELU_0_TO_1": Kernel(activation.relu_0_to_1, same_shape),
    "LOGISTIC": Kernel(activation.logistic, same_shape),
    "TANH": Kernel(activation.tanh, same_shape),
    "PRELU": Kernel(activation.prelu, activation.prelu_shape),
    "LEAKY_RELU": Kernel(activation.leaky_relu, same_shape),
    "ELU": Kernel(activation.elu, same_shape),
    "GELU": Kernel(activation.gelu, same_shape),
    "HARD_SWISH": Kernel(activation.hard_swish, same_shape),
    # elementwise
    "ADD": Kernel(elementwise.add, broadcast_shape),
    "SUB": Kernel(elementwise.sub, broadcast_shape),
    "MUL": Kernel(elementwise.mul, broadcast_shape),
    "DIV": Kernel(elementwise.div, broadcast_shape),
    "FLOOR_DIV": Kernel(elementwise.floor_div, broadcast_shape),
    "FLOOR_MOD": Kernel(elementwise.floor_mod, broadcast_shape),
    "MAXIMUM": Kernel(elementwise.maximum, broadcast_shape),
    "MINIMUM": Kernel(elementwise.minimum, broadcast_shape),
    "POW": Kernel(elementwise.power, broadcast_shape),
    "SQUARED_DIFFERENCE": Kernel(elementwise.squared_difference, broadcast_shape),
    "ADD_N": Kernel(elementwise.add_n, same_shape),
    "ATAN2": Kernel(elementwise.atan2, same_shape),
    "BITWISE_XOR": Kernel(elementwise.bitwise_xor, broadcast_shape),
    "RIGHT_SHIFT": Kernel(elementwise.right_shift, broadcast_shape),
    "ABS": Kernel(elementwise.absolute, same_shape),
    "NEG": Kernel(elementwise.neg, same_shape),
    "SIGN": Kernel(elementwise.sign, same_shape),
    "SQUARE": Kernel(elementwise.square, same_shape),
    "SQRT": Kernel(elementwise.sqrt, same_shape),
    "RSQRT": Kernel(elementwise.rsqrt, same_shape),
    "EXP": Kernel(elementwise.exp, same_shape),
    "LOG": Kernel(elementwise.log, same_shape),
    "SIN": Kernel(elementwise.sin, same_shape),
    "COS": Kernel(elementwise.cos, same_shape),
    "FLOOR": Kernel(elementwise.floor, same_shape),
    "CEIL": Kernel(elementwise.ceil, same_shape),
    "ROUND": Kernel(elementwise.rounded, same_shape),
    "REAL": Kernel(elementwise.real, same_shape),
    "IMAG": Kernel(elementwise.imag, same_shape),
    "COMPLEX_ABS": Kernel(elementwise.complex_abs, same_shape),
    "ZEROS_LIKE": Kernel(elementwise.zeros_like, same_shape, Folds.SHAPES),
    "BITCAST": Kernel(elementwise.bitcast, same_shape, inferred_shapes=elementwise.bitcast_shape),
    # comparison
    "EQUAL": Kernel(comparison.equal, broadcast_shape),
    "NOT_EQUAL": Kernel(comparison.not_equal, broadcast_shape),
    "LESS": Kernel(comparison.less, broadcast_shape),
    "LESS_EQUAL": Kernel(comparison.less_equal, broadcast_shape),
    "GREATER": Kernel(comparison.greater, broadcast_shape),
    "GREATER_EQUAL": Kernel(comparison.greater_equal, broadcast_shape),
    "LOGICAL_AND": Kernel(comparison.logical_and, broadcast_shape),
    "LOGICAL_OR": Kernel(comparison.logical_or, broadcast_shape),
    "LOGICAL_NOT": Kernel(comparison.logical_not, same_shape),
    "SELECT": Kernel(comparison.select, comparison.select_shape),
    "SELECT_V2": Kernel(comparison.select_v2, broadcast_shape),
    # cast
    "CAST": Kernel(cast.cast, same_shape),
    "DEQUANTIZE": Kernel(cast.dequantize, same_shape),
    "QUANTIZE": Kernel(cast.quantize, same_shape),
    "FAKE_QUANT": Kernel(cast.fake_quant, same_shape),
    # shape
    "RESHAPE": Kernel(shape.reshape, shape.reshape_shape, settled=shape.settled_reshape),
    "SQUEEZE": Kernel(shape.squeeze, shape.squeeze_shape),
    "EXPAND_DIMS": Kernel(shape.expand_dims, shape.expand_dims_shape),
    "SHAPE": Kernel(shape.shape, shape.rank_vector, Folds.SHAPES),
    "RANK": Kernel(shape.rank, shape.scalar_shape, Folds.SHAPES),
    "BROADCAST_TO": Kernel(
        shape.broadcast_to, shape.broadcast_to_shape, settled=shape.settled_broadcast_to
    ),
    "BROADCAST_ARGS": Kernel(shape.broadcast_args, shape.broadcast_args_shape),
    "BroadcastGradientArgs": Kernel(
        shape.broadcast_gradient_args, shape.broadcast_gradient_args_shape
    ),
    "FILL": Kernel(shape.fill, shape.fill_shape),
    "RANGE": Kernel(shape.range_, shape.range_shape),
    # slicing
    "SLICE": Kernel(slicing.slice_, slicing.slice_shape),
    "STRIDED_SLICE": Kernel(slicing.strided_slice, slicing.strided_slice_shape),
    "SPLIT": Kernel(slicing.split, slicing.split_shape),
    "SPLIT_V": Kernel(slicing.split_v, slicing.split_v_shape),
    "UNPACK": Kernel(slicing.unpack, slicing.unpack_shape),
    "DYNAMIC_UPDATE_SLICE": Kernel(
        slicing.dynamic_update_slice, same_shape, settled=slicing.settled_update
    ),
    # padding
    "PAD": Kernel(padding.pad, padding.padded_shape),
    "PADV2": Kernel(padding.pad, padding.padded_shape),
    "MIRROR_PAD": Kernel(padding.mirror_pad, padding.mirror_padded_shape),
    # layout
    "TRANSPOSE": Kernel(layout.transpose, layout.transposed_shape),
    "CONCATENATION": Kernel(layout.concatenation, layout.concatenated_shape),
    "PACK": Kernel(layout.pack, layout.packed_shape),
    "TILE": Kernel(layout.tile, layout.tiled_shape),
    "REVERSE_V2": Kernel(layout.reverse_v2, same_shape),
    "Roll": Kernel(layout.roll, same_shape),
    "SPACE_TO_BATCH_ND": Kernel(layout.space_to_batch_nd, layout.space_to_batch_shape),
    "BATCH_TO_SPACE_ND": Kernel(layout.batch_to_space_nd, layout.batch_to_space_shape),
    "SPACE_TO_DEPTH": Kernel(layout.space_to_depth, layout.space_to_depth_shape),
    "DEPTH_TO_SPACE": Kernel(layout.depth_to_space, layout.depth_to_space_shape),
    # indexing
    "GATHER": Kernel(indexing.gather, indexing.gathered_shape),
    "GATHER_ND": Kernel(indexing.gather_nd, indexing.gathered_nd_shape),
    "SCATTER_ND": Kernel(
        indexing.scatter_nd, indexing.scattered_shape, settled=indexing.scattered_shape
    ),
    "SPARSE_TO_DENSE": Kernel(
        indexing.sparse_to_dense, indexing.dense_shape, settled=indexing.dense_shape
    ),
    "EMBEDDING_LOOKUP": Kernel(indexing.embedding_lookup, indexing.looked_up_shape),
    "ONE_HOT": Kernel(indexing.one_hot, indexing.one_hot_shape),
    "REVERSE_SEQUENCE": Kernel(indexing.reverse_sequence, same_shape),
    "MATRIX_DIAG": Kernel(indexing.matrix_diag, indexing.diagonal_shape),
    "MATRIX_SET_DIAG": Kernel(indexing.matrix_set_diag, same_shape),
    "WHERE": Kernel(indexing.where, indexing.where_shape),
    "UNIQUE": Kernel(indexing.unique, indexing.unique_shape),
    # reduction
    "MEAN": Kernel(reduction.mean, reduction.reduced_shape),
    "SUM": Kernel(reduction.reduce_sum, reduction.reduced_shape),
    "REDUCE_PROD": Kernel(reduction.reduce_prod, reduction.reduced_shape),
    "REDUCE_MAX": Kernel(reduction.reduce_max, reduction.reduced_shape),
    "REDUCE_MIN": Kernel(reduction.reduce_min, reduction.reduced_shape),
    "REDUCE_ANY": Kernel(reduction.reduce_any, reduction.reduced_shape),
    "REDUCE_ALL": Kernel(reduction.reduce_all, reduction.reduced_shape),
    "ARG_MAX": Kernel(reduction.arg_max, reduction.arg_shape),
    "ARG_MIN": Kernel(reduction.arg_min, reduction.arg_shape),
    "CUMSUM": Kernel(reduction.cumsum, same_shape),
    # sorting
    "TOPK_V2": Kernel(sorting.topk, sorting.topk_shapes),
    "BUCKETIZE": Kernel(sorting.bucketize, same_shape),
    # segment
    "SEGMENT_SUM": Kernel(segment.segment_sum, segment.segment_sum_shape),
    "UNSORTED_SEGMENT_SUM": Kernel(segment.unsorted_segment_sum, segment.unsorted_shape),
    "UNSORTED_SEGMENT_PROD": Kernel(segment.unsorted_segment_prod, segment.unsorted_shape),
    "UNSORTED_SEGMENT_MAX": Kernel(segment.unsorted_segment_max, segment.unsorted_shape),
    "UNSORTED_SEGMENT_MIN": Kernel(segment.unsorted_segment_min, segment.unsorted_shape),
    # normalization
    "SOFTMAX": Kernel(normalization.softmax, same_shape),
    "LOG_SOFTMAX": Kernel(normalization.log_softmax, same_shape),
    "L2_NORMALIZATION": Kernel(normalization.l2_normalization, same_shape),
    "LOCAL_RESPONSE_NORMALIZATION": Kernel(normalization.local_response_normalization, same_shape),
    # resize
    "RESIZE_BILINEAR": Kernel(resize.resize_bilinear, resize.resized_shape),
    "RESIZE_NEAREST_NEIGHBOR": Kernel(resize.resize_nearest_neighbor, resize.resized_shape),
    # detection
    "TFLite_Detection_PostProcess": Kernel(
        detection.detection_postprocess, detection.postprocess_shapes
    ),
    "NON_MAX_SUPPRESSION_V4": Kernel(
        detection.non_max_suppression_v4, detection.v4_shapes, settled=detection.v4_shapes
    ),
    "NON_MAX_SUPPRESSION_V5": Kernel(
        detection.non_max_suppression_v5, detection.v5_shapes, settled=detection.v5_shapes
    ),
    # signal
    "RFFT2D": Kernel(signal.rfft2d, signal.rfft2d_shape),
    "IRFFT2D": Kernel(signal.irfft2d, signal.irfft2d_shape),
    "AudioSpectrogram": Kernel(signal.audio_spectrogram, signal.audio_spectrogram_shape),
    "Mfcc": Kernel(signal.mfcc, signal.mfcc_shape),
    # random
    "RANDOM_UNIFORM": Kernel(
        random.random_uniform, random.random_shape, Folds.NEVER, random.philox_state
    ),
    "RANDOM_STANDARD_NORMAL": Kernel(
        random.random_standard_normal, random.random_shape, Folds.NEVER, random.philox_state
    ),
    "MULTINOMIAL": Kernel(
        random.multinomial, random.multinomial_shape, Folds.NEVER, random.philox_state
    ),
    "STABLEHLO_RNG_BIT_GENERATOR": Kernel(
        random.stablehlo_rng_bit_generator,
        stablehlo.undeclared_shapes,
        inferred_shapes=random.bit_generator_shapes,
    ),
    # lookup
    "EMBEDDING_LOOKUP_SPARSE": Kernel(
        lookup.embedding_lookup_sparse, lookup.embedding_lookup_sparse_shape
    ),
    "HASHTABLE_LOOKUP": Kernel(lookup.hashtable_lookup, lookup.hashtable_lookup_shapes),
    "LSH_PROJECTION": Kernel(lookup.lsh_projection, lookup.lsh_projection_shape),
    # text
    "SKIP_GRAM": Kernel(text.skip_gram, text.skip_gram_shape),
    "ParseExample": Kernel(
        parse_example.parse_example,
        stablehlo.undeclared_shapes,
        inferred_shapes=parse_example.parse_example_shapes,
    ),
    "ParseExampleV2": Kernel(
        parse_example.parse_example_v2,
        stablehlo.undeclared_shapes,
        inferred_shapes=parse_example.parse_example_v2_shapes,
    ),
    # custom
    "NumericVerify": Kernel(custom.numeric_verify, same_shape),
    "aeq.hadamard_rotation": Kernel(custom.hadamard_rotation, same_shape),
    # sparse
    "DENSIFY": Kernel(sparse.densify, same_shape),
    # recurrent
    "LSTM": Kernel(lstm.lstm, lstm.lstm_shapes, Folds.NEVER, takes_intermediates=True),
    "UNIDIRECTIONAL_SEQUENCE_LSTM": Kernel(
        lstm.unidirectional_sequence_lstm,
        lstm.sequence_shapes,
        Folds.NEVER,
        takes_intermediates=True,
    ),
    "BIDIRECTIONAL_SEQUENCE_LSTM": Kernel(
        lstm.bidirectional_sequence_lstm, lstm.bidirectional_shapes, Folds.NEVER
    ),
    "RNN": Kernel(recurrent.rnn, recurrent.rnn_shapes, Folds.NEVER),
    "UNIDIRECTIONAL_SEQUENCE_RNN": Kernel(
        recurrent.unidirectional_sequence_rnn, recurrent.sequence_shapes, Folds.NEVER
    ),
    "BIDIRECTIONAL_SEQUENCE_RNN": Kernel(
        recurrent.bidirectional_sequence_rnn, recurrent.bidirectional_shapes, Folds.NEVER
    ),
    "SVDF": Kernel(recurrent.svdf, recurrent.svdf_shapes, Folds.NEVER),
    # control flow
    "CALL": Kernel(
        control_flow.call,
        control_flow.unknown_shapes,
        calls=True,
        inferred_shapes=control_flow.call_shapes,
    ),
    "CALL_ONCE": Kernel(control_flow.call_once, resources.nothing, calls=True),
    "IF": Kernel(
        control_flow.if_,
        control_flow.unknown_shapes,
        calls=True,
        inferred_shapes=control_flow.if_shapes,
    ),
    "STABLEHLO_CASE": Kernel(
        control_flow.case,
        control_flow.unknown_shapes,
        calls=True,
        inferred_shapes=control_flow.case_shapes,
    ),
    "STABLEHLO_COMPOSITE": Kernel(
        control_flow.composite,
        control_flow.unknown_shapes,
        calls=True,
        inferred_shapes=control_flow.composite_shapes,
    ),
    "STABLEHLO_WHILE": Kernel(
        control_flow.while_,
        control_flow.unknown_shapes,
        calls=True,
        inferred_shapes=control_flow.while_shapes,
    ),
    "WHILE": Kernel(
        control_flow.while_,
        control_flow.unknown_shapes,
        calls=True,
        inferred_shapes=control_flow.while_shapes,
    ),
    # resources
    "ASSIGN_VARIABLE": Kernel(
        resources.assign_variable, resources.nothing, calls=True, takes_handle=True
    ),
    "HASHTABLE": Kernel(resources.hashtable, resources.one_handle),
    "HASHTABLE_FIND": Kernel(resources.hashtable_find, resources.hashtable_find_shape, calls=True),
    "HASHTABLE_IMPORT": Kernel(resources.hashtable_import, resources.nothing, calls=True),
    "HASHTABLE_SIZE": Kernel(resources.hashtable_size, resources.one_handle, calls=True),
    "READ_VARIABLE": Kernel(
        resources.read_variable, resources.read_variable_shape, calls=True, takes_handle=True
    ),
    "VAR_HANDLE": Kernel(resources.var_handle, resources.one_handle),
    # StableHLO
    "STABLEHLO_ADD": Kernel(stablehlo.add, stablehlo.one_shape),
    "STABLEHLO_SUBTRACT": Kernel(stablehlo.subtract, stablehlo.one_shape),
    "STABLEHLO_MULTIPLY": Kernel(stablehlo.multiply, stablehlo.one_shape),
    "STABLEHLO_DIVIDE": Kernel(stablehlo.divide, stablehlo.one_shape),
    "STABLEHLO_REMAINDER": Kernel(stablehlo.remainder, stablehlo.one_shape),
    "STABLEHLO_POWER": Kernel(stablehlo.power, stablehlo.one_shape),
    "STABLEHLO_MAXIMUM": Kernel(stablehlo.maximum, stablehlo.one_shape),
    "STABLEHLO_MINIMUM": Kernel(stablehlo.minimum, stablehlo.one_shape),
    "STABLEHLO_AND": Kernel(stablehlo.and_, stablehlo.one_shape),
    "STABLEHLO_OR": Kernel(stablehlo.or_, stablehlo.one_shape),
    "STABLEHLO_SHIFT_LEFT": Kernel(stablehlo.shift_left, stablehlo.one_shape),
    "STABLEHLO_ABS": Kernel(stablehlo.absolute, same_shape),
    "STABLEHLO_NEGATE": Kernel(stablehlo.negate, same_shape),
    "STABLEHLO_COSINE": Kernel(stablehlo.cosine, same_shape),
    "STABLEHLO_EXPONENTIAL": Kernel(stablehlo.exponential, same_shape),
    "STABLEHLO_LOG": Kernel(stablehlo.log, same_shape),
    "STABLEHLO_LOGISTIC": Kernel(stablehlo.logistic, same_shape),
    "STABLEHLO_TANH": Kernel(stablehlo.tanh, same_shape),
    "STABLEHLO_RSQRT": Kernel(stablehlo.rsqrt, same_shape),
    "STABLEHLO_CBRT": Kernel(stablehlo.cbrt, same_shape),
    "STABLEHLO_FLOOR": Kernel(stablehlo.floor, same_shape),
    "STABLEHLO_COMPARE": Kernel(stablehlo.compare, stablehlo.one_shape),
    "STABLEHLO_CONVERT": Kernel(stablehlo.convert, same_shape),
    "STABLEHLO_SELECT": Kernel(stablehlo.select, stablehlo.select_shape),
    "STABLEHLO_CLAMP": Kernel(stablehlo.clamp, stablehlo.clamp_shape),
    "STABLEHLO_RESHAPE": Kernel(
        stablehlo_shape.reshape,
        stablehlo.undeclared_shapes,
        inferred_shapes=stablehlo_shape.reshaped_shape,
    ),
    "STABLEHLO_BROADCAST_IN_DIM": Kernel(
        stablehlo_shape.broadcast_in_dim,
        stablehlo.undeclared_shapes,
        inferred_shapes=stablehlo_shape.broadcast_shape,
    ),
    "STABLEHLO_TRANSPOSE": Kernel(stablehlo_shape.transpose, stablehlo_shape.transposed_shape),
    "STABLEHLO_CONCATENATE": Kernel(
        stablehlo_shape.concatenate, stablehlo_shape.concatenated_shape
    ),
    "STABLEHLO_SLICE": Kernel(stablehlo_shape.slice_, stablehlo_shape.sliced_shape),
    "STABLEHLO_DYNAMIC_SLICE": Kernel(
        stablehlo_shape.dynamic_slice, stablehlo_shape.dynamic_sliced_shape
    ),
    "STABLEHLO_DYNAMIC_UPDATE_SLICE": Kernel(stablehlo_shape.dynamic_update_slice, same_shape),
    "STABLEHLO_PAD": Kernel(stablehlo_shape.pad, stablehlo_shape.padded_shape),
    "DILATE": Kernel(stablehlo_shape.dilate, stablehlo_shape.dilated_shape),
    "STABLEHLO_IOTA": Kernel(
        stablehlo_shape.iota,
        stablehlo.undeclared_shapes,
        inferred_shapes=stablehlo_shape.iota_shape,
    ),
    "STABLEHLO_DOT_GENERAL": Kernel(
        stablehlo_products.dot_general, stablehlo_products.dot_general_shape
    ),
    "STABLEHLO_CONVOLUTION": Kernel(
        stablehlo_products.convolution, stablehlo_products.convolution_shape
    ),
    "STABLEHLO_REDUCE": Kernel(
        stablehlo_window.reduce, stablehlo_window.reduced_shapes, calls=True
    ),
    "STABLEHLO_REDUCE_WINDOW": Kernel(
        stablehlo_window.reduce_window, stablehlo_window.window_shapes, calls=True
    ),
    "REDUCE_WINDOW": Kernel(stablehlo_window.builtin_reduce_window, stablehlo_window.builtin_shape),
    "STABLEHLO_GATHER": Kernel(stablehlo_gather.gather, stablehlo_gather.gathered_shape),
    "STABLEHLO_SCATTER": Kernel(
        stablehlo_gather.scatter, stablehlo_gather.scattered_shapes, calls=True
    ),
    "STABLEHLO_SORT": Kernel(stablehlo_sort.sort, stablehlo_sort.sorted_shapes, calls=True),
    "STABLEHLO_CUSTOM_CALL": Kernel(
        stablehlo.custom_call,
        stablehlo.undeclared_shapes,
        Folds.NEVER,
        inferred_shapes=stablehlo.declared_shapes,
    ),
}
