"""Transposed convolutions: each input pixel adds its filter to the output.

kernels/internal/reference/transpose_conv.h and conv3d_transpose.h, and MediaPipe's
mediapipe/util/tflite/operations/transpose_conv_bias.cc.
"""

import itertools
from collections.abc import Sequence

import numpy as np

from jaxdelegate.op_lowering.convolution import reference
from jaxdelegate.op_lowering.convolution.options import (
    Conv3DOptions,
    Convolution2DTransposeBiasOptions,
    TransposeConvOptions,
)
from jaxdelegate.op_lowering.records.enums import ActivationFunctionType, Padding
from jaxdelegate.op_lowering.spec import Shape, Specs
from jaxdelegate.reference.kernel import Array, Kernel
from jaxdelegate.reference.window import image_shape, pad_before, require_floats, size_out, sums_of


def _add_products(y: Array, x: Array, w: Array) -> None:
    y += x @ w.T


def requested_shape(_options: object, inputs: Specs) -> tuple[Shape | None, ...]:
    """The first input."""
    if inputs[0].const is None:
        return (None,)
    shape = tuple(int(n) for n in np.asarray(inputs[0].const).ravel())
    if min(shape, default=-1) < 0:
        raise ValueError(f"{inputs[0].name!r} asks for an output of shape {list(shape)}")
    return (shape,)


def transpose_conv(
    o: TransposeConvOptions,
    inputs: Specs,
    outputs: Specs,
    shape: Array,
    w: Array,
    x: Array,
    b: Array | None = None,
) -> tuple[Array]:
    """[N, H, W, C] with a filter [O, h, w, C] and the shape of the output, [N, H', W', O]."""

    def sums(x: Array, w: Array, add: reference.Add = _add_products) -> Array:
        strides = (o.stride_h, o.stride_w)
        w = w.transpose(1, 2, 0, 3)
        return _sums("TRANSPOSE_CONV", o, shape, x, w, strides=strides, dilations=(1, 1), add=add)

    specs = (inputs[2], inputs[1], *inputs[3:])
    run = reference.Run("TRANSPOSE_CONV", o, specs, outputs, x=x, w=w, b=b)
    if inputs[2].is_quantized:
        return reference.quantized_convolution(run, sums)
    if inputs[1].is_quantized:
        return reference.dynamic_range_transposed(run, sums)
    require_floats("TRANSPOSE_CONV", *specs, *outputs)
    return reference.finish(sums(sums_of(x), sums_of(w)), b, o.fused_activation_function, outputs)


def conv_3d_transpose(
    o: Conv3DOptions,
    inputs: Specs,
    outputs: Specs,
    shape: Array,
    w: Array,
    x: Array,
    b: Array | None = None,
) -> tuple[Array]:
    """[N, D, H, W, C] with a filter [d, h, w, O, C] and the output's shape, [N, D', H', W', O]."""
    require_floats("CONV_3D_TRANSPOSE", *inputs[1:], *outputs)
    strides = (o.stride_d, o.stride_h, o.stride_w)
    dilations = (o.dilation_d_factor, o.dilation_h_factor, o.dilation_w_factor)
    x, w = sums_of(x), sums_of(w)
    y = _sums("CONV_3D_TRANSPOSE", o, shape, x, w, strides=strides, dilations=dilations)
    return reference.finish(y, b, o.fused_activation_function, outputs)


def _sums(
    name: str,
    o: TransposeConvOptions | Conv3DOptions,
    shape: Array,
    x: Array,
    w: Array,
    strides: Sequence[int],
    dilations: Sequence[int],
    add: reference.Add = _add_products,
) -> Array:
    """Sums of products over an output of the requested shape; `w` is [*size, O, C]."""
    out = tuple(int(n) for n in image_shape(f"{name} output", tuple(shape), x.ndim))
    # The padding is that of the convolution from the output to the input.
    image = [
        size_out(o.padding, n, k, s, d)
        for n, k, s, d in zip(out[1:-1], w.shape, strides, dilations, strict=False)
    ]
    if (out[0], *image, out[-1]) != (*x.shape[:-1], w.shape[-2]):
        raise ValueError(f"{name}: output {list(out)} does not come from input {list(x.shape)}")
    before = [
        pad_before(o.padding, n, k, s, n_in, d)
        for n, k, s, n_in, d in zip(out[1:-1], w.shape, strides, image, dilations, strict=False)
    ]
    return _scatter(x, w, out, before, strides=strides, dilations=dilations, add=add)


