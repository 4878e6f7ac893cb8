"""Options and records of operators that rewrites create from several of a file's."""

from jaxdelegate.op_lowering.convolution.options import Conv2DOptions, DepthwiseConv2DOptions
from jaxdelegate.op_lowering.records import costs
from jaxdelegate.op_lowering.records.enums import ActivationFunctionType, Gate, Nonlinearity
from jaxdelegate.op_lowering.records.operator import (
    REDUCED,
    OperatorRecord,
    Precision,
    Result,
    sums_products,
    table,
)
from jaxdelegate.op_lowering.records.record import Record


class FusedOptions(Record):
    """No table of the schema: the operator replaces several of the file's."""


class LayerNormOptions(FusedOptions):
    """x over the root of its variance: inputs x, scale, offset; the latter two may be absent.

    `is_centered`: the mean is subtracted first; else the mean square is the variance.
    """

    axes: tuple[int, ...] = ()  # the axes of `x` over which mean and variance are taken
    epsilon: float = 0.0  # added to the variance
    is_centered: bool = True
    fused_activation_function: ActivationFunctionType = ActivationFunctionType.NONE


class AttentionOptions(FusedOptions):
    """softmax(scale * q k^T + mask) v: inputs q, k, v and perhaps a mask.

    q [..., T, H], k and v [..., S, H] may have their leading dimensions in one.
    """

    logits: tuple[int, ...] = ()  # the shape of the softmax, [B, N, T, S] or [B, T, S]
    scale: float = 1.0  # multiplies the logits
    keys_last: bool = False  # k is [..., H, S]
    values_last: bool = False  # v is [..., H, S]


class DecodeAttentionOptions(FusedOptions):
    """softmax(scale * q k^T + mask) v for one new place of caches, whose entries are k and v.

    Inputs: q, k and v; the caches of keys [..., S, H] and values, one matrix for each head; the new
    place, int32 []; the mask [..., S]; and, or absent: the scales [H] of normalized q, k and v;
    cosines and sines [..., H] by which q and k are rotated. Outputs: y, and both caches.
    """

    logits: tuple[int, ...] = ()  # the shape of the softmax, [..., heads of keys, queries, S]
    scale: float = 1.0  # multiplies the logits
    cap: float = 0.0  # then cap * tanh(logits / cap); 0: not
    keys_last: bool = False  # the cache of keys is [..., H, S]
    values_last: bool = False  # the cache of values is [..., H, S]
    epsilons: tuple[float, float, float] = (0.0, 0.0, 0.0)  # of RMS norms of q, k and v; 0: none


class FusedConvolutionOptions(FusedOptions):
    """A convolution, a residual added to it, an activation: inputs x, filter, bias, residual.

    `fused_activation_function` applies if `nonlinearity` is none.
    """

    convolution: Conv2DOptions | DepthwiseConv2DOptions = Conv2DOptions()  # without an activation
    nonlinearity: Nonlinearity = Nonlinearity.NONE
    fused_activation_function: ActivationFunctionType = ActivationFunctionType.NONE


class FusedProductsOptions(FusedOptions):
    """Products of one tensor and several filters, as FULLY_CONNECTED computes them.

    Inputs: x, the scale of a normalization, a residual, and for each product its filter and its
    bias; scale, residual and biases may be absent. With a scale, x is divided by the root of its
    mean square over the last axis, and multiplied by the scale, before the products. The residual
    is added to the only result.
    """

    epsilon: float = 0.0  # added to the mean square
    gate: Gate = Gate.NONE  # of the first product, which multiplies the second one: one result


def _epilogue_convolution(op: costs.Operation[FusedConvolutionOptions]) -> costs.Work:
    is_depthwise = isinstance(op.options.convolution, DepthwiseConv2DOptions)
    return (costs.depthwise if is_depthwise else costs.convolution)(op)


RECORDS = table(
    OperatorRecord("fused_attention", AttentionOptions, cost=costs.unknown, precision=REDUCED),
    OperatorRecord(
        "fused_decode_attention",
        DecodeAttentionOptions,
        cost=costs.unknown,
        # Its kernel reads sums of products as they are; to round them would be another kernel.
        precision=Precision(Result.REDUCED, reads_unrounded=True),
    ),
    OperatorRecord("fused_products", FusedProductsOptions, cost=costs.unknown, precision=REDUCED),
    sums_products("fused_convolution", FusedConvolutionOptions, cost=_epilogue_convolution),
    OperatorRecord(
        "fused_layer_norm", LayerNormOptions, cost=costs.unknown, precision=REDUCED, rereads=True
    ),
)
