"""Options tables, field names as in schema.fbs: what neural networks are made of."""

from jaxdelegate.op_lowering.options import c_struct as c
from jaxdelegate.op_lowering.options import costs
from jaxdelegate.op_lowering.options.enums import (
    ActivationFunctionType,
    CombinerType,
    FullyConnectedOptionsWeightsFormat,
    LSHProjectionType,
    LSTMKernelType,
    Padding,
    TensorType,
)
from jaxdelegate.op_lowering.options.operator import Batch, OperatorRecord, Result, Scales, table
from jaxdelegate.op_lowering.options.record import Options, Record
from jaxdelegate.op_lowering.spec import Specs


class Conv2DOptions(Record):
    """Table `Conv2DOptions`: CONV_2D."""

    padding: Padding = Padding.SAME
    stride_w: int = 0
    stride_h: int = 0
    fused_activation_function: ActivationFunctionType = ActivationFunctionType.NONE
    dilation_w_factor: int = 1
    dilation_h_factor: int = 1
    quantized_bias_type: TensorType = TensorType.FLOAT32


class DepthwiseConv2DOptions(Record):
    """Table `DepthwiseConv2DOptions`: DEPTHWISE_CONV_2D."""

    padding: Padding = Padding.SAME
    stride_w: int = 0
    stride_h: int = 0
    depth_multiplier: int = 0
    fused_activation_function: ActivationFunctionType = ActivationFunctionType.NONE
    dilation_w_factor: int = 1
    dilation_h_factor: int = 1


class ExplicitConv2DOptions(Conv2DOptions):
    """No table of the schema: a VALID CONV_2D over zeros before and after height and width."""

    pads: tuple[tuple[int, int], tuple[int, int]] = ((0, 0), (0, 0))


class ExplicitDepthwiseConv2DOptions(DepthwiseConv2DOptions):
    """No table of the schema: a VALID DEPTHWISE_CONV_2D over zeros around height and width."""

    pads: tuple[tuple[int, int], tuple[int, int]] = ((0, 0), (0, 0))


def explicit_pads(options: Options) -> tuple[tuple[int, int], tuple[int, int]]:
    """Zeros before and after height and width; none where the schema's table stands alone."""
    if isinstance(options, ExplicitConv2DOptions | ExplicitDepthwiseConv2DOptions):
        return options.pads
    return (0, 0), (0, 0)


class ConcatEmbeddingsOptions(Record):
    """Table `ConcatEmbeddingsOptions`: CONCAT_EMBEDDINGS."""

    num_channels: int = 0
    num_columns_per_channel: tuple[int, ...] = ()
    embedding_dim_per_channel: tuple[int, ...] = ()


class LSHProjectionOptions(Record):
    """Table `LSHProjectionOptions`: LSH_PROJECTION."""

    type: LSHProjectionType = LSHProjectionType.UNKNOWN


class Pool2DOptions(Record):
    """Table `Pool2DOptions`: AVERAGE_POOL_2D, MAX_POOL_2D, L2_POOL_2D."""

    padding: Padding = Padding.SAME
    stride_w: int = 0
    stride_h: int = 0
    filter_width: int = 0
    filter_height: int = 0
    fused_activation_function: ActivationFunctionType = ActivationFunctionType.NONE


class SVDFOptions(Record):
    """Table `SVDFOptions`: SVDF."""

    rank: int = 0
    fused_activation_function: ActivationFunctionType = ActivationFunctionType.NONE
    asymmetric_quantize_inputs: bool = False


class RNNOptions(Record):
    """Table `RNNOptions`: RNN."""

    fused_activation_function: ActivationFunctionType = ActivationFunctionType.NONE
    asymmetric_quantize_inputs: bool = False


class FullyConnectedOptions(Record):
    """Table `FullyConnectedOptions`: FULLY_CONNECTED."""

    fused_activation_function: ActivationFunctionType = ActivationFunctionType.NONE
    weights_format: FullyConnectedOptionsWeightsFormat = FullyConnectedOptionsWeightsFormat.DEFAULT
    keep_num_dims: bool = False
    asymmetric_quantize_inputs: bool = False
    quantized_bias_type: TensorType = TensorType.FLOAT32
    quant_spec: bytes = b""  # opaque; stock delegates refuse an operator that has it