def grown_shape(o: Convolution2DTransposeBiasOptions, inputs: Specs) -> tuple[Shape | None, ...]:
    """[N, H, W, C] with a filter [O, h, w, C] -> [N, H', W', O], grown by the strides."""
    x = image_shape("Convolution2DTransposeBias input", inputs[0].shape, 4)
    w = image_shape("Convolution2DTransposeBias filter", inputs[1].shape, 4)
    if min(o.stride_h, o.stride_w) <= 0 or min(*x[1:], *w) <= 0 or x[3] != w[3]:
        raise ValueError(
            f"Convolution2DTransposeBias: filter {list(w)} on {list(x)} "
            f"by strides {o.stride_h}, {o.stride_w}"
        )
    (height, _), (width, _) = _grown(o, x, w)
    return ((x[0], height, width, w[0]),)


def convolution_2d_transpose_bias(
    o: Convolution2DTransposeBiasOptions,
    inputs: Specs,
    outputs: Specs,
    x: Array,
    w: Array,
    b: Array | None = None,
) -> tuple[Array]:
    """MediaPipe's transposed convolution, whose padding comes from the input."""
    require_floats("Convolution2DTransposeBias", *inputs, *outputs)
    (height, top), (width, left) = _grown(o, x.shape, w.shape)
    out = (x.shape[0], height, width, w.shape[0])
    x, w = sums_of(x), sums_of(w).transpose(1, 2, 0, 3)
    y = _scatter(x, w, out, (top, left), (o.stride_h, o.stride_w), (1, 1))
    return reference.finish(y, b, ActivationFunctionType.NONE, outputs)


def _grown(o: Convolution2DTransposeBiasOptions, x: Shape, w: Shape) -> list[tuple[int, int]]:
    """Height and width: the output's size, and how much of its start SAME crops."""
    result = []
    for n, k, stride in zip(x[1:3], w[1:3], (o.stride_h, o.stride_w), strict=True):
        cropped = max(0, k - (n - 1) % stride - 1) if o.padding is Padding.SAME else 0
        result.append((stride * (n - 1) + k - cropped, cropped // 2))
    return result


def _scatter(
    x: Array,
    w: Array,
    out: Shape,
    before: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    add: reference.Add = _add_products,
) -> Array:
    """Add each pixel times the filter [*size, O, C] to the output, where it is inside.

    The last tap comes first, so that pixels reach each output in their order.
    """
    dims = list(
        zip(out[1:-1], before, w.shape[:-2], x.shape[1:-1], strides, dilations, strict=True)
    )
    y = np.zeros(out, x.dtype)
    for place in itertools.product(*(range(k - 1, -1, -1) for k in w.shape[:-2])):
        reached, read = [], []
        for i, (n_out, b, _, n, s, d) in zip(place, dims, strict=True):
            start = i * d - b  # where the first pixel goes
            first = max(-(start // s), 0)
            last = min((n_out - 1 - start) // s, n - 1)
            reached.append(slice(start + first * s, max(start + last * s + 1, 0), s))
            read.append(slice(first, max(last + 1, first)))
        add(y[(slice(None), *reached)], x[(slice(None), *read)], w[place])
    return y


KERNELS = {
    "TRANSPOSE_CONV": Kernel(transpose_conv, requested_shape),
    "CONV_3D_TRANSPOSE": Kernel(conv_3d_transpose, requested_shape),
    "Convolution2DTransposeBias": Kernel(convolution_2d_transpose_bias, grown_shape),
}
