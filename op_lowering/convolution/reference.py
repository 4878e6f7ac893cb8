"""Convolutions: kernels/internal/reference/conv.h, depthwiseconv_float.h and conv3d.h."""

import dataclasses
import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np

from jaxdelegate.op_lowering.convolution.options import (
    Conv2DOptions,
    Conv3DOptions,
    DepthwiseConv2DOptions,
)
from jaxdelegate.op_lowering.records.enums import ActivationFunctionType, TensorType
from jaxdelegate.op_lowering.records.record import Activated
from jaxdelegate.op_lowering.spec import Shape, Specs, TensorSpec
from jaxdelegate.quant.params import channel_scales, tensor_zero_point
from jaxdelegate.quant.requantize import convolution_multipliers, product_multiplier
from jaxdelegate.reference import window
from jaxdelegate.reference.kernel import Array, Kernel
from jaxdelegate.reference.products import accumulated, centered, quantize_rows, requantized, signed
from jaxdelegate.reference.quantization import quantization_of, require_symmetric

# Adds, in place, the products of pixels [N, *in, I] and one tap of the filter, [O, I], to
# [N, *in, O].
Add = Callable[[Array, Array, Array], None]
Scatter = Callable[[Array, Array, Add], Array]  # image, filter, for each tap -> [N, *out, O]

Sums = Callable[[Array, Array], Array]  # image and filter, padded with zeros -> [N, *out, O]


@dataclasses.dataclass(frozen=True, eq=False)
class Run:
    """What a kernel gets: specs and arrays of image, filter and bias, as the file stores them."""

    name: str
    o: Activated
    inputs: Specs
    outputs: Specs
    x: Array
    w: Array
    b: Array | None


def quantized_convolution(run: Run, sums: Sums) -> tuple[Array]:
    """`sums` of the integers less their zero points."""
    name, (source_spec, filter_spec, *_), (y, *_) = run.name, run.inputs, run.outputs
    is_uint8 = run.x.dtype == np.uint8
    dtypes = (np.uint8,) if is_uint8 else (np.int8, ml_dtypes.int4)
    source = quantization_of(name, source_spec, np.int8, np.uint8, np.int16)
    filters = quantization_of(name, filter_spec, *dtypes)
    target = quantization_of(name, y, run.x.dtype)
    require_symmetric(name, source_spec, y)
    # Signed filters are symmetric: their kernels read no zero point.
    zero = tensor_zero_point(filters) if is_uint8 else 0
    total = sums(centered(run.x, tensor_zero_point(source)), centered(run.w, zero))
    multiplier, shift = (
        product_multiplier(source, filters, target)
        if is_uint8
        else convolution_multipliers(source, filters, target, y.shape[-1])
    )
    bias_type = getattr(run.o, "quantized_bias_type", TensorType.FLOAT32)
    accumulator = accumulated(total.reshape(y.shape), source_spec, bias_type, run.b)
    activation = run.o.fused_activation_function
    return (requantized(accumulator, multiplier, shift, target, activation, y.dtype),)


# ---- dynamic range: float32 images, quantized on the fly, by integer filters
#
# HybridConvPerChannel of kernels/internal/reference/conv.h, EvalHybrid of kernels/conv.cc,
# DepthwiseConvHybridPerChannel of integer_ops/depthwise_conv.h, HybridTransposeConv of
# transpose_conv.h, which adds up floats.


def dynamic_range_convolution(
    run: Run,
    sums: Sums,
    *,
    filters: tuple[Any, ...] = (np.int8,),
    symmetric: bool = False,
    in_turn: bool = False,
) -> tuple[Array]:
    """Each image, float32 [N, *spatial, C], has its own scale, and zero point if not `symmetric`.

    `filters` are the dtypes that the kernel supports. `in_turn`: sums are scaled by the filter,
    then by the image, not by the scales' product.
    """
    integers, scale, each = _quantized(run, filters=filters, symmetric=symmetric)
    total = sums(integers, signed(run.w).astype(np.float64)).reshape(run.outputs[0].shape)
    y = total.astype(np.float32)
    return _finished(run, y * each * scale if in_turn else y * (scale * each))


def dynamic_range_transposed(run: Run, scatter: Scatter) -> tuple[Array]:
    """Products are scaled one by one and added up in float32, by pixel and channel."""
    integers, scale, each = _quantized(run, filters=(np.int8,))

    def add(y: Array, x: Array, w: Array) -> None:
        for pixels, weights in zip(np.moveaxis(x, -1, 0), w.T, strict=True):
            y += pixels[..., np.newaxis] * weights * each * scale

    return _finished(run, scatter(integers.astype(np.float32), run.w.astype(np.float32), add))


