"""Options tables, field names as in schema.fbs: what neural networks are made of."""

from jaxdelegate.op_lowering.options.enums import (
    ActivationFunctionType,
    CombinerType,
    FullyConnectedOptionsWeightsFormat,
    LSHProjectionType,
    LSTMKernelType,
    Padding,
    TensorType,
)
from jaxdelegate.op_lowering.options.record import Options, Record


class Conv2DOptions(Record):
    """Table `Conv2DOptions`: CONV_2D."""

    operators = ("CONV_2D",)
    padding: Padding = Padding.SAME
    stride_w: int = 0
    stride_h: int = 0
    fused_activation_function: ActivationFunctionType = ActivationFunctionType.NONE
    dilation_w_factor: int = 1
    dilation_h_factor: int = 1
    quantized_bias_type: TensorType = TensorType.FLOAT32


class DepthwiseConv2DOptions(Record):
    """Table `DepthwiseConv2DOptions`: DEPTHWISE_CONV_2D."""

    operators = ("DEPTHWISE_CONV_2D",)
    padding: Padding = Padding.SAME
    stride_w: int = 0
    stride_h: int = 0
    depth_multiplier: int = 0
    fused_activation_function: ActivationFunctionType = ActivationFunctionType.NONE
    dilation_w_factor: int = 1
    dilation_h_factor: int = 1


class ExplicitConv2DOptions(Conv2DOptions):
    """No table of the schema: a VALID CONV_2D over zeros before and after height and width."""

    operators = ()  # type: ignore[assignment]  # the schema names none
    pads: tuple[tuple[int, int], tuple[int, int]] = ((0, 0), (0, 0))


class ExplicitDepthwiseConv2DOptions(DepthwiseConv2DOptions):
    """No table of the schema: a VALID DEPTHWISE_CONV_2D over zeros around height and width."""

    operators = ()  # type: ignore[assignment]  # the schema names none
    pads: tuple[tuple[int, int], tuple[int, int]] = ((0, 0), (0, 0))


def explicit_pads(options: Options) -> tuple[tuple[int, int], tuple[int, int]]:
    """Zeros before and after height and width; none where the schema's table stands alone."""
    if isinstance(options, ExplicitConv2DOptions | ExplicitDepthwiseConv2DOptions):
        return options.pads
    return (0, 0), (0, 0)


class ConcatEmbeddingsOptions(Record):
    """Table `ConcatEmbeddingsOptions`: CONCAT_EMBEDDINGS."""

    operators = ("CONCAT_EMBEDDINGS",)
    num_channels: int = 0
    num_columns_per_channel: tuple[int, ...] = ()
    embedding_dim_per_channel: tuple[int, ...] = ()


class LSHProjectionOptions(Record):
    """Table `LSHProjectionOptions`: LSH_PROJECTION."""

    operators = ("LSH_PROJECTION",)
    type: LSHProjectionType = LSHProjectionType.UNKNOWN


class Pool2DOptions(Record):
    """Table `Pool2DOptions`: AVERAGE_POOL_2D, MAX_POOL_2D, L2_POOL_2D."""

    operators = ("AVERAGE_POOL_2D", "MAX_POOL_2D", "L2_POOL_2D")
    padding: Padding = Padding.SAME
    stride_w: int = 0
    stride_h: int = 0
    filter_width: int = 0
    filter_height: int = 0
    fused_activation_function: ActivationFunctionType = ActivationFunctionType.NONE


class SVDFOptions(Record):
    """Table `SVDFOptions`: SVDF."""

    operators = ("SVDF",)
    rank: int = 0
    fused_activation_function: ActivationFunctionType = ActivationFunctionType.NONE
    asymmetric_quantize_inputs: bool = False


class RNNOptions(Record):
    """Table `RNNOptions`: RNN."""

    operators = ("RNN",)
    fused_activation_function: ActivationFunctionType = ActivationFunctionType.NONE
    asymmetric_quantize_inputs: bool = False


class FullyConnectedOptions(Record):
    """Table `FullyConnectedOptions`: FULLY_CONNECTED."""

    operators = ("FULLY_CONNECTED",)
    fused_activation_function: ActivationFunctionType = ActivationFunctionType.NONE
    weights_format: FullyConnectedOptionsWeightsFormat = FullyConnectedOptionsWeightsFormat.DEFAULT
    keep_num_dims: bool = False
    asymmetric_quantize_inputs: bool = False
    quantized_bias_type: TensorType = TensorType.FLOAT32
    quant_spec: bytes = b""  # opaque; stock delegates refuse an operator that has it


class SoftmaxOptions(Record):
    """Table `SoftmaxOptions`: SOFTMAX."""

    operators = ("SOFTMAX",)
    beta: float = 0.0


class L2NormOptions(Record):
    """Table `L2NormOptions`: L2_NORMALIZATION."""

    operators = ("L2_NORMALIZATION",)
    fused_activation_function: ActivationFunctionType = ActivationFunctionType.NONE


class LocalResponseNormalizationOptions(Record):
    """Table `LocalResponseNormalizationOptions`: LOCAL_RESPONSE_NORMALIZATION."""

    operators = ("LOCAL_RESPONSE_NORMALIZATION",)
    radius: int = 0
    bias: float = 0.0
    alpha: float = 0.0
    beta: float = 0.0


class LSTMOptions(Record):
    """Table `LSTMOptions`: LSTM."""

    operators = ("LSTM",)
    fused_activation_function: ActivationFunctionType = ActivationFunctionType.NONE
    cell_clip: float = 0.0
    proj_clip: float = 0.0
    kernel_type: LSTMKernelType = LSTMKernelType.FULL
    asymmetric_quantize_inputs: bool = False


