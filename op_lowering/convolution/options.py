"""Options and records of convolutions."""

import dataclasses
import functools

from jaxdelegate.op_lowering.records import c_struct as c
from jaxdelegate.op_lowering.records import costs
from jaxdelegate.op_lowering.records.custom import StructOptions
from jaxdelegate.op_lowering.records.enums import ActivationFunctionType, Padding, TensorType
from jaxdelegate.op_lowering.records.operator import FREE, Batch, Product, sums_products, table
from jaxdelegate.op_lowering.records.record import Options, Record
from jaxdelegate.op_lowering.spec import Specs


class Conv2DOptions(Record):
    padding: Padding = Padding.SAME
    stride_w: int = 0
    stride_h: int = 0
    fused_activation_function: ActivationFunctionType = ActivationFunctionType.NONE
    dilation_w_factor: int = 1
    dilation_h_factor: int = 1
    quantized_bias_type: TensorType = TensorType.FLOAT32


class DepthwiseConv2DOptions(Record):
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
    """Zeros before and after height and width; none in the schema's options."""
    if isinstance(options, ExplicitConv2DOptions | ExplicitDepthwiseConv2DOptions):
        return options.pads
    return (0, 0), (0, 0)


class TransposeConvOptions(Record):
    padding: Padding = Padding.SAME
    stride_w: int = 0
    stride_h: int = 0
    fused_activation_function: ActivationFunctionType = ActivationFunctionType.NONE
    quantized_bias_type: TensorType = TensorType.FLOAT32


class Conv3DOptions(Record):
    padding: Padding = Padding.SAME
    stride_d: int = 0
    stride_w: int = 0
    stride_h: int = 0
    fused_activation_function: ActivationFunctionType = ActivationFunctionType.NONE
    dilation_d_factor: int = 1
    dilation_w_factor: int = 1
    dilation_h_factor: int = 1


def convolution_channels(_options: Options, inputs: Specs, _outputs: Specs) -> tuple[int, int]:
    """Filter [O, H, W, I]."""
    return inputs[1].shape[3], inputs[1].shape[0]


@dataclasses.dataclass(frozen=True)
class Convolution2DTransposeBiasOptions(StructOptions):
    """MediaPipe's Convolution2DTransposeBias: TfLiteTransposeConvParams."""

    padding: Padding = Padding.SAME
    stride_w: int = 0
    stride_h: int = 0


_convolution_3d = functools.partial(
    sums_products,
    options=Conv3DOptions,
    struct=c.members(  # TfLiteConv3DParams has another order
        Conv3DOptions,
        *("padding", "stride_w", "stride_h", "stride_d", "dilation_w_factor"),
        *("dilation_h_factor", "dilation_d_factor", "fused_activation_function"),
    ),
)

RECORDS = table(
    sums_products(
        "CONV_2D",
        Conv2DOptions,
        cost=costs.convolution,
        materializes_integers=True,
        batch=Batch.FIRST_INPUT,
        reads_uint8_as_int8=True,
        product=Product(convolution_channels, bias=(0, 1, 2)),
        scales=FREE,
    ),
    _convolution_3d(
        "CONV_3D", cost=costs.convolution_3d, product=Product(bias=(0, 1, 2)), scales=FREE
    ),
    _convolution_3d("CONV_3D_TRANSPOSE", cost=costs.transpose_convolution_3d),
    sums_products(
        "Convolution2DTransposeBias",
        Convolution2DTransposeBiasOptions,
        cost=costs.transpose_convolution_bias,
    ),
    sums_products(
        "DEPTHWISE_CONV_2D",
        DepthwiseConv2DOptions,
        cost=costs.depthwise,
        batch=Batch.FIRST_INPUT,
        product=Product(bias=(0, 1, 2)),
        scales=FREE,
    ),
    sums_products(
        "TRANSPOSE_CONV",
        TransposeConvOptions,
        cost=costs.transpose_convolution,
        product=Product(convolution_channels, bias=(2, 1, 3)),
        scales=FREE,
    ),
)
