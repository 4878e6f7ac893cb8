"""Fuses epilogues into convolutions, products and sums, if their rules accept them."""

import dataclasses
from typing import Any

import numpy as np

from jaxdelegate.lowering.rewrites.pattern_rewriter import PatternRewriter
from jaxdelegate.model.records import Operator
from jaxdelegate.op_lowering.options import (
    ActivationFunctionType,
    AddOptions,
    Conv2DOptions,
    DepthwiseConv2DOptions,
    FusedConvolutionOptions,
    MulOptions,
    Nonlinearity,
)

_NONE, _RELU, _RELU6 = (ActivationFunctionType[name] for name in ("NONE", "RELU", "RELU6"))
_CLAMPS = {"RELU": _RELU, "RELU6": _RELU6}
_CLAMPED = frozenset(["CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED", "ADD"])


def fuse_activation(rewriter: PatternRewriter, operator: Operator) -> bool:
    """Fuse a RELU or RELU6 into the operator before it."""
    x = operator.inputs[0]
    producer = rewriter.private_producer(x) if operator.name in _CLAMPS else None
    if producer is None or producer.name not in _CLAMPED or rewriter.spec(x).dtype != np.float32:
        return False
    options: Any = producer.options
    clamps = {options.fused_activation_function, _CLAMPS[operator.name]}
    if not clamps <= {_NONE, _RELU, _RELU6}:
        return False
    both = _RELU6 if _RELU6 in clamps else _RELU
    options = dataclasses.replace(options, fused_activation_function=both)
    return rewriter.fuse(producer.name, options, producer.inputs, operator, {producer.index})


def end_convolution(rewriter: PatternRewriter, operator: Operator) -> bool:
    """Fuse a HARD_SWISH, x * logistic(x) or residual ADD into the convolution before it."""
    if operator.name == "HARD_SWISH":
        hard_swish = FusedConvolutionOptions(nonlinearity=Nonlinearity.HARD_SWISH)
        return _fuse(rewriter, operator, operator.inputs[0], frozenset(), hard_swish)
    if operator.name == "MUL" and isinstance(operator.options, MulOptions):
        return _fuse_swish(rewriter, operator, operator.options)
    if operator.name == "ADD" and isinstance(operator.options, AddOptions):
        return _add_residual(rewriter, operator, operator.options)
    return False


def _fuse_swish(rewriter: PatternRewriter, operator: Operator, o: MulOptions) -> bool:
    x, gate = operator.inputs
    if (producer := rewriter.producer(x)) is not None and producer.inputs == (gate,):
        x, gate = gate, x
    logistic = rewriter.producer(gate)
    if logistic is None or logistic.name != "LOGISTIC" or logistic.inputs != (x,):
        return False
    if o.fused_activation_function is not ActivationFunctionType.NONE:
        return False
    swish = FusedConvolutionOptions(nonlinearity=Nonlinearity.SWISH)
    return _fuse(rewriter, operator, x, frozenset([logistic.index]), swish)


def _add_residual(rewriter: PatternRewriter, operator: Operator, o: AddOptions) -> bool:
    options = FusedConvolutionOptions(fused_activation_function=o.fused_activation_function)
    first, second = operator.inputs
    return _fuse(rewriter, operator, first, frozenset(), options, second) or _fuse(
        rewriter, operator, second, frozenset(), options, first
    )


def _fuse(
    rewriter: PatternRewriter,
    root: Operator,
    x: int,
    parts: frozenset[int],
    options: FusedConvolutionOptions,
    *residual: int,
) -> bool:
    conv = rewriter.producer(x)
    if conv is None or not isinstance(conv.options, Conv2DOptions | DepthwiseConv2DOptions):
        return False
    options = dataclasses.replace(options, convolution=conv.options)
    inputs = (*conv.inputs, *[-1] * (3 - len(conv.inputs)), *residual)
    return rewriter.fuse("fused_convolution", options, inputs, root, parts | {conv.index})


REWRITES = {"fuse_activation": fuse_activation, "end_convolution": end_convolution}
