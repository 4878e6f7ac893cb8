"""Convolutions: CONV_2D, DEPTHWISE_CONV_2D, CONV_3D."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

import jax
import numpy as np

from jaxdelegate.op_lowering.common import quantized_products
from jaxdelegate.op_lowering.common.algorithms import chosen
from jaxdelegate.op_lowering.common.basics import Array, final_activation
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
    cpu_kernel_integer,
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
    split_dot,
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
    Op,
    OpRule,
    Prepare,
    first_reason,
    rule,
    table,
)
from jaxdelegate.op_lowering.spec import Shape, TensorSpec

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
    """The operator-specific parts of a convolution: its geometry, and what LiteRT's kernels accept.

    `spatial_io` transposes the file's filter to [*spatial, I, O]; `channel_axis` is the dimension
    of the file's filter that holds the output channels.
    """

    rank: int
    geometry: _Geometry[_Conv]
    spatial_io: Prepare
    channel_axis: int
    kernels: quantized_products.Kernels
    dynamic_range: DynamicRange

    def rule(self, name: str, max_version: int) -> OpRule[_Conv]:
        return rule(
            name, max_version, self.why_not, self.lower, arity=2, algorithms=self.algorithms
        )

    def _convolution(self, op: Op[_Conv]) -> Convolution:
        x, w = op.inputs[:2]
        return self.geometry(op.options, x.shape, w.shape)

    def why_not(self, op: Op[_Conv]) -> str | None:
        tensors = Tensors.of(op)
        reason = first_reason(
            why_not_fused(op.options.fused_activation_function),
            self._why_not_shapes(op.options, tensors),
        )
        if reason is not None:
            return reason
        if tensors.is_integer:
            products = self._convolution(op).products
            return quantized_convolution.why_not(
                self.kernels, op.options, tensors, self.channel_axis, products
            )
        if tensors.is_dynamic_range:
            return self.dynamic_range.why_not(tensors, self.channel_axis)
        return why_not_floats(*tensors)

    def _why_not_shapes(self, options: _Conv, tensors: Tensors) -> str | None:
        x, w = tensors.x.shape, tensors.w.shape
        if len(x) != self.rank or len(w) != self.rank:
            return f"input {list(x)} and filter {list(w)} must have {self.rank} dimensions"
        if min(*x[1:], *w) <= 0:
            return f"input {list(x)} or filter {list(w)} has an empty dimension"
        c = self.geometry(options, x, w)
        return first_reason(
            _why_not_filter(options, c, w),
            _why_not_channels(c, tensors.bias),
            why_not_windows(c.windows),
            why_not_fit(c.windows),
        )

    def algorithms(self, op: Op[_Conv]) -> Mapping[str, Any]:
        context, tensors, c = op.context, Tensors.of(op), self._convolution(op)
        if 0 in (c.batch, *c.out):
            return {}
        activation = op.options.fused_activation_function
        if tensors.w.is_quantized:
            by_kernel = (
                cpu_kernel_integer.algorithms(context, tensors, self.spatial_io, c)
                if tensors.is_integer
                else cpu_kernel_dynamic_range.algorithms(context, tensors, activation, c)
            )
            return {**dict.fromkeys(by_kernel), **integer_algorithms(context.platform, c)}
        if kernel_order.is_chosen(context, c, tensors):
            return {}
        native = cpu_kernel.algorithms(context, tensors, c)
        others = _float_algorithms(context, c, tensors, activation)
        if not depthwise_triton.takes(context, tensors, c):
            return {**dict.fromkeys(native), **others}
        triton = {depthwise_triton.TRITON: None}
        by_default = depthwise_triton.is_chosen(context, tensors, c)
        return {**triton, **others} if by_default else {**others, **triton}

    def lower(self, op: Op[_Conv]) -> Function:
        tensors, c = Tensors.of(op), self._convolution(op)
        if 0 in (c.batch, *c.out):
            return nothing(op.outputs)
        if tensors.is_integer:
            return quantized_convolution.lower(op, c, self.spatial_io)
        if tensors.is_dynamic_range:
            return dynamic_range_convolution.lower(op, c, self.spatial_io, self.dynamic_range)
        return self._lower_floats(op)

    def with_epilogue(
        self, op: Op[_Conv], activation: Act, nonlinearity: Nonlinearity
    ) -> Lowered | None:
        """A float convolution that ends in these, by one kernel; None: no kernel does that.

        Its function takes a residual after the bias, and adds it before the activation.
        """
        context, tensors, c = op.context, Tensors.of(op), self._convolution(op)
        shape = (c.batch, *c.out, c.output_channels)
        is_whole = tensors.y.shape == shape and 0 not in shape
        if not is_whole or kernel_order.is_chosen(context, c, tensors):
            return None
        ours = self._by_own_kernel(op, activation, nonlinearity)
        if ours is not None:
            return ours
        layout, run = by_library(context.platform)
        is_chosen = context.platform == "gpu" and context.algorithm in (None, run.__name__)
        by_cudnn = is_chosen and nonlinearity is Nonlinearity.NONE and c.groups == 1
        if not by_cudnn or why_not_floats(*tensors) is not None:
            return None
        return self._by_algorithm(op, activation, (layout, run))

    def _lower_floats(self, op: Op[_Conv]) -> Function:
        context, tensors, c = op.context, Tensors.of(op), self._convolution(op)
        activation = op.options.fused_activation_function
        if kernel_order.is_chosen(context, c, tensors):
            return kernel_order.lower(context, c, self.spatial_io, activation, tensors)
        ours = self._by_own_kernel(op, activation, Nonlinearity.NONE)
        if ours is not None:
            return ours
        algorithm = chosen(_float_algorithms(context, c, tensors, activation), context.algorithm)
        return self._by_algorithm(op, activation, algorithm)

    def _by_own_kernel(
        self, op: Op[_Conv], activation: Act, nonlinearity: Nonlinearity
    ) -> Lowered | None:
        context, tensors, c = op.context, Tensors.of(op), self._convolution(op)
        native = cpu_kernel.chosen(context, tensors, c)
        if native is not None:
            return cpu_kernel.convolution(
                native, c, activation, self.spatial_io, nonlinearity, context.result.grid
            )
        if depthwise_triton.is_chosen(context, tensors, c):
            end = final_activation(activation, nonlinearity)
            return depthwise_triton.convolution(context, c, self.spatial_io, end)
        return None

    def _by_algorithm(
        self, op: Op[_Conv], activation: Act, algorithm: tuple[Layout, Run]
    ) -> Lowered:
        layout, run = algorithm
        tensors, c = Tensors.of(op), self._convolution(op)
        arithmetic = _arithmetic(op.context, run, c, tensors)
        has_short_epilogue = arithmetic.has_short_epilogue

        def convolution(
            x: jax.Array,
            w: jax.Array,
            bias: jax.Array | None = None,
            residual: jax.Array | None = None,
        ) -> tuple[jax.Array]:
            y = run(arithmetic, c, arithmetic.reduced(x), w)  # [N, *out, O]
            residual = arithmetic.reduced(residual) if has_short_epilogue else residual
            dtype, is_finite = tensors.y.dtype, arithmetic.is_finite
            y = finish(y, bias, activation, dtype, residual, is_finite=is_finite)
            return (arithmetic.rounded_result(y),)

        def prepare(w: Array) -> Array:
            laid_out: Array = arithmetic.reduced(layout(c, self.spatial_io(w)))
            return laid_out

        prepared = {1: prepare, 2: arithmetic.reduced} if has_short_epilogue else {1: prepare}
        is_bounded = activation in _BOUNDED or arithmetic.operand != np.float16
        return Lowered(
            convolution,
            prepared,
            (layout, arithmetic.operand),
            takes_reduced=True,
            may_overflow=has_short_epilogue and not is_bounded,
        )


def _float_algorithms(
    context: LoweringContext, c: Convolution, tensors: Tensors, activation: Act
) -> Algorithms:
    operand = Arithmetic.of_convolution(context, tensors.x, tensors.w).operand
    can_transform = tensors.w.const is not None and operand == np.float32
    is_clamped = activation in _BOUNDED or operand == np.float16
    return float_algorithms(
        context.platform,
        c,
        can_transform=can_transform,
        is_clamped=is_clamped,
        splits=context.kernels.splits_products,
    )


def _arithmetic(context: LoweringContext, run: Run, c: Convolution, tensors: Tensors) -> Arithmetic:
    if run in (dot, split_dot):
        rows = tensors.x.shape[0] * math.prod(c.out)
        return Arithmetic.of_dot(context, rows, c.output_channels, tensors.x, tensors.w)
    in_library = run in (xla, xla_units_first) and c.groups == 1
    return Arithmetic.of_convolution(context, tensors.x, tensors.w, epilogue_in_library=in_library)


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
    rank=4,
    geometry=_conv_2d,
    spatial_io=_from_ohwi,
    channel_axis=0,
    kernels=quantized_convolution.CONV_2D,
    dynamic_range=dynamic_range_convolution.CONV_2D,
)
_DEPTHWISE = _Family(
    rank=4,
    geometry=_depthwise,
    spatial_io=_from_1hwo,
    channel_axis=3,
    kernels=quantized_convolution.DEPTHWISE_CONV_2D,
    dynamic_range=dynamic_range_convolution.DEPTHWISE_CONV_2D,
)
_CONV_3D = _Family(
    rank=5,
    geometry=_conv_3d,
    spatial_io=_from_dhwio,
    channel_axis=4,
    kernels=quantized_convolution.NONE,
    dynamic_range=dynamic_range_convolution.NONE,
)


def family(options: _Conv2D) -> _Family[_Conv2D]:
    return _DEPTHWISE if isinstance(options, DepthwiseConv2DOptions) else _CONV_2D


RULES = table(
    _CONV_2D.rule("CONV_2D", 8),
    _DEPTHWISE.rule("DEPTHWISE_CONV_2D", 7),
    _CONV_3D.rule("CONV_3D", 1),
)
