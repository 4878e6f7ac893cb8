"""Convolutions: CONV_2D, DEPTHWISE_CONV_2D, CONV_3D.

Floats are computed here, quantized tensors in quantized.py and dynamic_range.py.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

import jax
import numpy as np

from jaxdelegate.op_lowering.common import quantized_products
from jaxdelegate.op_lowering.common.algorithms import chosen
from jaxdelegate.op_lowering.common.basics import Array, end_of, fused_activation
from jaxdelegate.op_lowering.common.dynamic_range import DynamicRange
from jaxdelegate.op_lowering.common.products import (
    Arithmetic,
    finish,
    nothing,
    why_not_floats,
    why_not_fused,
)
from jaxdelegate.op_lowering.common.quantized_products import Tensors
from jaxdelegate.op_lowering.common.window import Window, Windows, why_not_fit, why_not_windows
from jaxdelegate.op_lowering.convolution import (
    cpu_kernel,
    cpu_kernel_dynamic_range,
    cpu_kernel_int8,
    depthwise_triton,
    kernel_order,
)
from jaxdelegate.op_lowering.convolution import dynamic_range as dynamic_range_convolution
from jaxdelegate.op_lowering.convolution import quantized as quantized_convolution
from jaxdelegate.op_lowering.convolution.algorithms import (
    Convolution,
    Layout,
    Run,
    by_library,
    dot,
    xla,
    xla_units_first,
)
from jaxdelegate.op_lowering.convolution.candidates import (
    Algorithms,
    float_algorithms,
    integer_algorithms,
)
from jaxdelegate.op_lowering.convolution.options import (
    Conv2DOptions,
    Conv3DOptions,
    DepthwiseConv2DOptions,
    explicit_pads,
)
from jaxdelegate.op_lowering.records.enums import ActivationFunctionType as Act
from jaxdelegate.op_lowering.records.enums import Nonlinearity
from jaxdelegate.op_lowering.rule import (
    Function,
    Lowered,
    LoweringContext,
    OpRule,
    Prepare,
    first_reason,
    optional,
    table,
)
from jaxdelegate.op_lowering.spec import Shape, Specs, TensorSpec

_Conv2D = Conv2DOptions | DepthwiseConv2DOptions
_Conv = TypeVar("_Conv", bound=_Conv2D | Conv3DOptions)
_Geometry = Callable[[_Conv, Shape, Shape], Convolution]

_BOUNDED = frozenset([Act.RELU6, Act.RELU_N1_TO_1])


def _conv_2d(o: _Conv2D, x: Shape, w: Shape) -> Convolution:
    return Convolution(_windows_2d(o, x, w), x[3], w[3], w[0], x[0])


def _depthwise(o: _Conv2D, x: Shape, w: Shape) -> Convolution:
    return Convolution(_windows_2d(o, x, w), x[3], 1, w[3], x[0])


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
        x[0],
    )


def _windows_2d(o: _Conv2D, x: Shape, w: Shape) -> Windows:
    height, width = explicit_pads(o)
    return (
        Window(x[1], w[1], o.stride_h, o.padding, o.dilation_h_factor, height),
        Window(x[2], w[2], o.stride_w, o.padding, o.dilation_w_factor, width),
    )


@dataclasses.dataclass(frozen=True)
class _Family(Generic[_Conv]):
    """What one operator says of itself: its geometry, and its kernels besides that of floats.

    `spatial_io` turns the file's filter, of which `channel_axis` holds the output channels, into
    [*spatial, I, O].
    """

    rank: int
    geometry: _Geometry[_Conv]
    spatial_io: Prepare
    channel_axis: int
    kernels: quantized_products.Kernels
    dynamic_range: DynamicRange

    def why_not(
        self, _context: LoweringContext, o: _Conv, inputs: Specs, outputs: Specs
    ) -> str | None:
        x, w = inputs[:2]
        tensors = Tensors(x, w, optional(inputs, 2), outputs[0])
        reason = first_reason(
            why_not_fused(o.fused_activation_function),
            _why_not_shapes(self.geometry, self.rank, o, x, w, tensors.bias),
        )
        if reason is not None:
            return reason
        if tensors.is_integer:
            products = self.geometry(o, x.shape, w.shape).products
            return quantized_convolution.why_not(
                self.kernels, o, tensors, self.channel_axis, products
            )
        if tensors.is_dynamic_range:
            return self.dynamic_range.why_not(tensors, self.channel_axis)
        return why_not_floats(*tensors)

    def algorithms(
        self, context: LoweringContext, o: _Conv, inputs: Specs, outputs: Specs
    ) -> Mapping[str, Any]:
        x, w = inputs[:2]
        c = self.geometry(o, x.shape, w.shape)
        if 0 in (x.shape[0], *c.out):
            return {}
        tensors = Tensors(x, w, optional(inputs, 2), outputs[0])
        if w.is_quantized:
            activation = o.fused_activation_function
            by_kernel = (
                cpu_kernel_int8.algorithms(context, tensors, c)
                if tensors.is_integer
                else cpu_kernel_dynamic_range.algorithms(context, tensors, activation, c)
            )
            return {**dict.fromkeys(by_kernel), **integer_algorithms(context.platform, c)}
        if kernel_order.is_chosen(context, c, tensors):
            return {}
        own = cpu_kernel.algorithms(context, tensors, c)
        others = _float_algorithms(context, c, tensors, o.fused_activation_function)
        if not depthwise_triton.takes(context, tensors, c):
            return {**dict.fromkeys(own), **others}
        triton = {depthwise_triton.TRITON: None}
        by_default = depthwise_triton.is_chosen(context, tensors, c)
        return {**triton, **others} if by_default else {**others, **triton}

    def lower(self, context: LoweringContext, o: _Conv, inputs: Specs, outputs: Specs) -> Function:
        x, w = inputs[:2]
        tensors = Tensors(x, w, optional(inputs, 2), outputs[0])
        c = self.geometry(o, x.shape, w.shape)
        if 0 in (x.shape[0], *c.out):
            return nothing(outputs)
        if tensors.is_integer:
            return quantized_convolution.lower(context, c, self.spatial_io, o, tensors)
        if tensors.is_dynamic_range:
            return dynamic_range_convolution.lower(
                context, c, self.spatial_io, o, tensors, self.dynamic_range
            )
        return self._lower_floats(context, c, o, tensors)

    def ended(
        self,
        context: LoweringContext,
        o: _Conv,
        tensors: Tensors,
        activation: Act,
        nonlinearity: Nonlinearity,
    ) -> Lowered | None:
        """A convolution of floats with another end; None: nobody computes it at once.

        Its function takes a residual after the bias, and adds it before the activation.
        """
        c = self.geometry(o, tensors.x.shape, tensors.w.shape)
        is_whole = (
            tensors.y.shape == (c.batch, *c.out, c.output_channels) and 0 not in tensors.y.shape
        )
        if not is_whole or kernel_order.is_chosen(context, c, tensors):
            return None
        own = cpu_kernel.chosen(context, tensors, c)
        if own is not None:
            return cpu_kernel.convolution(
                own, c, activation, self.spatial_io, nonlinearity, context.grid
            )
        if depthwise_triton.is_chosen(context, tensors, c):
            end = end_of(activation, nonlinearity)
            return depthwise_triton.convolution(context, c, self.spatial_io, end)
        layout, run = by_library(context.platform)
        is_meant = context.platform == "gpu" and context.algorithm in (None, run.__name__)
        by_cudnn = is_meant and nonlinearity is Nonlinearity.NONE and c.groups == 1
        if not by_cudnn or why_not_floats(*tensors) is not None:
            return None
        return self._by_algorithm(context, c, tensors, activation, (layout, run))

    def _lower_floats(
        self, context: LoweringContext, c: Convolution, o: _Conv, tensors: Tensors
    ) -> Function:
        activation = o.fused_activation_function
        if kernel_order.is_chosen(context, c, tensors):
            return kernel_order.lower(c, self.spatial_io, activation, tensors)
        own = cpu_kernel.chosen(context, tensors, c)
        if own is not None:
            return cpu_kernel.convolution(own, c, activation, self.spatial_io, grid=context.grid)
        if depthwise_triton.is_chosen(context, tensors, c):
            end = fused_activation(activation)
            return depthwise_triton.convolution(context, c, self.spatial_io, end)
        algorithm = chosen(_float_algorithms(context, c, tensors, activation), context.algorithm)
        return self._by_algorithm(context, c, tensors, activation, algorithm)

    def _by_algorithm(
        self,
        context: LoweringContext,
        c: Convolution,
        tensors: Tensors,
        activation: Act,
        algorithm: tuple[Layout, Run],
    ) -> Lowered:
        """The function of x, a filter, a bias and a residual, the last two of which may lack."""
        layout, run = algorithm
        arithmetic = _arithmetic(context, run, c, tensors)

        def convolution(
            x: jax.Array,
            w: jax.Array,
            bias: jax.Array | None = None,
            residual: jax.Array | None = None,
        ) -> tuple[jax.Array]:
            y = run(arithmetic, c, arithmetic.reduced(x), w)  # [N, *out, O]
            residual = arithmetic.reduced(residual) if arithmetic.ends_short else residual
            dtype, is_finite = tensors.y.dtype, arithmetic.is_finite
            done = finish(y, bias, activation, dtype, residual, is_finite=is_finite)
            return (arithmetic.ended(done),)

        def prepare(w: Array) -> Array:
            laid_out: Array = arithmetic.reduced(layout(c, self.spatial_io(w)))
            return laid_out

        prepared = {1: prepare, 2: arithmetic.reduced} if arithmetic.ends_short else {1: prepare}
        is_bounded = activation in _BOUNDED or arithmetic.operand != np.float16
        return Lowered(
            convolution,
            prepared,
            (layout, arithmetic.operand),
            takes_reduced=True,
            may_overflow=arithmetic.ends_short and not is_bounded,
        )


def _float_algorithms(
    context: LoweringContext, c: Convolution, tensors: Tensors, activation: Act
) -> Algorithms:
    operand = Arithmetic.of_convolution(context, tensors.x, tensors.w).operand
    can_transform = tensors.w.const is not None and operand == np.float32
    is_clamped = activation in _BOUNDED or operand == np.float16
    return float_algorithms(context.platform, c, can_transform=can_transform, is_clamped=is_clamped)


def _arithmetic(context: LoweringContext, run: Run, c: Convolution, tensors: Tensors) -> Arithmetic:
    if run is dot:
        rows = tensors.x.shape[0] * math.prod(c.out)
        return Arithmetic.of_dot(context, rows, c.output_channels, tensors.x, tensors.w)
    ends_in_library = run in (xla, xla_units_first) and c.groups == 1
    return Arithmetic.of_convolution(context, tensors.x, tensors.w, ends_in_library=ends_in_library)


def _why_not_shapes(
    geometry: _Geometry[_Conv],
    rank: int,
    o: _Conv,
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


def _why_not_filter(o: _Conv2D | Conv3DOptions, c: Convolution, w: Shape) -> str | None:
    if isinstance(o, DepthwiseConv2DOptions) and w[0] != 1:
        return f"a depthwise filter is [1, H, W, O], not {list(w)}"
    if isinstance(o, Conv3DOptions) and c.depth != c.channels:
        return f"{c.channels} input channels for a filter over {c.depth}"
    return None


def _why_not_channels(c: Convolution, bias: TensorSpec | None) -> str | None:
    if c.channels % c.depth or c.output_channels % c.groups:
        return (
            f"{c.channels} input and {c.output_channels} output channels "
            f"do not split into groups of {c.depth}"
        )
    if bias is not None and math.prod(bias.shape) != c.output_channels:
        return f"a bias of {math.prod(bias.shape)} values for {c.output_channels} output channels"
    return None


# Filters as the file stores them -> [*spatial, I, O].
def _from_ohwi(w: Array) -> Array:
    return w.transpose(1, 2, 3, 0)


def _from_1hwo(w: Array) -> Array:
    return w.reshape(*w.shape[1:3], 1, w.shape[3])


def _from_dhwio(w: Array) -> Array:
    return w


_CONV_2D = _Family(
    4, _conv_2d, _from_ohwi, 0, quantized_convolution.CONV_2D, dynamic_range_convolution.CONV_2D
)
_DEPTHWISE = _Family(
    4,
    _depthwise,
    _from_1hwo,
    3,
    quantized_convolution.DEPTHWISE_CONV_2D,
    dynamic_range_convolution.DEPTHWISE_CONV_2D,
)
_CONV_3D = _Family(
    5, _conv_3d, _from_dhwio, 4, quantized_convolution.NONE, dynamic_range_convolution.NONE
)


def family(options: _Conv2D) -> _Family[_Conv2D]:
    """What CONV_2D or DEPTHWISE_CONV_2D says of itself, with padding written out or not."""
    return _DEPTHWISE if isinstance(options, DepthwiseConv2DOptions) else _CONV_2D


CONV_2D = OpRule(
    "CONV_2D",
    Conv2DOptions,
    8,
    _CONV_2D.why_not,
    _CONV_2D.lower,
    arity=2,
    algorithms=_CONV_2D.algorithms,
)
DEPTHWISE_CONV_2D = OpRule(
    "DEPTHWISE_CONV_2D",
    DepthwiseConv2DOptions,
    7,
    _DEPTHWISE.why_not,
    _DEPTHWISE.lower,
    arity=2,
    algorithms=_DEPTHWISE.algorithms,
)
CONV_3D = OpRule(
    "CONV_3D",
    Conv3DOptions,
    1,
    _CONV_3D.why_not,
    _CONV_3D.lower,
    arity=2,
    algorithms=_CONV_3D.algorithms,
)

RULES = table(CONV_2D, DEPTHWISE_CONV_2D, CONV_3D)
