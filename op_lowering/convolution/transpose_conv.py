"""Transposed convolutions: TRANSPOSE_CONV, CONV_3D_TRANSPOSE and Convolution2DTransposeBias.

Each is the gradient of a convolution with respect to its input: a convolution whose input is
dilated by the strides and whose filter is mirrored. It is laid out once as [*spatial, I, O].
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdelegate.op_lowering.common import quantized_products
from jaxdelegate.op_lowering.common.algorithms import chosen
from jaxdelegate.op_lowering.common.basics import SMALL, Array
from jaxdelegate.op_lowering.common.dynamic_range import DynamicRange
from jaxdelegate.op_lowering.common.products import (
    Arithmetic,
    Steps,
    finish,
    nothing,
    why_not_floats,
    why_not_fused,
)
from jaxdelegate.op_lowering.common.quantized_products import Tensors
from jaxdelegate.op_lowering.common.window import Spread, Spreads, Window, Windows, why_not_windows
from jaxdelegate.op_lowering.convolution import cpu_kernel_transposed
from jaxdelegate.op_lowering.convolution import dynamic_range as dynamic_range_convolution
from jaxdelegate.op_lowering.convolution import quantized as quantized_convolution
from jaxdelegate.op_lowering.convolution.integer import overlap
from jaxdelegate.op_lowering.convolution.options import (
    Conv3DOptions,
    Convolution2DTransposeBiasOptions,
    TransposeConvOptions,
)
from jaxdelegate.op_lowering.records.enums import ActivationFunctionType as Act
from jaxdelegate.op_lowering.records.enums import Padding
from jaxdelegate.op_lowering.rule import (
    Function,
    Lowered,
    LoweringContext,
    Op,
    OpRule,
    Prepare,
    first_reason,
    optional,
    rule,
    table,
    why_not_const,
    why_not_dtype,
)
from jaxdelegate.op_lowering.spec import Shape, TensorSpec


def _why_not_shapes(
    x: TensorSpec, filter_shape: Shape, bias: TensorSpec | None, rank: int
) -> str | None:
    """`filter_shape` is the filter's [*spatial, I, O]."""
    if len(x.shape) != rank or len(filter_shape) != rank:
        return f"input {list(x.shape)} and filter must have {rank} dimensions"
    if min(*x.shape[1:], *filter_shape) <= 0:
        return f"input {list(x.shape)} or the filter has an empty dimension"
    if x.shape[-1] != filter_shape[-2]:
        return f"{x.shape[-1]} input channels for a filter over {filter_shape[-2]}"
    if bias is not None and math.prod(bias.shape) != filter_shape[-1]:
        return f"a bias of {math.prod(bias.shape)} values for {filter_shape[-1]} output channels"
    return None


def _why_not_output(windows: Windows, x: Shape, out: Shape, output_channels: int) -> str | None:
    reason = why_not_windows(windows)
    if reason is not None:
        return reason
    taken = (out[0], *(w.n_out for w in windows), out[-1])
    if min(out) < 0 or taken != (*x[:-1], output_channels):
        return f"output shape {list(out)} does not come from input {list(x)}"
    return None


def _transposed(
    context: LoweringContext, spreads: Spreads, activation: Act, tensors: Tensors
) -> tuple[Function, Prepare]:
    """(x, laid out filter, bias) -> ([N, *out, O],), and the layout from [*spatial, I, O]."""
    if cpu_kernel_transposed.is_chosen(context, spreads, tensors):
        return cpu_kernel_transposed.transposed(spreads, activation, tensors)
    layout, run = chosen(_by_xla(context, spreads, tensors), context.algorithm)
    arithmetic = Arithmetic.of_convolution(context, tensors.x, tensors.w)
    dtype = tensors.y.dtype

    def transposed(x: jax.Array, w: jax.Array, bias: jax.Array | None) -> tuple[jax.Array]:
        y = run(arithmetic, spreads, arithmetic.reduced(x), w)
        return (finish(y, bias, activation, dtype, is_finite=arithmetic.is_finite),)

    return transposed, lambda w: arithmetic.reduced(layout(w))


