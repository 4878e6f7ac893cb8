"""Merges padding and dilation by other operators into the convolution between or after them.

Sources: delegates/gpu/common/transformations/merge_padding_with.cc; the converter's
IdentifyDilatedConvPass (mlir/lite/transforms/dilated_conv.h).
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
    if not _is_valid_convolution(operator) or rewriter.spec(operator.inputs[1]).is_quantized:
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
        options=_explicit(operator.options, pads),
    )
    return rewriter.merge(merged, (pad, operator))


def _is_valid_convolution(operator: Operator) -> bool:
    o = operator.options
    return type(o) in _EXPLICIT and getattr(o, "padding", None) is Padding.VALID


def _explicit(options: Any, pads: Pads) -> Any:
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


def dilate_convolution(rewriter: PatternRewriter, operator: Operator) -> bool:
    """Replace SPACE_TO_BATCH_ND and BATCH_TO_SPACE_ND around a convolution by its dilation."""
    if operator.name != "BATCH_TO_SPACE_ND":
        return False
    convolution = rewriter.private_producer(operator.inputs[0])
    if convolution is None or not _is_dense(convolution):
        return False
    to_batch = rewriter.private_producer(convolution.inputs[0])
    if to_batch is None or to_batch.name != "SPACE_TO_BATCH_ND":
        return False
    touched = (*to_batch.inputs[:1], *convolution.inputs[:2], *operator.outputs)
    if any(rewriter.spec(i).is_quantized for i in touched):
        return False
    sizes = [rewriter.const(i) for i in (*to_batch.inputs[1:3], *operator.inputs[1:3])]
    geometry = _geometry(*sizes)
    if geometry is None:
        return False
    (height, width), pads = geometry
    options: Any = convolution.options
    o = dataclasses.replace(options, dilation_h_factor=height, dilation_w_factor=width)
    merged = dataclasses.replace(
        convolution,
        inputs=(to_batch.inputs[0], *convolution.inputs[1:]),
        outputs=operator.outputs,
        options=_explicit(o, pads),
    )
    return rewriter.merge(merged, (to_batch, convolution, operator))


def _is_dense(operator: Operator) -> bool:
    """Whether it is a VALID convolution with strides and dilations of one."""
    o = operator.options
    if not _is_valid_convolution(operator):
        return False
    if not isinstance(o, Conv2DOptions | DepthwiseConv2DOptions):
        return False
    steps = (o.stride_h, o.stride_w, o.dilation_h_factor, o.dilation_w_factor)
    return steps == (1, 1, 1, 1)


def _geometry(
    block: np.ndarray | None,
    pads: np.ndarray | None,
    block_back: np.ndarray | None,
    crops: np.ndarray | None,
) -> tuple[tuple[int, int], tuple[tuple[int, int], tuple[int, int]]] | None:
    """Dilations and padding of height and width; None if the two operators do not match."""
    if block is None or pads is None or block_back is None or crops is None:
        return None
    if block.shape != (2,) or pads.shape != crops.shape != (2, 2):
        return None
    rest = pads.astype(np.int64) - crops
    # Cropping at the top or left would shift the dilated windows.
    if not np.array_equal(block, block_back) or crops[:, 0].any() or (rest < 0).any():
        return None
    height, width = block.tolist()
    (top, bottom), (left, right) = rest.tolist()
    return (height, width), ((top, bottom), (left, right))


REWRITES = {"dilate_convolution": dilate_convolution, "pad_convolution": pad_convolution}
