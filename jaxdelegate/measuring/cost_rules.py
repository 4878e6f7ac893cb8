"""Arithmetic operations of every operator, by family; `costs` states the conventions."""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from jaxdelegate.op_lowering.options import DepthwiseConv2DOptions
from jaxdelegate.op_lowering.options.enums import LSTMKernelType
from jaxdelegate.op_lowering.spec import Specs, TensorSpec


@dataclasses.dataclass(frozen=True)
class Work:
    """Arithmetic operations; None: not known. See `costs.Cost`."""

    flops: int | None
    transcendentals: int = 0
    note: str = ""


Called = Callable[[int], Work | None]
Rule = Callable[[Any, Specs, Specs, Called], Work]

_CELL_OPERATIONS = 9  # of an LSTM: five activations, three products, one sum
_CELL_ACTIVATIONS = 5
_SOFTMAX_OPERATIONS = 5  # maximum, difference, exponential, sum, quotient
_BILINEAR_OPERATIONS = 7  # four products and three sums


def n(spec: TensorSpec) -> int:
    """How many elements a tensor has."""
    return math.prod(spec.shape)


# ---- one operation per element, or none


def _elementwise(_o: Any, _inputs: Specs, outputs: Specs, _called: Called) -> Work:
    return Work(n(outputs[0]))


def _transcendental(_o: Any, _inputs: Specs, outputs: Specs, _called: Called) -> Work:
    return Work(n(outputs[0]), n(outputs[0]))


def _movement(*_: Any) -> Work:
    return Work(0)


def _add_n(_o: Any, inputs: Specs, outputs: Specs, _called: Called) -> Work:
    return Work(max(len(inputs) - 1, 0) * n(outputs[0]))


def _per_input(_o: Any, inputs: Specs, _outputs: Specs, _called: Called) -> Work:
    return Work(n(inputs[0]))


def _host_work(*_: Any) -> Work:
    return Work(0, note="work on strings or tables is not counted")


# ---- convolutions and products


def _convolution(_o: Any, inputs: Specs, outputs: Specs, _called: Called) -> Work:
    """Filter [O, H, W, I]; I is a group's."""
    return Work(2 * n(outputs[0]) * math.prod(inputs[1].shape[1:]))


def _depthwise(_o: Any, inputs: Specs, outputs: Specs, _called: Called) -> Work:
    """Filter [1, H, W, C*M]."""
    return Work(2 * n(outputs[0]) * math.prod(inputs[1].shape[1:3]))


def _ended_convolution(o: Any, inputs: Specs, outputs: Specs, called: Called) -> Work:
    is_depthwise = isinstance(o.convolution, DepthwiseConv2DOptions)
    return (_depthwise if is_depthwise else _convolution)(o, inputs, outputs, called)


def _convolution_3d(_o: Any, inputs: Specs, outputs: Specs, _called: Called) -> Work:
    """Filter [D, H, W, I, O]."""
    return Work(2 * n(outputs[0]) * math.prod(inputs[1].shape[:4]))


def _transpose_convolution(_o: Any, inputs: Specs, _outputs: Specs, _called: Called) -> Work:
    """Inputs: output shape, filter [O, H, W, I], x [N, H, W, I]."""
    return Work(2 * n(inputs[2]) * math.prod(inputs[1].shape[:3]))


def _transpose_convolution_3d(_o: Any, inputs: Specs, _outputs: Specs, _called: Called) -> Work:
    """Inputs: output shape, filter [D, H, W, O, I], x [N, D, H, W, I]."""
    return Work(2 * n(inputs[2]) * math.prod(inputs[1].shape[:4]))


def _transpose_convolution_bias(_o: Any, inputs: Specs, _outputs: Specs, _called: Called) -> Work:
    """MediaPipe's: x [N, H, W, I], filter [O, H, W, I], bias."""
    return Work(2 * n(inputs[0]) * math.prod(inputs[1].shape[:3]))