def _quantized(
    run: Run, *, filters: tuple[Any, ...], symmetric: bool = False
) -> tuple[Array, Array, Array]:
    """The images as integers without zero point; their scales [N, 1, ..., 1]; the filters' [O]."""
    (x_spec, w_spec, *bias), x = run.inputs, run.x
    window.require_floats(run.name, x_spec, *bias, *run.outputs)
    each = channel_scales(quantization_of(run.name, w_spec, *filters), run.outputs[0].shape[-1])
    rows = x.reshape(len(x), math.prod(x.shape[1:]))
    q, scale, zero = quantize_rows(rows, asymmetric=not symmetric)
    integers = (q.astype(np.float64) - zero[:, None]).reshape(x.shape)
    return integers, scale.reshape(-1, *(1,) * (x.ndim - 1)), each


def _finished(run: Run, y: Array) -> tuple[Array]:
    if run.b is not None:
        y = y + run.b.reshape(-1)
    return (window.clamp(run.o.fused_activation_function, y).astype(run.outputs[0].dtype),)


# ---- the operators


_Conv = Conv2DOptions | DepthwiseConv2DOptions | Conv3DOptions
_INT16_MAX = 2**15 - 1
_FEW_CHANNELS = 4  # an image's


def conv_2d_shape(o: Conv2DOptions, inputs: Specs) -> tuple[Shape | None, ...]:
    """[N, H, W, C] with a filter [O, h, w, C / groups] -> [N, H', W', O]."""
    x, w = _shapes("CONV_2D", inputs, 4)
    if x[3] % w[3] or w[0] % (x[3] // w[3]):
        raise ValueError(
            f"CONV_2D: {x[3]} input and {w[0]} output channels do not split into groups of {w[3]}"
        )
    _require_bias("CONV_2D", inputs, w[0])
    return ((x[0], *_places(o, x[1:3], w[1:3]), w[0]),)


def depthwise_conv_2d_shape(o: DepthwiseConv2DOptions, inputs: Specs) -> tuple[Shape | None, ...]:
    """[N, H, W, C] with a filter [1, h, w, C * multiplier] -> [N, H', W', C * multiplier]."""
    x, w = _shapes("DEPTHWISE_CONV_2D", inputs, 4)
    if w[0] != 1 or w[3] % x[3]:
        raise ValueError(f"DEPTHWISE_CONV_2D: filter {list(w)} over {x[3]} channels")
    _require_bias("DEPTHWISE_CONV_2D", inputs, w[3])
    most = max(o.stride_h, o.stride_w, o.dilation_h_factor, o.dilation_w_factor)
    if most > _INT16_MAX:  # LiteRT's limit (kernels/depthwise_conv.cc, Prepare)
        raise ValueError(
            f"DEPTHWISE_CONV_2D: a stride or dilation of {most}, {_INT16_MAX} is the most"
        )
    return ((x[0], *_places(o, x[1:3], w[1:3]), w[3]),)


def conv_3d_shape(o: Conv3DOptions, inputs: Specs) -> tuple[Shape | None, ...]:
    """[N, D, H, W, C] with a filter [d, h, w, C, O] -> [N, D', H', W', O]."""
    x, w = _shapes("CONV_3D", inputs, 5)
    if x[4] != w[3]:
        raise ValueError(f"CONV_3D: {x[4]} input channels for a filter over {w[3]}")
    _require_bias("CONV_3D", inputs, w[4])
    return ((x[0], *_places(o, x[1:4], w[:3]), w[4]),)


def conv_2d(
    o: Conv2DOptions, inputs: Specs, outputs: Specs, x: Array, w: Array, b: Array | None = None
) -> tuple[Array]:
    """Sums of each group of input channels with its filters; `w` is [O, h, w, C / groups]."""
    run, sums = Run("CONV_2D", o, inputs, outputs, x=x, w=w, b=b), partial(_conv_2d_sums, o)
    if inputs[0].is_quantized:
        return quantized_convolution(run, sums)
    if inputs[1].is_quantized:
        symmetric, dtypes = _is_symmetric(inputs), (np.int8, np.uint8, ml_dtypes.int4)
        return dynamic_range_convolution(
            run, sums, filters=dtypes, symmetric=symmetric, in_turn=not symmetric
        )
    return _floats(run, sums)


def _conv_2d_sums(o: Conv2DOptions, x: Array, w: Array) -> Array:
    groups, depth = x.shape[3] // w.shape[3], w.shape[3]
    w = w.reshape(groups, -1, *w.shape[1:])  # [groups, O / groups, h, w, I]
    y: Any = 0
    for (i, j), read in _taps(o, x, w.shape[2:4]):
        pixels = read.reshape(-1, groups, depth).swapaxes(0, 1)  # [groups, N * H' * W', I]
        for term in _terms(pixels, w[:, :, i, j].swapaxes(1, 2)):
            y = y + term
    return np.asarray(y.swapaxes(0, 1))


def _terms(pixels: Array, w: Array) -> Iterator[Array]:
    """What one tap adds: the channels one by one, as the kernel does, if they are few.

    Dynamic range kernels after it would turn the last bit of a sum into a whole quantization step.
    """
    depth = pixels.shape[-1]
    if depth > _FEW_CHANNELS:
        yield pixels @ w
        return
    for i in range(depth):
        yield pixels[..., i : i + 1] * w[:, i : i + 1]


def _is_symmetric(inputs: Specs) -> bool:
    """Whether the dynamic range kernel of one scale runs: no groups, and all scales are equal."""
    x, w = inputs[:2]
    scales = w.quantization.scale if w.quantization is not None else np.ones(1)
    return x.shape[3] == w.shape[3] and bool((scales == scales[0]).all())


def depthwise_conv_2d(
    o: DepthwiseConv2DOptions,
    inputs: Specs,
    outputs: Specs,
    x: Array,
    w: Array,
    b: Array | None = None,
) -> tuple[Array]:
    """Output channel c * multiplier + m reads input channel c; `w` is [1, h, w, C * multiplier]."""
    run, sums = (
        Run("DEPTHWISE_CONV_2D", o, inputs, outputs, x=x, w=w, b=b),
        partial(_depthwise_sums, o),
    )
    if inputs[0].is_quantized:
        return quantized_convolution(run, sums)
    if inputs[1].is_quantized:
        return dynamic_range_convolution(run, sums)
    return _floats(run, sums)


def _depthwise_sums(o: DepthwiseConv2DOptions, x: Array, w: Array) -> Array:
    multiplier = w.shape[3] // x.shape[3]
    y: Any = 0
    for (i, j), read in _taps(o, x, w.shape[1:3]):
        y = y + (np.repeat(read, multiplier, -1) if multiplier > 1 else read) * w[0, i, j]
    return np.asarray(y)


def conv_3d(
    o: Conv3DOptions, inputs: Specs, outputs: Specs, x: Array, w: Array, b: Array | None = None
) -> tuple[Array]:
    """Sums over depth, height and width; `w` is [d, h, w, C, O]."""
    return _floats(Run("CONV_3D", o, inputs, outputs, x=x, w=w, b=b), partial(_conv_3d_sums, o))


def _conv_3d_sums(o: Conv3DOptions, x: Array, w: Array) -> Array:
    y: Any = 0
    for place, read in _taps(o, x, w.shape[:3]):
        y = y + read.reshape(-1, x.shape[4]) @ w[place]
    return np.asarray(y)


def _floats(run: Run, sums: Sums) -> tuple[Array]:
    window.require_floats(run.name, *run.inputs, *run.outputs)
    # On some processors numpy's matrix products multiply infinity by the zeros that pad a vector,
    # and warn of results that are not used.
    with np.errstate(invalid="ignore"):
        y = sums(window.sums_of(run.x), window.sums_of(run.w)).reshape(run.outputs[0].shape)
        return finish(y, run.b, run.o.fused_activation_function, run.outputs)


def _steps(o: _Conv) -> tuple[Shape, Shape]:
    strides, dilations = (o.stride_h, o.stride_w), (o.dilation_h_factor, o.dilation_w_factor)
    if isinstance(o, Conv3DOptions):
        return (o.stride_d, *strides), (o.dilation_d_factor, *dilations)
    return strides, dilations


def _places(o: _Conv, image: Shape, sizes: Shape) -> Shape:
    return tuple(
        window.size_out(o.padding, n, size, stride, dilation)
        for n, size, stride, dilation in zip(image, sizes, *_steps(o), strict=True)
    )


def _taps(o: _Conv, x: Array, sizes: Shape) -> Any:
    (strides, dilations), out = _steps(o), _places(o, x.shape[1:-1], sizes)
    before = [
        window.pad_before(o.padding, n, size, stride, n_out, dilation)
        for n, size, stride, n_out, dilation in zip(
            x.shape[1:-1], sizes, strides, out, dilations, strict=True
        )
    ]
    return window.windows(x, out, before, sizes, strides, dilations)


def finish(
    y: Array, b: Array | None, activation: ActivationFunctionType, outputs: Specs
) -> tuple[Array]:
    if b is not None:
        y = y + window.sums_of(b).reshape(-1)
    return (window.clamp(activation, y).astype(outputs[0].dtype),)


def _shapes(name: str, inputs: Specs, rank: int) -> tuple[Shape, Shape]:
    x = window.image_shape(f"{name} input", inputs[0].shape, rank)
    w = window.image_shape(f"{name} filter", inputs[1].shape, rank)
    if min(*x[1:], *w) <= 0:
        raise ValueError(f"{name}: input {list(x)} or filter {list(w)} has an empty dimension")
    return x, w


def _require_bias(name: str, inputs: Specs, channels: int) -> None:
    bias: TensorSpec | None = inputs[2] if len(inputs) > 2 else None
    if bias is not None and np.prod(bias.shape) != channels:
        raise ValueError(f"{name}: a bias {list(bias.shape)} for {channels} output channels")


KERNELS = {
    "CONV_2D": Kernel(conv_2d, conv_2d_shape),
    "DEPTHWISE_CONV_2D": Kernel(depthwise_conv_2d, depthwise_conv_2d_shape),
    "CONV_3D": Kernel(conv_3d, conv_3d_shape),
}