class SoftmaxOptions(Record):
    """Table `SoftmaxOptions`: SOFTMAX."""

    beta: float = 0.0


class L2NormOptions(Record):
    """Table `L2NormOptions`: L2_NORMALIZATION."""

    fused_activation_function: ActivationFunctionType = ActivationFunctionType.NONE


class LocalResponseNormalizationOptions(Record):
    """Table `LocalResponseNormalizationOptions`: LOCAL_RESPONSE_NORMALIZATION."""

    radius: int = 0
    bias: float = 0.0
    alpha: float = 0.0
    beta: float = 0.0


class LSTMOptions(Record):
    """Table `LSTMOptions`: LSTM."""

    fused_activation_function: ActivationFunctionType = ActivationFunctionType.NONE
    cell_clip: float = 0.0
    proj_clip: float = 0.0
    kernel_type: LSTMKernelType = LSTMKernelType.FULL
    asymmetric_quantize_inputs: bool = False


class ResizeBilinearOptions(Record):
    """Table `ResizeBilinearOptions`: RESIZE_BILINEAR."""

    align_corners: bool = False
    half_pixel_centers: bool = False


class SkipGramOptions(Record):
    """Table `SkipGramOptions`: SKIP_GRAM."""

    ngram_size: int = 0
    max_skip_size: int = 0
    include_all_ngrams: bool = False


class EmbeddingLookupSparseOptions(Record):
    """Table `EmbeddingLookupSparseOptions`: EMBEDDING_LOOKUP_SPARSE."""

    combiner: CombinerType = CombinerType.SUM


class SequenceRNNOptions(Record):
    """Table `SequenceRNNOptions`: UNIDIRECTIONAL_SEQUENCE_RNN."""

    time_major: bool = False
    fused_activation_function: ActivationFunctionType = ActivationFunctionType.NONE
    asymmetric_quantize_inputs: bool = False


class LogSoftmaxOptions(Record):
    """Table `LogSoftmaxOptions`: LOG_SOFTMAX."""


class DequantizeOptions(Record):
    """Table `DequantizeOptions`: DEQUANTIZE."""


class TransposeConvOptions(Record):
    """Table `TransposeConvOptions`: TRANSPOSE_CONV."""

    padding: Padding = Padding.SAME
    stride_w: int = 0
    stride_h: int = 0
    fused_activation_function: ActivationFunctionType = ActivationFunctionType.NONE
    quantized_bias_type: TensorType = TensorType.FLOAT32


class FakeQuantOptions(Record):
    """Table `FakeQuantOptions`: FAKE_QUANT."""

    min: float = 0.0
    max: float = 0.0
    num_bits: int = 0
    narrow_range: bool = False


class BidirectionalSequenceLSTMOptions(Record):
    """Table `BidirectionalSequenceLSTMOptions`: BIDIRECTIONAL_SEQUENCE_LSTM."""

    fused_activation_function: ActivationFunctionType = ActivationFunctionType.NONE
    cell_clip: float = 0.0
    proj_clip: float = 0.0
    merge_outputs: bool = False
    time_major: bool = True
    asymmetric_quantize_inputs: bool = False


class BidirectionalSequenceRNNOptions(Record):
    """Table `BidirectionalSequenceRNNOptions`: BIDIRECTIONAL_SEQUENCE_RNN."""

    time_major: bool = False
    fused_activation_function: ActivationFunctionType = ActivationFunctionType.NONE
    merge_outputs: bool = False
    asymmetric_quantize_inputs: bool = False


class UnidirectionalSequenceLSTMOptions(Record):
    """Table `UnidirectionalSequenceLSTMOptions`: UNIDIRECTIONAL_SEQUENCE_LSTM."""

    fused_activation_function: ActivationFunctionType = ActivationFunctionType.NONE
    cell_clip: float = 0.0
    proj_clip: float = 0.0
    time_major: bool = False
    asymmetric_quantize_inputs: bool = False
    diagonal_recurrent_tensors: bool = False