class ResizeBilinearOptions(Record):
    """Table `ResizeBilinearOptions`: RESIZE_BILINEAR."""

    operators = ("RESIZE_BILINEAR",)
    align_corners: bool = False
    half_pixel_centers: bool = False


class SkipGramOptions(Record):
    """Table `SkipGramOptions`: SKIP_GRAM."""

    operators = ("SKIP_GRAM",)
    ngram_size: int = 0
    max_skip_size: int = 0
    include_all_ngrams: bool = False


class EmbeddingLookupSparseOptions(Record):
    """Table `EmbeddingLookupSparseOptions`: EMBEDDING_LOOKUP_SPARSE."""

    operators = ("EMBEDDING_LOOKUP_SPARSE",)
    combiner: CombinerType = CombinerType.SUM


class SequenceRNNOptions(Record):
    """Table `SequenceRNNOptions`: UNIDIRECTIONAL_SEQUENCE_RNN."""

    operators = ("UNIDIRECTIONAL_SEQUENCE_RNN",)
    time_major: bool = False
    fused_activation_function: ActivationFunctionType = ActivationFunctionType.NONE
    asymmetric_quantize_inputs: bool = False


class LogSoftmaxOptions(Record):
    """Table `LogSoftmaxOptions`: LOG_SOFTMAX."""

    operators = ("LOG_SOFTMAX",)


class DequantizeOptions(Record):
    """Table `DequantizeOptions`: DEQUANTIZE."""

    operators = ("DEQUANTIZE",)


class TransposeConvOptions(Record):
    """Table `TransposeConvOptions`: TRANSPOSE_CONV."""

    operators = ("TRANSPOSE_CONV",)
    padding: Padding = Padding.SAME
    stride_w: int = 0
    stride_h: int = 0
    fused_activation_function: ActivationFunctionType = ActivationFunctionType.NONE
    quantized_bias_type: TensorType = TensorType.FLOAT32


class FakeQuantOptions(Record):
    """Table `FakeQuantOptions`: FAKE_QUANT."""

    operators = ("FAKE_QUANT",)
    min: float = 0.0
    max: float = 0.0
    num_bits: int = 0
    narrow_range: bool = False


class BidirectionalSequenceLSTMOptions(Record):
    """Table `BidirectionalSequenceLSTMOptions`: BIDIRECTIONAL_SEQUENCE_LSTM."""

    operators = ("BIDIRECTIONAL_SEQUENCE_LSTM",)
    fused_activation_function: ActivationFunctionType = ActivationFunctionType.NONE
    cell_clip: float = 0.0
    proj_clip: float = 0.0
    merge_outputs: bool = False
    time_major: bool = True
    asymmetric_quantize_inputs: bool = False


class BidirectionalSequenceRNNOptions(Record):
    """Table `BidirectionalSequenceRNNOptions`: BIDIRECTIONAL_SEQUENCE_RNN."""

    operators = ("BIDIRECTIONAL_SEQUENCE_RNN",)
    time_major: bool = False
    fused_activation_function: ActivationFunctionType = ActivationFunctionType.NONE
    merge_outputs: bool = False
    asymmetric_quantize_inputs: bool = False


class UnidirectionalSequenceLSTMOptions(Record):
    """Table `UnidirectionalSequenceLSTMOptions`: UNIDIRECTIONAL_SEQUENCE_LSTM."""

    operators = ("UNIDIRECTIONAL_SEQUENCE_LSTM",)
    fused_activation_function: ActivationFunctionType = ActivationFunctionType.NONE
    cell_clip: float = 0.0
    proj_clip: float = 0.0
    time_major: bool = False
    asymmetric_quantize_inputs: bool = False
    diagonal_recurrent_tensors: bool = False


class ResizeNearestNeighborOptions(Record):
    """Table `ResizeNearestNeighborOptions`: RESIZE_NEAREST_NEIGHBOR."""

    operators = ("RESIZE_NEAREST_NEIGHBOR",)
    align_corners: bool = False
    half_pixel_centers: bool = False


class LeakyReluOptions(Record):
    """Table `LeakyReluOptions`: LEAKY_RELU."""

    operators = ("LEAKY_RELU",)
    alpha: float = 0.0


class QuantizeOptions(Record):
    """Table `QuantizeOptions`: QUANTIZE."""

    operators = ("QUANTIZE",)


class HardSwishOptions(Record):
    """Table `HardSwishOptions`: HARD_SWISH."""

    operators = ("HARD_SWISH",)


class NonMaxSuppressionV4Options(Record):
    """Table `NonMaxSuppressionV4Options`: NON_MAX_SUPPRESSION_V4."""

    operators = ("NON_MAX_SUPPRESSION_V4",)


class NonMaxSuppressionV5Options(Record):
    """Table `NonMaxSuppressionV5Options`: NON_MAX_SUPPRESSION_V5."""

    operators = ("NON_MAX_SUPPRESSION_V5",)


class DensifyOptions(Record):
    """Table `DensifyOptions`: DENSIFY."""

    operators = ("DENSIFY",)


class BatchMatMulOptions(Record):
    """Table `BatchMatMulOptions`: BATCH_MATMUL."""

    operators = ("BATCH_MATMUL",)
    adj_x: bool = False
    adj_y: bool = False
    asymmetric_quantize_inputs: bool = False


class Rfft2dOptions(Record):
    """Table `Rfft2dOptions`: RFFT2D."""

    operators = ("RFFT2D",)


class Conv3DOptions(Record):
    """Table `Conv3DOptions`: CONV_3D, CONV_3D_TRANSPOSE."""

    operators = ("CONV_3D", "CONV_3D_TRANSPOSE")
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

    operators = ("GELU",)
    approximate: bool = False
