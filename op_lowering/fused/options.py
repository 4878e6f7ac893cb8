"""Options and records of operators that rewrites create from several of a file's."""

from jaxdelegate.op_lowering.convolution.options import Conv2DOptions, DepthwiseConv2DOptions
from jaxdelegate.op_lowering.records import costs
from jaxdelegate.op_lowering.records.enums import ActivationFunctionType, Nonlinearity
from jaxdelegate.op_lowering.records.operator import OperatorRecord, Result, table
from jaxdelegate.op_lowering.records.record import Record
from jaxdelegate.op_lowering.spec import Specs


class FusedOptions(Record):
    """No table of the schema: the operator replaces several of the file's."""


class LayerNormOptions(FusedOptions):
    """x over the root of its variance: inputs x, scale, offset; the latter two may be absent.

    Attributes:
        axes: of `x`, over which mean and variance are taken.
        epsilon: added to the variance.
        is_centered: whether the mean is subtracted first; else the mean square is the variance.
        fused_activation_function: of the result.
    """

    axes: tuple[int, ...] = ()
    epsilon: float = 0.0
    is_centered: bool = True
    fused_activation_function: ActivationFunctionType = ActivationFunctionType.NONE


class AttentionOptions(FusedOptions):
    """softmax(scale * q k^T + mask) v: inputs q, k, v and perhaps a mask.

    Attributes:
        logits: the shape of the softmax, [B, N, T, S] or [B, T, S]; q [..., T, H], k and v
            [..., S, H] may have their leading dimensions in one.
        scale: of the logits.
        keys_last: whether k is [..., H, S] instead.
        values_last: whether v is.
    """

    logits: tuple[int, ...] = ()
    scale: float = 1.0
    keys_last: bool = False
    values_last: bool = False


class FusedConvolutionOptions(FusedOptions):
    """A convolution, a residual added to it, an activation: inputs x, filter, bias, residual.

    Attributes:
        convolution: the options of CONV_2D or DEPTHWISE_CONV_2D, which have no activation.
        nonlinearity: of the result.
        fused_activation_function: of the result, if `nonlinearity` is none.
    """

    convolution: Conv2DOptions | DepthwiseConv2DOptions = Conv2DOptions()
    nonlinearity: Nonlinearity = Nonlinearity.NONE
    fused_activation_function: ActivationFunctionType = ActivationFunctionType.NONE


def _epilogue_convolution(
    o: FusedConvolutionOptions, inputs: Specs, outputs: Specs, called: costs.Called
) -> costs.Work:
    is_depthwise = isinstance(o.convolution, DepthwiseConv2DOptions)
    return (costs.depthwise if is_depthwise else costs.convolution)(o, inputs, outputs, called)


RECORDS = table(
    OperatorRecord("fused_attention", AttentionOptions, cost=costs.unknown, result=Result.REDUCED),
    OperatorRecord(
        "fused_convolution",
        FusedConvolutionOptions,
        cost=_epilogue_convolution,
        multiplies=True,
        result=Result.REDUCED,
    ),
    OperatorRecord(
        "fused_layer_norm",
        LayerNormOptions,
        cost=costs.unknown,
        result=Result.REDUCED,
        rereads=True,
    ),
)
