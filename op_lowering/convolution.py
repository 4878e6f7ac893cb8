"""Convolutions: CONV_2D, DEPTHWISE_CONV_2D, CONV_3D, of floats; integers go to quantized_convolution.

The filter is laid out once as [*spatial, I, O]; convolution_ways.py says how it is run.
"""

import math
from collections.abc import Callable
from typing import Any

import jax

from jaxdelegate.op_lowering.convolution_ways import Convolution, way
from jaxdelegate.op_lowering.options import (
    Conv2DOptions,
    Conv3DOptions,
    DepthwiseConv2DOptions,
    Options,
)
from jaxdelegate.op_lowering.products import (
    Arithmetic,
    finish,
    nothing,
    why_not_floats,
    why_not_fused,
)
from jaxdelegate.op_lowering.rule import (
    Function,
    Lower,
    Lowered,
    LoweringContext,
    OpRule,
    Prepare,
    WhyNot,
    first_reason,
    optional,
)
from jaxdelegate.op_lowering.spec import Shape, Specs, TensorSpec
from jaxdelegate.op_lowering.window import Window, Windows, why_not_fit, why_not_windows

_Geometry = Callable[[Any, Shape, Shape], Convolution]


def _conv_2d(o: Conv2DOptions, x: Shape, w: Shape) -> Convolution:
    return Convolution(_windows_2d(o, x, w), x[3], w[3], w[0])


def _depthwise(o: DepthwiseConv2DOptions, x: Shape, w: Shape) -> Convolution:
    return Convolution(_windows_2d(o, x, w), x[3], 1, w[3])


def _conv_3d(o: Conv3DOptions, x: Shape, w: Shape) -> Convolution:
    strides = (o.stride_d, o.stride_h, o.stride_w)
    dilations = (o.dilation_d_factor, o.dilation_h_factor, o.dilation_w_factor)
    windows = zip(x[1:4], w[:3], strides, dilations, strict=True)
    return Convolution(
        tuple(
            Window(n, size, stride, o.padding, dilation) for n, size, stride, dilation in windows
        ),
        x[4],
        w[3],
        w[4],
    )


def _windows_2d(o: Conv2DOptions | DepthwiseConv2DOptions, x: Shape, w: Shape) -> Windows:
    return (
        Window(x[1], w[1], o.stride_h, o.padding, o.dilation_h_factor),
        Window(x[2], w[2], o.stride_w, o.padding, o.dilation_w_factor),
    )


def _why_not(geometry: _Geometry, rank: int) -> WhyNot:
    def why_not(_context: LoweringContext, o: Any, inputs: Specs, outputs: Specs) -> str | None:
        x, w = inputs[:2]
        bias = optional(inputs, 2)
        return first_reason(
            why_not_floats(x, w, bias, *outputs),
            why_not_fused(o.fused_activation_function),
            _why_not_shapes(geometry, rank, o, x, w, bias),
        )

    return why_not


def _why_not_shapes(
    geometry: _Geometry,
    rank: int,
    o: Options,
    x: TensorSpec,
    w: TensorSpec,
    bias: TensorSpec | None,
) -> str | None:
    if len(x.shape) != rank or len(w.shape) != rank:
        return f"input {list(x.shape)} and filter {list(w.shape)} must have {rank} dimensions"
    if min(*x.shape[1:], *w.shape) <= 0:
        return f"input {list(x.shape)} or filter {list(w.shape)} has an empty dimension"
    c = geometry(o, x.shape, w.shape)
    return first_reason(
        _why_not_filter(o, c, w.shape),
        _why_not_channels(c, bias),
        why_not_windows(c.windows),
        why_not_fit(c.windows),
    )


def _why_not_filter(o: Options, c: Convolution, w: Shape) -> str | None:
    if isinstance(o, DepthwiseConv2DOptions) and w[0] != 1:
        return f"a depthwise filter is [1, H, W, O], not {list(w)}"
    if isinstance(o, Conv3DOptions) and c.depth != c.channels:
        return f"{c.channels} input channels for a filter over {c.depth}"
    return None


def _why_not_channels(c: Convolution, bias: TensorSpec | None) -> str | None:
    if c.channels % c.depth or c.units % c.groups:
        return (
            f"{c.channels} input and {c.units} output channels "
            f"do not split into groups of {c.depth}"
        )
    if bias is not None and math.prod(bias.shape) != c.units:
        return f"a bias of {math.prod(bias.shape)} values for {c.units} output channels"
    return None


# Filters as the file stores them -> [*spatial, I, O].
def _from_ohwi(w: Any) -> Any:
    return w.transpose(1, 2, 3, 0)


def _from_1hwo(w: Any) -> Any:
    return w.reshape(*w.shape[1:3], 1, w.shape[3])


def _from_dhwio(w: Any) -> Any:
    return w


def _lower(geometry: _Geometry, spatial_io: Prepare) -> Lower:
    def lower(context: LoweringContext, o: Any, inputs: Specs, outputs: Specs) -> Function:
        x, w = inputs[:2]
        c = geometry(o, x.shape, w.shape)
        if 0 in (x.shape[0], *c.out):
            return nothing(outputs)
        arithmetic = Arithmetic.of(context, x, w)
        layout, run = way(context.platform, c)

        def convolution(x: jax.Array, w: jax.Array, bias: Any = None) -> tuple[jax.Array]:
            y = run(arithmetic, c, x.astype(arithmetic.operand), w)  # [N, *out, O]
            return (finish(y, bias, o.fused_activation_function, outputs[0].dtype),)

        return Lowered(
            convolution, {1: lambda w: layout(c, spatial_io(w)).astype(arithmetic.operand)}
        )

    return lower


CONV_2D = OpRule(
    "CONV_2D", Conv2DOptions, 8, _why_not(_conv_2d, 4), _lower(_conv_2d, _from_ohwi), arity=2
)
DEPTHWISE_CONV_2D = OpRule(
    "DEPTHWISE_CONV_2D",
    DepthwiseConv2DOptions,
    7,
    _why_not(_depthwise, 4),
    _lower(_depthwise, _from_1hwo),
    arity=2,
)
CONV_3D = OpRule(
    "CONV_3D", Conv3DOptions, 1, _why_not(_conv_3d, 5), _lower(_conv_3d, _from_dhwio), arity=2
)