class ResizeNearestNeighborOptions(Record):
    """Table `ResizeNearestNeighborOptions`: RESIZE_NEAREST_NEIGHBOR."""

    align_corners: bool = False
    half_pixel_centers: bool = False


class LeakyReluOptions(Record):
    """Table `LeakyReluOptions`: LEAKY_RELU."""

    alpha: float = 0.0


class QuantizeOptions(Record):
    """Table `QuantizeOptions`: QUANTIZE."""


class HardSwishOptions(Record):
    """Table `HardSwishOptions`: HARD_SWISH."""


class NonMaxSuppressionV4Options(Record):
    """Table `NonMaxSuppressionV4Options`: NON_MAX_SUPPRESSION_V4."""


class NonMaxSuppressionV5Options(Record):
    """Table `NonMaxSuppressionV5Options`: NON_MAX_SUPPRESSION_V5."""


class DensifyOptions(Record):
    """Table `DensifyOptions`: DENSIFY."""


class BatchMatMulOptions(Record):
    """Table `BatchMatMulOptions`: BATCH_MATMUL."""

    adj_x: bool = False
    adj_y: bool = False
    asymmetric_quantize_inputs: bool = False


class Rfft2dOptions(Record):
    """Table `Rfft2dOptions`: RFFT2D."""


class Conv3DOptions(Record):
    """Table `Conv3DOptions`: CONV_3D, CONV_3D_TRANSPOSE."""

    padding: Padding = Padding.SAME
    stride_d: int = 0
    stride_w: int = 0
    stride_h: int = 0
    fused_activation_function: ActivationFunctionType = ActivationFunctionType.NONE
    dilation_d_factor: int = 1
    dilation_w_factor: int = 1
    dilation_h_factor: int = 1


class GeluOptions(Record):
    """Table `GeluOptions`: GELU."""

    approximate: bool = False


def convolution_channels(_options: Options, inputs: Specs, _outputs: Specs) -> tuple[int, int]:
    """Filter [O, H, W, I]."""
    return inputs[1].shape[3], inputs[1].shape[0]


def matrix_channels(_options: Options, inputs: Specs, _outputs: Specs) -> tuple[int, int]:
    """Weights [N, input channels]."""
    output_channels, input_channels = inputs[1].shape
    return input_channels, output_channels


def batch_matmul_channels(
    options: BatchMatMulOptions, inputs: Specs, outputs: Specs
) -> tuple[int, int]:
    """Matrices, perhaps transposed."""
    return inputs[0].shape[-2 if options.adj_x else -1], outputs[0].shape[-1]