_Layout = Callable[[Array], Array]  # a filter [*spatial, I, O] -> what the algorithm reads
_Run = Callable[[Arithmetic, Spreads, jax.Array, jax.Array], jax.Array]


def _float_algorithms(
    context: LoweringContext, spreads: Spreads, tensors: Tensors
) -> Mapping[str, Any]:
    native = dict.fromkeys(cpu_kernel_transposed.algorithms(context, spreads, tensors))
    others = _by_xla(context, spreads, tensors)
    pays = native and cpu_kernel_transposed.pays(spreads, tensors)
    return {**native, **others} if pays else {**others, **native}


def _by_xla(
    context: LoweringContext, spreads: Spreads, tensors: Tensors
) -> Mapping[str, tuple[_Layout, _Run]]:
    is_on_cpu, y = context.platform == "cpu", tensors.y
    convolution: dict[str, tuple[_Layout, _Run]] = {"xla": (_mirrored, _xla)}
    overlapping: dict[str, tuple[_Layout, _Run]] = {"overlap": (_by_pixel, _overlapping)}
    # A convolution by XLA needs its runtime; a product and few sums can be called directly.
    sums = math.prod((s.n_in * s.size for s in spreads), start=y.shape[0] * y.shape[-1])
    is_small = is_on_cpu and sums <= SMALL
    algorithms = overlapping | convolution if is_small else convolution | overlapping
    if all(s.size <= s.stride and s.dilation == 1 for s in spreads):
        apart: dict[str, tuple[_Layout, _Run]] = {"side_by_side": (_by_pixel, _side_by_side)}
        return apart | algorithms if is_on_cpu else algorithms | apart
    return algorithms


def _mirrored(w: Array) -> Array:
    return w[(slice(None, None, -1),) * (w.ndim - 2)]


def _xla(a: Arithmetic, spreads: Spreads, x: jax.Array, w: jax.Array) -> jax.Array:
    steps = Steps(
        [1] * len(spreads),
        [s.pads for s in spreads],
        [s.dilation for s in spreads],
        input_dilation=[s.stride for s in spreads],
    )
    return a.convolution(x, w, steps)


def _by_pixel(w: Array) -> Array:
    axes = tuple(range(w.ndim - 2))
    return w.transpose(w.ndim - 2, *axes, w.ndim - 1)  # [I, *spatial, O]


def _side_by_side(a: Arithmetic, spreads: Spreads, x: jax.Array, w: jax.Array) -> jax.Array:
    """Windows that do not overlap: one matrix product yields every pixel's patch of the output."""
    rank, output_channels = len(spreads), w.shape[-1]
    y = a.dot(x.reshape(-1, x.shape[-1]), w.reshape(w.shape[0], -1), ((1,), (0,)))
    y = y.reshape(*x.shape[:-1], *(s.size for s in spreads), output_channels)  # [N, *in, *size, O]
    zero = jnp.zeros((), y.dtype)
    gaps = [(0, s.stride - s.size, 0) for s in spreads]
    y = lax.pad(y, zero, [(0, 0, 0)] * (1 + rank) + gaps + [(0, 0, 0)])
    pairs = [axis for i in range(rank) for axis in (1 + i, 1 + rank + i)]
    y = y.transpose(0, *pairs, 1 + 2 * rank)
    y = y.reshape(x.shape[0], *(s.n_in * s.stride for s in spreads), output_channels)
    return lax.pad(y, zero, [(0, 0, 0), *(s.crop for s in spreads), (0, 0, 0)])


def _overlapping(a: Arithmetic, spreads: Spreads, x: jax.Array, w: jax.Array) -> jax.Array:
    """One matrix product yields every pixel's patch of the output; then patches are added up."""
    y = a.dot(x.reshape(-1, x.shape[-1]), w.reshape(w.shape[0], -1), ((1,), (0,)))
    sizes = (s.size for s in spreads)
    return overlap(y.reshape(*x.shape[:-1], *sizes, w.shape[-1]), spreads)


