"""What stands after a convolution, product or sum joins it where its rule takes it."""

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
    """Let an operator end in the RELU or RELU6 after it."""
    x = operator.inputs[0]
    maker = rewriter.private_maker(x) if operator.name in _CLAMPS else None
    if maker is None or maker.name not in _CLAMPED or rewriter.spec(x).dtype != np.float32:
        return False
    options: Any = maker.options
    clamps = {options.fused_activation_function, _CLAMPS[operator.name]}
    if not clamps <= {_NONE, _RELU, _RELU6}:
        return False
    both = _RELU6 if _RELU6 in clamps else _RELU
    options = dataclasses.replace(options, fused_activation_function=both)
    return rewriter.fuse(maker.name, options, maker.inputs, operator, {maker.index})


def end_convolution(rewriter: PatternRewriter, operator: Operator) -> bool:
    """Let one operator do a convolution and what stands after it."""
    if operator.name == "HARD_SWISH":
        return _bend(rewriter, operator, operator.inputs[0], Nonlinearity.HARD_SWISH, frozenset())
    if operator.name == "MUL" and isinstance(operator.options, MulOptions):
        return _end_in_swish(rewriter, operator, operator.options)
    if operator.name == "ADD" and isinstance(operator.options, AddOptions):
        return _add_residual(rewriter, operator, operator.options)
    return False


def _end_in_swish(rewriter: PatternRewriter, operator: Operator, o: MulOptions) -> bool:
    """X * logistic(x), in either order."""
    x, gate = operator.inputs
    if (maker := rewriter.maker(x)) is not None and maker.inputs == (gate,):
        x, gate = gate, x
    logistic = rewriter.maker(gate)
    if logistic is None or logistic.name != "LOGISTIC" or logistic.inputs != (x,):
        return False
    if o.fused_activation_function is not ActivationFunctionType.NONE:
        return False
    return _bend(rewriter, operator, x, Nonlinearity.SWISH, frozenset([logistic.index]))


def _bend(
    rewriter: PatternRewriter,
    root: Operator,
    x: int,
    nonlinearity: Nonlinearity,
    parts: frozenset[int],
) -> bool:
    return _end(rewriter, root, x, parts, FusedConvolutionOptions(nonlinearity=nonlinearity))


def _add_residual(rewriter: PatternRewriter, operator: Operator, o: AddOptions) -> bool:
    options = FusedConvolutionOptions(fused_activation_function=o.fused_activation_function)
    first, second = operator.inputs
    return _end(rewriter, operator, first, frozenset(), options, second) or _end(
        rewriter, operator, second, frozenset(), options, first
    )


def _end(
    rewriter: PatternRewriter,
    root: Operator,
    x: int,
    parts: frozenset[int],
    options: FusedConvolutionOptions,
    *residual: int,
) -> bool:
    """Let the convolution that makes `x` do what `root` and the other parts do with it."""
    made = rewriter.maker(x)
    if made is None or not isinstance(made.options, Conv2DOptions | DepthwiseConv2DOptions):
        return False
    options = dataclasses.replace(options, convolution=made.options)
    inputs = (*made.inputs, *[-1] * (3 - len(made.inputs)), *residual)
    return rewriter.fuse("fused_convolution", options, inputs, root, parts | {made.index})


REWRITES = {"fuse_activation": fuse_activation, "end_convolution": end_convolution}
