"""Convolutions: CONV_2D, DEPTHWISE_CONV_2D, CONV_3D.

The filter is laid out once as [*spatial, I, O], I being the input channels of one group. A GPU and
a TPU then run XLA's convolution. XLA's CPU backend has a good one for deep sums only, so the CPU
has other ways (`_way`): the choice and its limits were measured, layer by layer, on the shapes of
MobileNet, ResNet and ResNeXt.
"""

import dataclasses
import functools
import math
import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

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
from jaxdelegate.op_lowering.window import (
    Window,
    Windows,
    pad_windows,
    read_tap,
    taps,
    why_not_fit,
    why_not_windows,
)

# Limits of the CPU's ways. Products that one output value sums:
_DEPTHWISE_TAPS = 256  # beyond, the unrolled sum takes seconds to compile
_GROUPED_TAPS = 40  # up to here a sum of taps beats products of patches
_TAPS = 32  # the same, without groups
_SHALLOW = 160  # up to here XLA:CPU's convolution is slow, if it yields few channels:
_NARROW, _NARROW_FROM_RGB = 16, 32
# Groups that deserve a convolution each: few of many channels.
_DEEP_GROUP, _FEW_GROUPS = 32, 16


@dataclasses.dataclass(frozen=True)
class _Convolution:
    """The static side of one convolution, whichever operator it comes from."""

    windows: Windows
    channels: int
    depth: int  # input channels of one group
    units: int  # output channels

    @property
    def groups(self) -> int:
        return self.channels // self.depth

    @property
    def is_pointwise(self) -> bool:
        return all(w.size == 1 for w in self.windows)

    @property
    def is_padded(self) -> bool:
        """Whether a sum of taps reads a copy of the input.

        What computes an input that is not copied, XLA:CPU fuses and repeats for every tap and unit.
        """
        return any(any(w.pads) for w in self.windows)

    @property
    def products(self) -> int:
        """How many products one output value sums."""
        return math.prod(w.size for w in self.windows) * self.depth

    @property
    def out(self) -> Shape:
        return tuple(w.n_out for w in self.windows)


_Geometry = Callable[[Any, Shape, Shape], _Convolution]


def _conv_2d(o: Conv2DOptions, x: Shape, w: Shape) -> _Convolution:
    return _Convolution(_windows_2d(o, x, w), x[3], w[3], w[0])


def _depthwise(o: DepthwiseConv2DOptions, x: Shape, w: Shape) -> _Convolution:
    return _Convolution(_windows_2d(o, x, w), x[3], 1, w[3])


