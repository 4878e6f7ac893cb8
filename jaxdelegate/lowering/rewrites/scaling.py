"""Merges a scale or bias for each channel into the constants of the product before it.

Source: delegates/gpu/common/transformations/fuse_mul_to_conv.cc and fuse_add_to_conv.cc.
"""

import dataclasses

import numpy as np

from jaxdelegate.lowering.rewrites.pattern_rewriter import PatternRewriter
from jaxdelegate.model.records import Operator
from jaxdelegate.op_lowering.dtypes import FLOATS
from jaxdelegate.op_lowering.options import ActivationFunctionType
from jaxdelegate.passes.channel_affine import ARITHMETIC, PRODUCTS, affine, by_channel

_COMMUTES = ("MUL", "ADD")


def scale_convolution(rewriter: PatternRewriter, operator: Operator) -> bool:
    """Merge MUL, DIV, ADD or SUB by a constant for each channel into the product before it."""
    if operator.name not in ARITHMETIC:
        return False
    for y, c in _operands(operator):
        product = rewriter.private_producer(y)
        if product is not None and _is_linear(rewriter, product):
            value = _by_channel(rewriter, product, operator, c)
            if value is not None and _merge(rewriter, product, operator, value):
                return True
    return False


def _operands(operator: Operator) -> list[tuple[int, int]]:
    first, second = operator.inputs
    both = [(first, second), (second, first)]
    return both if operator.name in _COMMUTES else both[:1]


def _is_linear(rewriter: PatternRewriter, product: Operator) -> bool:
    """Whether it has no fused activation, and filter and bias are float constants."""
    if product.name not in PRODUCTS:
        return False
    activation = getattr(product.options, "fused_activation_function", None)
    at = PRODUCTS[product.name]
    constants = [product.inputs[at.filter]]
    constants += [i for i in product.inputs[at.bias : at.bias + 1] if i >= 0]
    specs = [rewriter.spec(i) for i in (*constants, product.outputs[0])]
    return (
        activation is ActivationFunctionType.NONE
        and all(rewriter.const(i) is not None for i in constants)
        and all(s.dtype in FLOATS and not s.is_quantized for s in specs)
    )


def _by_channel(
    rewriter: PatternRewriter, product: Operator, operator: Operator, tensor: int
) -> np.ndarray | None:
    """The constant as one value for each output channel, float64; None if it varies otherwise."""
    value, shape = rewriter.const(tensor), rewriter.shape(product.outputs[0])
    if value is None or value.dtype not in FLOATS or rewriter.shape(operator.outputs[0]) != shape:
        return None
    return by_channel(value, shape[-1])


def _merge(
    rewriter: PatternRewriter, product: Operator, operator: Operator, value: np.ndarray
) -> bool:
    at = PRODUCTS[product.name]
    w, step = rewriter.spec(product.inputs[at.filter]), affine(operator.name, value)
    if w.const is None or step is None or w.shape[at.units] != value.size:
        return False
    scale, offset = step
    bias = rewriter.const(product.inputs[at.bias]) if len(product.inputs) > at.bias else None
    inputs = [*product.inputs, *[-1] * (at.bias + 1 - len(product.inputs))]
    with np.errstate(all="ignore"):
        old = np.zeros(value.size) if bias is None else bias.reshape(-1).astype(np.float64)
        new_bias = (old * scale + offset).astype(w.dtype)
        if (scale != 1).any():
            new = np.moveaxis(w.const, at.units, -1).astype(np.float64) * scale
            new = np.ascontiguousarray(np.moveaxis(new.astype(w.dtype), -1, at.units))
            if not np.isfinite(new).all():
                return False
            inputs[at.filter] = rewriter.constant(operator, new, f"{w.name}, scaled")
    if not np.isfinite(new_bias).all():
        return False
    inputs[at.bias] = rewriter.constant(operator, new_bias, "bias")
    activation = getattr(operator.options, "fused_activation_function")  # noqa: B009 (any of four tables)
    options = dataclasses.replace(product.options, fused_activation_function=activation)
    merged = dataclasses.replace(
        product, inputs=tuple(inputs), outputs=operator.outputs, options=options
    )
    return rewriter.merge(merged, (product, operator))


REWRITES = {"scale_convolution": scale_convolution}
