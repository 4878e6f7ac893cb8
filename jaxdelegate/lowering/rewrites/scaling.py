"""A scale or bias for each channel, after a convolution or matrix product, joins its constants.

Source: delegates/gpu/common/transformations/fuse_mul_to_conv.cc and fuse_add_to_conv.cc.
"""

import dataclasses
from collections.abc import Callable

import numpy as np

from jaxdelegate.lowering.rewrites.pattern_rewriter import PatternRewriter
from jaxdelegate.model.records import Operator
from jaxdelegate.op_lowering.dtypes import FLOATS
from jaxdelegate.op_lowering.options import ActivationFunctionType

# Operator -> (position of the filter, its axis of output channels, position of the bias).
_FILTERS = {
    "CONV_2D": (1, 0, 2),
    "DEPTHWISE_CONV_2D": (1, 3, 2),
    "CONV_3D": (1, 4, 2),
    "TRANSPOSE_CONV": (1, 0, 3),
    "FULLY_CONNECTED": (1, 0, 2),
}

Arrays = tuple[np.ndarray, np.ndarray]
# (filter, bias, what the operator adds or multiplies) -> filter and bias; all by output channel
_FOLDED: dict[str, Callable[[np.ndarray, np.ndarray, np.ndarray], Arrays]] = {
    "MUL": lambda w, b, c: (w * c, b * c),
    "DIV": lambda w, b, c: (w / c, b / c),
    "ADD": lambda w, b, c: (w, b + c),
    "SUB": lambda w, b, c: (w, b - c),
}
_COMMUTES = ("MUL", "ADD")


def scale_convolution(rewriter: PatternRewriter, operator: Operator) -> bool:
    """Join MUL, DIV, ADD or SUB by a constant of each channel with the product before it."""
    if operator.name not in _FOLDED:
        return False
    for y, c in _operands(operator):
        product = rewriter.private_maker(y)
        if product is not None and _is_linear(rewriter, product):
            value = _by_channel(rewriter, product, operator, c)
            if value is not None and _join(rewriter, product, operator, value):
                return True
    return False


def _operands(operator: Operator) -> list[tuple[int, int]]:
    first, second = operator.inputs
    both = [(first, second), (second, first)]
    return both if operator.name in _COMMUTES else both[:1]


def _is_linear(rewriter: PatternRewriter, product: Operator) -> bool:
    """Whether its result has no activation, and filter and bias are float constants."""
    if product.name not in _FILTERS:
        return False
    activation = getattr(product.options, "fused_activation_function", None)
    position, _, bias = _FILTERS[product.name]
    constants = [product.inputs[position], *(i for i in product.inputs[bias : bias + 1] if i >= 0)]
    specs = [rewriter.spec(i) for i in (*constants, product.outputs[0])]
    return (
        activation is ActivationFunctionType.NONE
        and all(rewriter.const(i) is not None for i in constants)
        and all(s.dtype in FLOATS and not s.is_quantized for s in specs)
    )


def _by_channel(
    rewriter: PatternRewriter, product: Operator, operator: Operator, tensor: int
) -> np.ndarray | None:
    """The constant as one value for each output channel; None if it is not that."""
    value, shape = rewriter.const(tensor), rewriter.shape(product.outputs[0])
    if value is None or value.dtype not in FLOATS or rewriter.shape(operator.outputs[0]) != shape:
        return None
    channels = shape[-1]
    if value.size not in (1, channels) or (value.size > 1 and value.shape[-1] != channels):
        return None
    if not np.isfinite(value).all() or (operator.name == "DIV" and not value.all()):
        return None
    return np.broadcast_to(value.reshape(-1), (channels,))


def _join(
    rewriter: PatternRewriter, product: Operator, operator: Operator, value: np.ndarray
) -> bool:
    position, axis, bias_at = _FILTERS[product.name]
    w = rewriter.spec(product.inputs[position])
    channels = rewriter.shape(product.outputs[0])[-1]
    if w.const is None or w.shape[axis] != channels:
        return False
    bias = rewriter.const(product.inputs[bias_at]) if len(product.inputs) > bias_at else None
    by_channel = np.moveaxis(w.const, axis, -1)
    zeros = np.zeros(channels, by_channel.dtype)
    folded = _FOLDED[operator.name](
        by_channel, zeros if bias is None else bias.reshape(-1), value.astype(by_channel.dtype)
    )
    if not all(np.isfinite(array).all() for array in folded):
        return False
    inputs = [*product.inputs, *[-1] * (bias_at + 1 - len(product.inputs))]
    if folded[0] is not by_channel:
        new = np.ascontiguousarray(np.moveaxis(folded[0], -1, axis))
        inputs[position] = rewriter.constant(operator, new, f"{w.name}, scaled")
    inputs[bias_at] = rewriter.constant(operator, folded[1], "bias")
    activation = getattr(operator.options, "fused_activation_function")  # noqa: B009 (any of four tables)
    options = dataclasses.replace(product.options, fused_activation_function=activation)
    merged = dataclasses.replace(
        product, inputs=tuple(inputs), outputs=operator.outputs, options=options
    )
    return rewriter.merge(merged, (product, operator))


REWRITES = {"scale_convolution": scale_convolution}