def _conv_3d(o: Conv3DOptions, x: Shape, w: Shape) -> _Convolution:
    strides = (o.stride_d, o.stride_h, o.stride_w)
    dilations = (o.dilation_d_factor, o.dilation_h_factor, o.dilation_w_factor)
    windows = zip(x[1:4], w[:3], strides, dilations, strict=True)
    return _Convolution(
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


def _why_not_filter(o: Options, c: _Convolution, w: Shape) -> str | None:
    if isinstance(o, DepthwiseConv2DOptions) and w[0] != 1:
        return f"a depthwise filter is [1, H, W, O], not {list(w)}"
    if isinstance(o, Conv3DOptions) and c.depth != c.channels:
        return f"{c.channels} input channels for a filter over {c.depth}"
    return None


def _why_not_channels(c: _Convolution, bias: TensorSpec | None) -> str | None:
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
        layout, run = _way(context.platform, c)

        def convolution(x: jax.Array, w: jax.Array, bias: Any = None) -> tuple[jax.Array]:
            y = run(arithmetic, c, x.astype(arithmetic.operand), w)  # [N, *out, O]
            return (finish(y, bias, o.fused_activation_function, outputs[0].dtype),)

        return Lowered(
            convolution, {1: lambda w: layout(c, spatial_io(w)).astype(arithmetic.operand)}
        )

    return lower


# A filter [*spatial, I, O] -> what the way reads; x and that -> [N, *out, O].
_Layout = Callable[[_Convolution, Any], Any]
_Run = Callable[[Arithmetic, _Convolution, Any, Any], jax.Array]


def _way(platform: str, c: _Convolution) -> tuple[_Layout, _Run]:
    """How to run a convolution on this platform: a filter layout, and what reads it."""
    if platform != "cpu":
        return _as_stored, _xla
    if c.groups > 1:
        return _grouped_way(c)
    if c.is_pointwise:
        return _as_matrix, _dot
    narrow = _NARROW_FROM_RGB if c.depth == 3 else _NARROW
    if c.products > _SHALLOW or c.units > narrow:
        return _as_stored, _xla
    if c.products <= _TAPS and c.is_padded:
        return _by_tap, _tap_sum
    return _by_group, _grouped_dot


def _grouped_way(c: _Convolution) -> tuple[_Layout, _Run]:
    few = c.products <= _GROUPED_TAPS and c.is_padded
    if few or (c.depth == 1 and c.products <= _DEPTHWISE_TAPS):
        return _by_tap, _tap_sum
    if c.depth >= _DEEP_GROUP and c.groups <= _FEW_GROUPS:
        return _as_stored, _group_by_group
    return _by_group, _grouped_dot


def _as_stored(_c: _Convolution, w: Any) -> Any:
    return w


def _xla(a: Arithmetic, c: _Convolution, x: Any, w: Any) -> jax.Array:
    return a.convolution(
        x,
        w,
        [d.stride for d in c.windows],
        [d.pads for d in c.windows],
        filter_dilation=[d.dilation for d in c.windows],
        groups=c.groups,
    )


def _as_matrix(c: _Convolution, w: Any) -> Any:
    return w.reshape(c.depth, c.units)


def _dot(a: Arithmetic, c: _Convolution, x: Any, w: Any) -> jax.Array:
    """A window of one pixel: a matrix product over the pixels that the strides leave."""
    x = read_tap(x, c.windows, [0] * len(c.windows))
    y = a.dot(x.reshape(-1, c.channels), w, ((1,), (0,)))
    return y.reshape(*x.shape[:-1], c.units)


def _by_tap(c: _Convolution, w: Any) -> Any:
    return w.reshape(*w.shape[:-1], c.groups, c.units // c.groups)


def _tap_sum(a: Arithmetic, c: _Convolution, x: Any, w: Any) -> jax.Array:
    """Shifted inputs times filter rows, one for each tap and channel of a group, in one fused loop.

    `w` is [*spatial, I, groups, O / groups]; depthwise has I = 1.
    """
    padded = pad_windows(x.astype(a.accumulator), c.windows, 0)
    padded = padded.reshape(*padded.shape[:-1], c.groups, c.depth)
    ones = (1,) * (1 + len(c.windows))
    terms = []
    for tap in taps(c.windows):
        shifted = read_tap(padded, c.windows, tap)  # [N, *out, groups, I]
        for i in range(c.depth):
            row = w[(*tap, i)].astype(a.accumulator).reshape(*ones, c.groups, -1)
            terms.append(lax.slice_in_dim(shifted, i, i + 1, axis=-1) * row)
    y: jax.Array = functools.reduce(operator.add, terms)
    return y.reshape(*y.shape[:-2], c.units)


def _by_group(c: _Convolution, w: Any) -> Any:
    return w.reshape(c.products, c.groups, -1).transpose(1, 0, 2)


def _grouped_dot(a: Arithmetic, c: _Convolution, x: Any, w: Any) -> jax.Array:
    """Patches of each group side by side, then one batched product.

    `w` is [groups, taps * I, O / groups].
    """
    padded = pad_windows(x, c.windows, 0)
    padded = padded.reshape(*padded.shape[:-1], c.groups, c.depth)
    padded = jnp.moveaxis(padded, -2, 0).reshape(-1, *padded.shape[1:-2], c.depth)
    patches = jnp.concatenate([read_tap(padded, c.windows, tap) for tap in taps(c.windows)], -1)
    y = a.dot(patches.reshape(c.groups, -1, c.products), w, ((2,), (1,)), ((0,), (0,)))
    return y.transpose(1, 0, 2).reshape(-1, *c.out, c.units)


def _group_by_group(a: Arithmetic, c: _Convolution, x: Any, w: Any) -> jax.Array:
    one = dataclasses.replace(c, channels=c.depth, units=c.units // c.groups)
    parts = zip(jnp.split(x, c.groups, -1), jnp.split(w, c.groups, -1), strict=True)
    return jnp.concatenate([_xla(a, one, x_group, w_group) for x_group, w_group in parts], -1)


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