def _spread(n_in: int, w: Window) -> Spread:
    return Spread(n_in, w.n_in, w.size, w.stride, w.pads[0], w.dilation)


# TRANSPOSE_CONV and CONV_3D_TRANSPOSE: inputs are (output shape, filter, x, bias).
_OptionsT = TypeVar("_OptionsT", bound=TransposeConvOptions | Conv3DOptions)
# Options, the output's shape and the filter's [*spatial, I, O] -> windows over the output.
_Geometry = Callable[[_OptionsT, Shape, Shape], Windows]


def _windows_2d(o: TransposeConvOptions, out: Shape, w: Shape) -> Windows:
    return (
        Window(out[1], w[0], o.stride_h, o.padding),
        Window(out[2], w[1], o.stride_w, o.padding),
    )


def _windows_3d(o: Conv3DOptions, out: Shape, w: Shape) -> Windows:
    return (
        Window(out[1], w[0], o.stride_d, o.padding, o.dilation_d_factor),
        Window(out[2], w[1], o.stride_h, o.padding, o.dilation_h_factor),
        Window(out[3], w[2], o.stride_w, o.padding, o.dilation_w_factor),
    )


def _requested(op: Op[_OptionsT]) -> Shape:
    return tuple(int(n) for n in np.asarray(op.inputs[0].const).ravel())


def _tensors(op: Op[_OptionsT]) -> Tensors:
    _, w, x = op.inputs[:3]
    return Tensors(x, w, optional(op.inputs, 3), op.outputs[0])


@dataclasses.dataclass(frozen=True)
class _Family(Generic[_OptionsT]):
    """The operator-specific parts of a transposed convolution whose first input is a shape.

    `order`: the axes of the file's filter, in the order of [*spatial, I, O].
    """

    geometry: _Geometry[_OptionsT]
    order: tuple[int, ...]
    kernels: quantized_products.Kernels
    dynamic_range: DynamicRange

    def rule(self, name: str, max_version: int) -> OpRule[_OptionsT]:
        return rule(
            name, max_version, self.why_not, self.lower, arity=3, algorithms=self.algorithms
        )

    def why_not(self, op: Op[_OptionsT]) -> str | None:
        tensors, shape = _tensors(op), op.inputs[0]
        reason = first_reason(
            why_not_const(shape),
            why_not_dtype(shape, np.int32),
            why_not_fused(op.options.fused_activation_function),
        ) or self._why_not_shapes(op)
        if reason is not None:
            return reason
        channel_axis = self.order[-1]
        if tensors.is_integer:
            return quantized_convolution.why_not(
                self.kernels, op.options, tensors, channel_axis, tensors.x.shape[-1]
            )
        if tensors.is_dynamic_range:
            return self.dynamic_range.why_not(tensors, channel_axis)
        return why_not_floats(*tensors)

    def _why_not_shapes(self, op: Op[_OptionsT]) -> str | None:
        (x, w, bias, _), shape = _tensors(op), op.inputs[0]
        rank = len(self.order)
        if shape.shape != (rank,):
            return f"{shape.name!r} must hold {rank} values"
        if len(w.shape) != rank:
            return f"filter {list(w.shape)} must have {rank} dimensions"
        filter_shape, out = self._filter_shape(w), _requested(op)
        return _why_not_shapes(x, filter_shape, bias, rank) or _why_not_output(
            self.geometry(op.options, out, filter_shape), x.shape, out, filter_shape[-1]
        )

    def algorithms(self, op: Op[_OptionsT]) -> Mapping[str, Any]:
        if 0 in _requested(op) or _tensors(op).w.is_quantized:
            return {}
        return _float_algorithms(op.context, self._spreads(op), _tensors(op))

    def _spreads(self, op: Op[_OptionsT]) -> Spreads:
        x, w, *_ = _tensors(op)
        windows = self.geometry(op.options, _requested(op), self._filter_shape(w))
        return tuple(map(_spread, x.shape[1:-1], windows))

    def lower(self, op: Op[_OptionsT]) -> Function:
        if 0 in _requested(op):
            return nothing(op.outputs)
        tensors, spreads = _tensors(op), self._spreads(op)
        if tensors.is_integer:
            return quantized_convolution.lower_transposed(op, spreads, self._spatial_io, tensors)
        if tensors.is_dynamic_range:
            return dynamic_range_convolution.lower_transposed(
                op.options, spreads, self._spatial_io, tensors
            )
        activation = op.options.fused_activation_function
        run, layout = _transposed(op.context, spreads, activation, tensors)
        return Lowered(
            lambda _shape, w, x, bias=None: run(x, w, bias),
            {1: lambda w: layout(self._spatial_io(w))},
        )

    def _filter_shape(self, w: TensorSpec) -> Shape:
        return tuple(w.shape[axis] for axis in self.order)

    def _spatial_io(self, w: Array) -> Array:
        return w.transpose(self.order)