RECORDS = table(
    OperatorRecord(
        "AVERAGE_POOL_2D",
        Pool2DOptions,
        cost=costs.pool,
        struct=c.POOL,
        result=Result.REDUCED,
        batch=Batch.FIRST_INPUT,
        scales=Scales.EQUAL,
    ),
    OperatorRecord(
        "BATCH_MATMUL",
        BatchMatMulOptions,
        cost=costs.batch_matmul,
        struct={"adj_x": c.BOOL, "adj_y": c.BOOL, "asymmetric_quantize_inputs": c.BOOL},
        multiplies=True,
        result=Result.REDUCED,
        batch=Batch.MATRICES,
        channels=batch_matmul_channels,
        scales=Scales.FREE,
    ),
    OperatorRecord(
        "BIDIRECTIONAL_SEQUENCE_LSTM",
        BidirectionalSequenceLSTMOptions,
        cost=costs.lstm,
        struct={
            "fused_activation_function": c.ACTIVATION,
            "cell_clip": c.FLOAT,
            "proj_clip": c.FLOAT,
            "merge_outputs": c.BOOL,
            "time_major": c.BOOL,
            "asymmetric_quantize_inputs": c.BOOL,
        },
        multiplies=True,
        result=Result.REDUCED,
        reads_uint8_as_int8=True,
    ),
    OperatorRecord(
        "BIDIRECTIONAL_SEQUENCE_RNN",
        BidirectionalSequenceRNNOptions,
        cost=costs.rnn,
        struct={
            "time_major": c.BOOL,
            "fused_activation_function": c.ACTIVATION,
            "merge_outputs": c.BOOL,
            "asymmetric_quantize_inputs": c.BOOL,
        },
        multiplies=True,
        result=Result.REDUCED,
        reads_uint8_as_int8=True,
    ),
    OperatorRecord(
        "CONCAT_EMBEDDINGS", ConcatEmbeddingsOptions, cost=costs.unknown, struct=c.NOT_HANDED_OUT
    ),
    OperatorRecord(
        "CONV_2D",
        Conv2DOptions,
        cost=costs.convolution,
        struct={
            "padding": c.PADDING,
            "stride_w": c.INT,
            "stride_h": c.INT,
            "fused_activation_function": c.ACTIVATION,
            "dilation_w_factor": c.INT,
            "dilation_h_factor": c.INT,
            "quantized_bias_type": c.TYPE,
        },
        multiplies=True,
        result=Result.REDUCED,
        is_costly_requantized=True,
        batch=Batch.FIRST_INPUT,
        reads_uint8_as_int8=True,
        channels=convolution_channels,
        scales=Scales.FREE,
        bias=(0, 1, 2),
    ),
    OperatorRecord(
        "CONV_3D",
        Conv3DOptions,
        cost=costs.convolution_3d,
        struct=c.CONV_3D,
        multiplies=True,
        result=Result.REDUCED,
        scales=Scales.FREE,
        bias=(0, 1, 2),
    ),
    OperatorRecord(
        "CONV_3D_TRANSPOSE",
        Conv3DOptions,
        cost=costs.transpose_convolution_3d,
        struct=c.CONV_3D,
        multiplies=True,
        result=Result.REDUCED,
    ),
    OperatorRecord("DENSIFY", DensifyOptions, cost=costs.movement),
    OperatorRecord(
        "DEPTHWISE_CONV_2D",
        DepthwiseConv2DOptions,
        cost=costs.depthwise,
        struct={
            "padding": c.PADDING,
            "stride_w": c.INT,
            "stride_h": c.INT,
            "depth_multiplier": c.INT,
            "fused_activation_function": c.ACTIVATION,
            "dilation_w_factor": c.INT,
            "dilation_h_factor": c.INT,
        },
        multiplies=True,
        result=Result.REDUCED,
        batch=Batch.FIRST_INPUT,
        scales=Scales.FREE,
        bias=(0, 1, 2),
    ),
    OperatorRecord(
        "DEQUANTIZE",
        DequantizeOptions,
        cost=costs.elementwise,
        is_elementwise=True,
        scales=Scales.FREE,
        ignores_scales=frozenset(),
    ),
    OperatorRecord(
        "ELU",
        cost=costs.transcendental,
        is_elementwise=True,
        result=Result.REDUCED,
        scales=Scales.FREE,
    ),
    OperatorRecord(
        "EMBEDDING_LOOKUP_SPARSE",
        EmbeddingLookupSparseOptions,
        cost=costs.embedding_lookup_sparse,
        struct={"combiner": c.same(CombinerType)},
    ),
    OperatorRecord(
        "FAKE_QUANT",
        FakeQuantOptions,
        cost=costs.elementwise,
        struct={"min": c.FLOAT, "max": c.FLOAT, "num_bits": c.INT, "narrow_range": c.BOOL},
    ),
    OperatorRecord(
        "FULLY_CONNECTED",
        FullyConnectedOptions,
        cost=costs.fully_connected,
        struct={
            "fused_activation_function": c.ACTIVATION,
            "weights_format": c.same(FullyConnectedOptionsWeightsFormat),
            "keep_num_dims": c.BOOL,
            "asymmetric_quantize_inputs": c.BOOL,
            "quantized_bias_type": c.TYPE,
        },
        multiplies=True,
        result=Result.REDUCED,
        batch=Batch.ROWS,
        reads_uint8_as_int8=True,
        channels=matrix_channels,
        scales=Scales.FREE,
        bias=(0, 1, 2),
    ),
    OperatorRecord(
        "GELU",
        GeluOptions,
        cost=costs.transcendental,
        struct={"approximate": c.BOOL},
        is_elementwise=True,
        result=Result.REDUCED,
        scales=Scales.FREE,
    ),
    OperatorRecord(
        "HARD_SWISH",
        HardSwishOptions,
        cost=costs.elementwise,
        is_elementwise=True,
        result=Result.REDUCED,
        scales=Scales.FREE,
    ),
    OperatorRecord(
        "L2_NORMALIZATION",
        L2NormOptions,
        cost=costs.l2_normalization,
        struct=c.ACTIVATED,
        batch=Batch.LAST_AXIS,
        scales=Scales.OF_INPUTS,
    ),
    OperatorRecord("L2_POOL_2D", Pool2DOptions, cost=costs.l2_pool, struct=c.POOL),
    OperatorRecord(
        "LEAKY_RELU",
        LeakyReluOptions,
        cost=costs.elementwise,
        struct={"alpha": c.FLOAT},
        is_elementwise=True,
        result=Result.REDUCED,
        scales=Scales.FREE,
    ),
    OperatorRecord(
        "LOCAL_RESPONSE_NORMALIZATION",
        LocalResponseNormalizationOptions,
        cost=costs.local_response,
        struct={"radius": c.INT, "bias": c.FLOAT, "alpha": c.FLOAT, "beta": c.FLOAT},
    ),
    OperatorRecord(
        "LOGISTIC",
        cost=costs.transcendental,
        is_elementwise=True,
        result=Result.REDUCED,
        scales=Scales.OF_INPUTS,
    ),
    OperatorRecord(
        "LOG_SOFTMAX",
        LogSoftmaxOptions,
        cost=costs.softmax,
        reads_unrounded=True,
        rereads=True,
        batch=Batch.LAST_AXIS,
        scales=Scales.OF_INPUTS,
    ),
    OperatorRecord(
        "LSH_PROJECTION",
        LSHProjectionOptions,
        cost=costs.host_work,
        struct={"type": c.same(LSHProjectionType)},
    ),
    OperatorRecord(
        "LSTM",
        LSTMOptions,
        cost=costs.lstm_step,
        struct={
            "fused_activation_function": c.ACTIVATION,
            "cell_clip": c.FLOAT,
            "proj_clip": c.FLOAT,
            "kernel_type": c.same(LSTMKernelType),
            "asymmetric_quantize_inputs": c.BOOL,
        },
        multiplies=True,
        result=Result.REDUCED,
        reads_uint8_as_int8=True,
    ),
    OperatorRecord(
        "MAX_POOL_2D",
        Pool2DOptions,
        cost=costs.pool,
        struct=c.POOL,
        result=Result.MOVED,
        batch=Batch.FIRST_INPUT,
        scales=Scales.EQUAL,
    ),
    OperatorRecord(
        "NON_MAX_SUPPRESSION_V4",
        NonMaxSuppressionV4Options,
        cost=costs.suppression,
        reads_unrounded=True,
    ),
    OperatorRecord(
        "NON_MAX_SUPPRESSION_V5",
        NonMaxSuppressionV5Options,
        cost=costs.suppression,
        reads_unrounded=True,
    ),
    OperatorRecord(
        "PRELU",
        cost=costs.elementwise,
        is_elementwise=True,
        result=Result.REDUCED,
        scales=Scales.FREE,
    ),
    OperatorRecord(
        "QUANTIZE",
        QuantizeOptions,
        cost=costs.elementwise,
        is_elementwise=True,
        scales=Scales.FREE,
        ignores_scales=frozenset(),
    ),
    OperatorRecord(
        "RELU", cost=costs.elementwise, is_elementwise=True, result=Result.MOVED, scales=Scales.FREE
    ),
    OperatorRecord(
        "RELU6",
        cost=costs.elementwise,
        is_elementwise=True,
        result=Result.MOVED,
        scales=Scales.FREE,
    ),
    OperatorRecord(
        "RELU_0_TO_1",
        cost=costs.elementwise,
        is_elementwise=True,
        result=Result.MOVED,
        scales=Scales.FREE,
    ),
    OperatorRecord(
        "RELU_N1_TO_1",
        cost=costs.elementwise,
        is_elementwise=True,
        result=Result.MOVED,
        scales=Scales.FREE,
    ),
    OperatorRecord(
        "RESIZE_BILINEAR",
        ResizeBilinearOptions,
        cost=costs.bilinear,
        struct=c.RESIZE,
        result=Result.REDUCED,
        rereads=True,
        batch=Batch.FIRST_INPUT,
        scales=Scales.EQUAL,
    ),
    OperatorRecord(
        "RESIZE_NEAREST_NEIGHBOR",
        ResizeNearestNeighborOptions,
        cost=costs.movement,
        struct=c.RESIZE,
        result=Result.MOVED,
        batch=Batch.FIRST_INPUT,
        scales=Scales.EQUAL,
    ),
    OperatorRecord("RFFT2D", Rfft2dOptions, cost=costs.fourier),
    OperatorRecord(
        "RNN",
        RNNOptions,
        cost=costs.rnn_step,
        struct={"fused_activation_function": c.ACTIVATION, "asymmetric_quantize_inputs": c.BOOL},
        multiplies=True,
        result=Result.REDUCED,
        reads_uint8_as_int8=True,
    ),
    OperatorRecord(
        "SKIP_GRAM",
        SkipGramOptions,
        cost=costs.host_work,
        struct={"ngram_size": c.INT, "max_skip_size": c.INT, "include_all_ngrams": c.BOOL},
    ),
    OperatorRecord(
        "SOFTMAX",
        SoftmaxOptions,
        cost=costs.softmax,
        struct={"beta": c.FLOAT},
        reads_unrounded=True,
        rereads=True,
        batch=Batch.LAST_AXIS,
        scales=Scales.OF_INPUTS,
    ),
    OperatorRecord(
        "SVDF",
        SVDFOptions,
        cost=costs.svdf,
        struct={
            "rank": c.INT,
            "fused_activation_function": c.ACTIVATION,
            "asymmetric_quantize_inputs": c.BOOL,
        },
        multiplies=True,
        result=Result.REDUCED,
        reads_uint8_as_int8=True,
    ),
    OperatorRecord(
        "TANH",
        cost=costs.transcendental,
        is_elementwise=True,
        result=Result.REDUCED,
        scales=Scales.OF_INPUTS,
    ),
    OperatorRecord(
        "TRANSPOSE_CONV",
        TransposeConvOptions,
        cost=costs.transpose_convolution,
        struct={
            "padding": c.PADDING,
            "stride_w": c.INT,
            "stride_h": c.INT,
            "fused_activation_function": c.ACTIVATION,
            "quantized_bias_type": c.TYPE,
        },
        multiplies=True,
        result=Result.REDUCED,
        channels=convolution_channels,
        scales=Scales.FREE,
        bias=(2, 1, 3),
    ),
    OperatorRecord(
        "UNIDIRECTIONAL_SEQUENCE_LSTM",
        UnidirectionalSequenceLSTMOptions,
        cost=costs.lstm,
        struct={
            "fused_activation_function": c.ACTIVATION,
            "cell_clip": c.FLOAT,
            "proj_clip": c.FLOAT,
            "time_major": c.BOOL,
            "asymmetric_quantize_inputs": c.BOOL,
            "diagonal_recurrent_tensors": c.BOOL,
        },
        multiplies=True,
        result=Result.REDUCED,
        reads_uint8_as_int8=True,
    ),
    OperatorRecord(
        "UNIDIRECTIONAL_SEQUENCE_RNN",
        SequenceRNNOptions,
        cost=costs.rnn,
        struct={
            "time_major": c.BOOL,
            "fused_activation_function": c.ACTIVATION,
            "asymmetric_quantize_inputs": c.BOOL,
        },
        multiplies=True,
        result=Result.REDUCED,
        reads_uint8_as_int8=True,
    ),
)
