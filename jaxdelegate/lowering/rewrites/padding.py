"""Merges PAD into the convolution after it, as explicit padding.

Source: delegates/gpu/common/transformations/merge_padding_with.cc.
"""

import dataclasses
from typing import Any

import numpy as np

from jaxdelegate.lowering.rewrites.pattern_rewriter import PatternRewriter
from jaxdelegate.model.records import Operator
from jaxdelegate.op_lowering.options import (
    Conv2DOptions,
    DepthwiseConv2DOptions,
    ExplicitConv2DOptions,
    ExplicitDepthwiseConv2DOptions,
    Padding,
)

Pads = tuple[tuple[int, int], tuple[int, int]]  # before and after, of height and width

_EXPLICIT: dict[type, type] = {
    Conv2DOptions: ExplicitConv2DOptions,
    DepthwiseConv2DOptions: ExplicitDepthwiseConv2DOptions,
}


def pad_convolution(rewriter: PatternRewriter, operator: Operator) -> bool:
    """Merge the zeros that a PAD adds to height and width into the VALID convolution after it."""
    if not is_valid_convolution(operator) or rewriter.spec(operator.inputs[1]).is_quantized:
        return False
    pad = rewriter.private_producer(operator.inputs[0])
    if pad is None or rewriter.spec(pad.inputs[0]).is_quantized:
        return False
    pads = _zeros_around(rewriter, pad)
    if pads is None:
        return False
    merged = dataclasses.replace(
        operator,
        inputs=(pad.inputs[0], *operator.inputs[1:]),
        options=explicit(operator.options, pads),
    )
    return rewriter.merge(merged, (pad, operator))


def is_valid_convolution(operator: Operator) -> bool:
    o = operator.options
    return type(o) in _EXPLICIT and getattr(o, "padding", None) is Padding.VALID


def explicit(options: Any, pads: Pads) -> Any:
    fields = {f.name: getattr(options, f.name) for f in dataclasses.fields(options)}
    return _EXPLICIT[type(options)](**fields, pads=pads)


def _zeros_around(rewriter: PatternRewriter, pad: Operator) -> Pads | None:
    """The padding of a PAD or PADV2, if it only adds zeros to height and width."""
    if pad.name not in ("PAD", "PADV2"):
        return None
    amounts = rewriter.const(pad.inputs[1])
    if amounts is None or amounts.shape != (4, 2) or amounts[[0, 3]].any() or (amounts < 0).any():
        return None
    value = rewriter.const(pad.inputs[2]) if pad.name == "PADV2" else np.zeros(1)
    if value is None or value.any():
        return None
    (top, bottom), (left, right) = amounts[1:3].tolist()
    return (top, bottom), (left, right)


REWRITES = {"pad_convolution": pad_convolution}