def _fully_connected(_o: Any, inputs: Specs, _outputs: Specs, _called: Called) -> Work:
    """Weights [units, depth]; x in rows of `depth`."""
    depth = inputs[1].shape[-1]
    return Work(2 * (n(inputs[0]) // depth) * n(inputs[1]) if depth else 0)


def _batch_matmul(o: Any, inputs: Specs, outputs: Specs, _called: Called) -> Work:
    return Work(2 * n(outputs[0]) * inputs[0].shape[-2 if o.adj_x else -1])


def _dot_general(o: Any, inputs: Specs, outputs: Specs, _called: Called) -> Work:
    contracted = math.prod(inputs[0].shape[i] for i in o.lhs_contracting_dimensions)
    return Work(2 * n(outputs[0]) * contracted)


def _stablehlo_convolution(o: Any, inputs: Specs, outputs: Specs, _called: Called) -> Work:
    kernel = inputs[1]
    return Work(2 * n(outputs[0]) * n(kernel) // kernel.shape[o.kernel_output_feature_dimension])


def _hadamard(o: Any, inputs: Specs, _outputs: Specs, _called: Called) -> Work:
    return Work(n(inputs[0]) * int(math.log2(max(o.hadamard_size, 1))))


# ---- windows, reductions, normalizations


def _pool(per_tap: int, o: Any, _inputs: Specs, outputs: Specs, _called: Called) -> Work:
    return Work(per_tap * n(outputs[0]) * o.filter_height * o.filter_width)


def _tensorflow_pool(o: Any, _inputs: Specs, outputs: Specs, _called: Called) -> Work:
    return Work(n(outputs[0]) * math.prod(o.ksize))


def _reduce_window(o: Any, inputs: Specs, outputs: Specs, called: Called) -> Work:
    window = getattr(o, "window_dimensions", ()) or tuple(map(int, _values(inputs[2])))
    body = called(o.body_subgraph_index) if hasattr(o, "body_subgraph_index") else Work(1)
    return _times(n(outputs[0]) * math.prod(window), body)


def _values(spec: TensorSpec) -> Iterable[Any]:
    if spec.const is None:
        raise TypeError
    return spec.const.ravel()


def _stablehlo_reduce(o: Any, inputs: Specs, _outputs: Specs, called: Called) -> Work:
    return _times(n(inputs[0]), called(o.body_subgraph_index))


def _sort(o: Any, inputs: Specs, _outputs: Specs, called: Called) -> Work:
    length = inputs[0].shape[o.dimension] if inputs[0].shape else 1
    comparisons = n(inputs[0]) * max(length - 1, 1).bit_length()
    work = _times(comparisons, called(o.comparator_subgraph_index))
    return dataclasses.replace(work, note="estimate: n log n comparisons")


def _scatter(o: Any, inputs: Specs, _outputs: Specs, called: Called) -> Work:
    return _times(n(inputs[2]), called(o.update_computation_subgraph_index))


def _softmax(_o: Any, inputs: Specs, _outputs: Specs, _called: Called) -> Work:
    return Work(_SOFTMAX_OPERATIONS * n(inputs[0]), n(inputs[0]))


def _l2_normalization(_o: Any, inputs: Specs, _outputs: Specs, _called: Called) -> Work:
    rows = n(inputs[0]) // max(inputs[0].shape[-1], 1)
    return Work(3 * n(inputs[0]), rows)


def _local_response(o: Any, inputs: Specs, _outputs: Specs, _called: Called) -> Work:
    return Work(n(inputs[0]) * (2 * (2 * o.radius + 1) + 4), n(inputs[0]))


def _top_k(_o: Any, inputs: Specs, _outputs: Specs, _called: Called) -> Work:
    return Work(n(inputs[0]), note="estimate: one comparison per element")


def _bilinear(_o: Any, _inputs: Specs, outputs: Specs, _called: Called) -> Work:
    return Work(_BILINEAR_OPERATIONS * n(outputs[0]))


# ---- signals, detection, lookup


def _fourier(_o: Any, inputs: Specs, outputs: Specs, _called: Called) -> Work:
    real = max(inputs[0], outputs[0], key=lambda spec: 0 if spec.dtype.kind == "c" else n(spec))
    points = math.prod(real.shape[-2:])
    return Work(
        round(2.5 * n(real) * math.log2(max(points, 1))), note="estimate: 2.5 n log2 n, real input"
    )


def _spectrogram(o: Any, _inputs: Specs, outputs: Specs, _called: Called) -> Work:
    points = 1 << max(o.window_size - 1, 1).bit_length()
    frames = n(outputs[0]) // (points // 2 + 1)
    flops = frames * (o.window_size + round(2.5 * points * math.log2(points)))
    return Work(flops + 3 * n(outputs[0]), note="estimate: 2.5 n log2 n per frame")


def _mfcc(o: Any, inputs: Specs, outputs: Specs, _called: Called) -> Work:
    frames = n(outputs[0]) // max(o.dct_coefficient_count, 1)
    mel = 2 * n(inputs[0])
    cosine = 2 * frames * o.filterbank_channel_count * o.dct_coefficient_count
    return Work(mel + cosine, frames * o.filterbank_channel_count, "estimate")


def _detection(_o: Any, inputs: Specs, _outputs: Specs, _called: Called) -> Work:
    boxes = n(inputs[0]) // max(inputs[0].shape[-1], 1)
    note = "boxes and scores; how often boxes are compared depends on data"
    return Work(12 * boxes + n(inputs[1]), 2 * boxes, note)


def _suppression(_o: Any, inputs: Specs, _outputs: Specs, _called: Called) -> Work:
    return Work(n(inputs[1]), note="one per score; how often boxes are compared depends on data")


def _embedding_lookup_sparse(_o: Any, inputs: Specs, _outputs: Specs, _called: Called) -> Work:
    """Inputs: ids [k], indices, dense shape, weights [k], table [rows, ...]."""
    return Work(2 * n(inputs[0]) * math.prod(inputs[4].shape[1:]))


def _random(_o: Any, _inputs: Specs, outputs: Specs, _called: Called) -> Work:
    return Work(n(outputs[0]), note="generator's rounds are not counted")


# ---- recurrent


def _recurrent(
    cell: int,
    activations: int,
    is_sequence: bool,
    o: Any,
    inputs: Specs,
    outputs: Specs,
    _called: Called,
) -> Work:
    """Every weight matrix once per row and time step, and the cells' own arithmetic."""
    x = inputs[0]
    rows = x.shape[0] * (x.shape[1] if is_sequence else 1)  # batch and time, in either order
    weights = _weights(o, inputs)
    products = sum(n(w) for w in weights if len(w.shape) == 2)
    vectors = sum(n(w) for w in weights if len(w.shape) == 1)
    units = sum(spec.shape[-1] for spec in outputs[: 1 if getattr(o, "merge_outputs", True) else 2])
    note = "per run: all time steps" if is_sequence else ""
    return Work(rows * (2 * products + vectors + cell * units), rows * activations * units, note)


def _weights(o: Any, inputs: Specs) -> list[TensorSpec]:
    """Weights and biases: what is neither data nor a state."""
    if getattr(o, "kernel_type", None) is LSTMKernelType.BASIC:  # data, output, weights, bias, cell
        return list(inputs[2:4])
    return [spec for spec in inputs[1:] if spec is not None and not spec.is_variable]


def _svdf(_o: Any, inputs: Specs, _outputs: Specs, _called: Called) -> Work:
    """Weights over features [filters, depth] and over time [filters, memory]."""
    batch = inputs[0].shape[0]
    return Work(2 * batch * (n(inputs[1]) + n(inputs[2])))


# ---- operators that call subgraphs


def _times(count: int, body: Work | None) -> Work:
    if body is None or body.flops is None:
        return Work(None, note="the subgraph's cost is not known")
    return Work(count * body.flops, count * body.transcendentals)


def _sum(works: Iterable[Work | None], note: str) -> Work:
    known = [w for w in works if w is not None and w.flops is not None]
    flops = sum(w.flops or 0 for w in known)
    return Work(flops, sum(w.transcendentals for w in known), note) if known else Work(None)


def _calling(field: str, o: Any, _inputs: Specs, _outputs: Specs, called: Called) -> Work:
    return called(getattr(o, field)) or Work(None, note="the subgraph's cost is not known")


def _loop(o: Any, _inputs: Specs, _outputs: Specs, called: Called) -> Work:
    works = [called(o.cond_subgraph_index), called(o.body_subgraph_index)]
    return _sum(works, "per iteration; how many there are depends on data")


def _branches(fields: tuple[str, ...], o: Any, _i: Specs, _o: Specs, called: Called) -> Work:
    indices = [getattr(o, field) for field in fields]
    if fields == ("branch_subgraph_indices",):
        indices = list(indices[0])
    works = [w for w in map(called, indices) if w is not None and w.flops is not None]
    if not works:
        return Work(None, note="the subgraphs' cost is not known")
    dearest = max(works, key=lambda work: work.flops or 0)
    return dataclasses.replace(dearest, note="the dearest branch")


def _once(*_: Any) -> Work:
    return Work(0, note="runs at the first invoke only")


_PARTIAL = functools.partial
_FAMILIES: Mapping[Rule, str] = {
    _elementwise: """
        ABS ADD BITCAST BITWISE_XOR CAST CEIL COMPLEX_ABS DEQUANTIZE DIV EQUAL FAKE_QUANT FLOOR
        FLOOR_DIV FLOOR_MOD GREATER GREATER_EQUAL HARD_SWISH LEAKY_RELU LESS LESS_EQUAL LOGICAL_AND
        LOGICAL_NOT LOGICAL_OR MAXIMUM MINIMUM MUL NEG NOT_EQUAL NumericVerify PRELU QUANTIZE RELU
        RELU6 RELU_0_TO_1 RELU_N1_TO_1 RIGHT_SHIFT ROUND SELECT SELECT_V2 SIGN SQUARE
        SQUARED_DIFFERENCE SUB STABLEHLO_ABS STABLEHLO_ADD STABLEHLO_AND STABLEHLO_CLAMP
        STABLEHLO_COMPARE STABLEHLO_CONVERT STABLEHLO_DIVIDE STABLEHLO_FLOOR STABLEHLO_MAXIMUM
        STABLEHLO_MINIMUM STABLEHLO_MULTIPLY STABLEHLO_NEGATE STABLEHLO_OR STABLEHLO_REMAINDER
        STABLEHLO_SELECT STABLEHLO_SHIFT_LEFT STABLEHLO_SUBTRACT""",
    _transcendental: """
        ATAN2 COS ELU EXP GELU LOG LOGISTIC POW RSQRT SIN SQRT TANH STABLEHLO_CBRT STABLEHLO_COSINE
        STABLEHLO_EXPONENTIAL STABLEHLO_LOG STABLEHLO_LOGISTIC STABLEHLO_POWER STABLEHLO_RSQRT
        STABLEHLO_TANH""",
    _movement: """
        ASSIGN_VARIABLE BATCH_TO_SPACE_ND BROADCAST_ARGS BROADCAST_TO BroadcastGradientArgs
        CONCATENATION DENSIFY DEPTH_TO_SPACE DILATE DYNAMIC_UPDATE_SLICE EMBEDDING_LOOKUP
        EXPAND_DIMS FILL GATHER GATHER_ND IMAG MATRIX_DIAG MATRIX_SET_DIAG MIRROR_PAD
        MaxUnpooling2D ONE_HOT PACK PAD PADV2 RANGE RANK READ_VARIABLE REAL RESHAPE
        RESIZE_NEAREST_NEIGHBOR REVERSE_SEQUENCE REVERSE_V2 Roll SCATTER_ND SHAPE SLICE
        SPACE_TO_BATCH_ND SPACE_TO_DEPTH SPARSE_TO_DENSE SPLIT SPLIT_V SQUEEZE STRIDED_SLICE TILE
        TRANSPOSE UNPACK VAR_HANDLE WHERE ZEROS_LIKE STABLEHLO_BROADCAST_IN_DIM
        STABLEHLO_CONCATENATE STABLEHLO_DYNAMIC_SLICE STABLEHLO_DYNAMIC_UPDATE_SLICE
        STABLEHLO_GATHER STABLEHLO_IOTA STABLEHLO_PAD STABLEHLO_RESHAPE STABLEHLO_SLICE
        STABLEHLO_TRANSPOSE""",
    _add_n: "ADD_N",
    _per_input: """
        ARG_MAX ARG_MIN BUCKETIZE CUMSUM MEAN REDUCE_ALL REDUCE_ANY REDUCE_MAX REDUCE_MIN
        REDUCE_PROD SEGMENT_SUM SUM UNSORTED_SEGMENT_MAX UNSORTED_SEGMENT_MIN UNSORTED_SEGMENT_PROD
        UNSORTED_SEGMENT_SUM""",
    _host_work: """
        HASHTABLE HASHTABLE_FIND HASHTABLE_IMPORT HASHTABLE_LOOKUP HASHTABLE_SIZE LSH_PROJECTION
        ParseExample ParseExampleV2 SKIP_GRAM UNIQUE""",
    _convolution: "CONV_2D",
    _depthwise: "DEPTHWISE_CONV_2D",
    _ended_convolution: "ended_convolution",
    _convolution_3d: "CONV_3D",
    _transpose_convolution: "TRANSPOSE_CONV",
    _transpose_convolution_3d: "CONV_3D_TRANSPOSE",
    _transpose_convolution_bias: "Convolution2DTransposeBias",
    _fully_connected: "FULLY_CONNECTED",
    _batch_matmul: "BATCH_MATMUL",
    _dot_general: "STABLEHLO_DOT_GENERAL",
    _stablehlo_convolution: "STABLEHLO_CONVOLUTION",
    _hadamard: "aeq.hadamard_rotation",
    _PARTIAL(_pool, 1): "AVERAGE_POOL_2D MAX_POOL_2D MaxPoolingWithArgmax2D",
    _PARTIAL(_pool, 2): "L2_POOL_2D",
    _tensorflow_pool: "AvgPool3D MaxPool3D MaxPoolWithArgmax",
    _reduce_window: "REDUCE_WINDOW STABLEHLO_REDUCE_WINDOW",
    _stablehlo_reduce: "STABLEHLO_REDUCE",
    _sort: "STABLEHLO_SORT",
    _scatter: "STABLEHLO_SCATTER",
    _softmax: "SOFTMAX LOG_SOFTMAX",
    _l2_normalization: "L2_NORMALIZATION",
    _local_response: "LOCAL_RESPONSE_NORMALIZATION",
    _top_k: "TOPK_V2",
    _bilinear: "RESIZE_BILINEAR",
    _fourier: "RFFT2D IRFFT2D",
    _spectrogram: "AudioSpectrogram",
    _mfcc: "Mfcc",
    _detection: "TFLite_Detection_PostProcess",
    _suppression: "NON_MAX_SUPPRESSION_V4 NON_MAX_SUPPRESSION_V5",
    _embedding_lookup_sparse: "EMBEDDING_LOOKUP_SPARSE",
    _random: "MULTINOMIAL RANDOM_STANDARD_NORMAL RANDOM_UNIFORM STABLEHLO_RNG_BIT_GENERATOR",
    _PARTIAL(_recurrent, 1, 1, False): "RNN",
    _PARTIAL(_recurrent, 1, 1, True): "BIDIRECTIONAL_SEQUENCE_RNN UNIDIRECTIONAL_SEQUENCE_RNN",
    _PARTIAL(_recurrent, _CELL_OPERATIONS, _CELL_ACTIVATIONS, False): "LSTM",
    _PARTIAL(
        _recurrent, _CELL_OPERATIONS, _CELL_ACTIVATIONS, True
    ): "BIDIRECTIONAL_SEQUENCE_LSTM UNIDIRECTIONAL_SEQUENCE_LSTM",
    _svdf: "SVDF",
    _PARTIAL(_calling, "subgraph"): "CALL",
    _PARTIAL(_calling, "decomposition_subgraph_index"): "STABLEHLO_COMPOSITE",
    _once: "CALL_ONCE",
    _loop: "WHILE STABLEHLO_WHILE",
    _PARTIAL(_branches, ("then_subgraph_index", "else_subgraph_index")): "IF",
    _PARTIAL(_branches, ("branch_subgraph_indices",)): "STABLEHLO_CASE",
}
RULES: Mapping[str, Rule] = {
    name: rule for rule, names in _FAMILIES.items() for name in names.split()
}