_OHWI = (1, 2, 3, 0)
_DHWOI = (0, 1, 2, 4, 3)

_TRANSPOSE_CONV = _Family(
    _windows_2d,
    _OHWI,
    quantized_convolution.TRANSPOSE_CONV,
    dynamic_range_convolution.TRANSPOSE_CONV,
)
_CONV_3D_TRANSPOSE = _Family(
    _windows_3d, _DHWOI, quantized_convolution.NONE, dynamic_range_convolution.NONE
)


# Convolution2DTransposeBias: inputs are (x, filter [O, H, W, I], bias).
def _why_not_bias(op: Op[Convolution2DTransposeBiasOptions]) -> str | None:
    x, w, bias, y = Tensors.of(op)
    if len(w.shape) != 4:
        return f"filter {list(w.shape)} must have 4 dimensions"
    strides = op.options.stride_h, op.options.stride_w
    return first_reason(
        why_not_floats(x, w, bias, y),
        _why_not_shapes(x, tuple(w.shape[axis] for axis in _OHWI), bias, 4),
        None if min(strides) > 0 else f"strides {strides[0]}, {strides[1]}",
    )


def _lower_bias(op: Op[Convolution2DTransposeBiasOptions]) -> Function:
    if op.inputs[0].shape[0] == 0:
        return nothing(op.outputs)
    run, layout = _transposed(op.context, _bias_spreads(op), Act.NONE, Tensors.of(op))
    return Lowered(
        lambda x, w, bias=None: run(x, w, bias), {1: lambda w: layout(w.transpose(_OHWI))}
    )


def _bias_algorithms(op: Op[Convolution2DTransposeBiasOptions]) -> Mapping[str, Any]:
    if op.inputs[0].shape[0] == 0:
        return {}
    return _float_algorithms(op.context, _bias_spreads(op), Tensors.of(op))


def _bias_spreads(op: Op[Convolution2DTransposeBiasOptions]) -> Spreads:
    (x, w), o = op.inputs[:2], op.options
    sizes = zip(x.shape[1:3], w.shape[1:3], (o.stride_h, o.stride_w), strict=True)
    return tuple(_grown(o.padding, n, size, stride) for n, size, stride in sizes)


def _grown(padding: Padding, n_in: int, size: int, stride: int) -> Spread:
    """MediaPipe's rule: SAME crops what a convolution over the *input* would have padded.

    mediapipe/util/tflite/operations/transpose_conv_bias.cc.
    """
    cropped = max(size - (n_in - 1) % stride - 1, 0) if padding is Padding.SAME else 0
    return Spread(n_in, (n_in - 1) * stride + size - cropped, size, stride, cropped // 2)


RULES = table(
    _TRANSPOSE_CONV.rule("TRANSPOSE_CONV", 5),
    _CONV_3D_TRANSPOSE.rule("CONV_3D_TRANSPOSE", 1),
    rule(
        "Convolution2DTransposeBias",
        1,
        _why_not_bias,
        _lower_bias,
        arity=2,
        algorithms=_bias_algorithms,
    ),
)
