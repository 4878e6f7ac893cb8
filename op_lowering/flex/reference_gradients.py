"""Gradients: convolutions and pools over images and volumes, resized and mirrored images.

Sources: core/kernels/*grad*.cc, core/kernels/image/, mirror_pad_op.cc.
"""

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from jaxdelegate.op_lowering.flex.reference_images import resize_bicubic
from jaxdelegate.op_lowering.flex.reference_kernels import constant, kernels
from jaxdelegate.op_lowering.records.enums import Padding
from jaxdelegate.op_lowering.records.flex import FlexOptions
from jaxdelegate.op_lowering.resize.options import (
    ResizeBilinearOptions,
    ResizeNearestNeighborOptions,
)
from jaxdelegate.op_lowering.resize.reference import resize_bilinear, resize_nearest_neighbor
from jaxdelegate.op_lowering.spec import Shape, Specs, TensorSpec
from jaxdelegate.reference.kernel import Array, Function, Kernel, ResultShapes, Run, Shapes
from jaxdelegate.reference.movement import ints
from jaxdelegate.reference.pointwise import widen
from jaxdelegate.reference.window import pad_before, size_out

_FORMATS = {4: "NHWC", 5: "NDHWC"}  # by rank


def _checked(o: FlexOptions, x: Shape, window: Shape, dy: Shape) -> None:
    """A window has the sizes between the first and the last dimension of x."""
    rank, edges = len(x), list(o.explicit_paddings)
    known = o.padding in Padding.__members__ or (o.padding == "EXPLICIT" and len(edges) == 2 * rank)
    if o.data_format != _FORMATS.get(rank) or not known:
        raise ValueError(f"{o.data_format!r} of rank {rank} with the padding {o.padding!r} {edges}")
    lists = o.strides, o.dilations
    if any(len(sizes) != rank or sizes[0] != 1 or sizes[-1] != 1 for sizes in lists):
        raise ValueError(f"strides {list(o.strides)}, dilations {list(o.dilations)}")
    if len(dy) != rank or len(window) != rank - 2 or min(*window, x[-1]) < 1:
        raise ValueError(f"x {list(x)}, window {list(window)}, gradient {list(dy)}")
    wanted = (x[0], *(out for _, out in _dims(o, x, window)))
    if dy[:-1] != wanted:
        raise ValueError(f"a gradient {list(dy)} of a result {list(wanted)}")


def _dims(o: FlexOptions, x: Shape, window: Shape) -> list[tuple[int, int]]:
    """How far the first window starts before the values, and how many windows there are."""
    dims = []
    for i, size in enumerate(window, 1):
        n, stride, rate = x[i], o.strides[i], o.dilations[i]
        if o.padding == "EXPLICIT":
            before, after = o.explicit_paddings[2 * i : 2 * i + 2]
            out = size_out(Padding.VALID, n + before + after, size, stride, rate)
        else:
            out = size_out(Padding[o.padding], n, size, stride, rate)
            before = pad_before(Padding[o.padding], n, size, stride, out, rate)
        dims.append((before, out))
    return dims


_Index = tuple[Any, ...]  # for numpy: all items, a place, channels


def _at(*entries: Any) -> _Index:
    return entries


def _places(o: FlexOptions, x: Shape, window: Shape) -> Iterator[tuple[Shape, Shape, Shape]]:
    """Each place of a result, with each place of x that it reads, and where in the window."""
    dims, rank = _dims(o, x, window), len(window)
    for place in np.ndindex(*(out for _, out in dims), *window):
        out, tap = place[:rank], place[rank:]
        at = tuple(
            i * o.strides[d] - before + t * o.dilations[d]
            for d, (i, t, (before, _)) in enumerate(zip(out, tap, dims, strict=True), 1)
        )
        if all(0 <= i < n for i, n in zip(at, x[1:-1], strict=True)):
            yield out, at, tap


# ---- gradients of convolutions


def _groups(channels: int, w: Shape) -> list[tuple[slice, slice]]:
    """The channels of x and of the result that belong together."""
    n = channels // w[-2]
    if channels % w[-2] or w[-1] % n:
        raise ValueError(f"{channels} input channels for a filter {list(w)}")
    depth, units = w[-2], w[-1] // n
    return [
        (slice(g * depth, (g + 1) * depth), slice(g * units, (g + 1) * units)) for g in range(n)
    ]


def _plain(x: Shape, w: Shape, *, depthwise: bool) -> Shape:
    """The filter's shape as one of a convolution in groups."""
    if len(w) != len(x) or min(w) < 1 or (depthwise and w[-2] != x[-1]):
        raise ValueError(f"x {list(x)}, a filter {list(w)}")
    return (*w[:-2], 1, w[-2] * w[-1]) if depthwise else w


def _checked_filter(o: FlexOptions, x: Shape, w: Shape, dy: Shape, *, depthwise: bool) -> Shape:
    plain = _plain(x, w, depthwise=depthwise)
    _groups(x[-1], plain)
    _checked(o, x, w[:-2], dy)
    return plain


def _terms(o: FlexOptions, x: Shape, w: Shape) -> Iterator[tuple[_Index, _Index, _Index]]:
    """The parts of x, of the filter and of the result whose products are added."""
    for out, at, tap in _places(o, x, w[:-2]):
        for depth, units in _groups(x[-1], w):
            yield (
                _at(slice(None), *at, depth),
                _at(*tap, slice(None), units),
                _at(slice(None), *out, units),
            )


def _input_gradient(*, depthwise: bool = False) -> tuple[Function, Shapes]:
    def shapes(o: FlexOptions, inputs: Specs) -> ResultShapes:
        x = constant(inputs[0])
        if x is not None:
            _checked_filter(o, x, inputs[1].shape, inputs[2].shape, depthwise=depthwise)
        return (x,)

    def run(o: FlexOptions, sizes: Array, w: Array, dy: Array) -> Array:
        shape = tuple(ints(sizes))
        plain = _checked_filter(o, shape, w.shape, dy.shape, depthwise=depthwise)
        w, dy, dx = w.reshape(plain).astype(np.float64), dy.astype(np.float64), np.zeros(shape)
        for at_x, at_w, at_y in _terms(o, shape, plain):
            dx[at_x] += dy[at_y] @ w[at_w].T
        return dx

    return run, shapes


def _filter_gradient(*, depthwise: bool = False) -> tuple[Function, Shapes]:
    def shapes(o: FlexOptions, inputs: Specs) -> ResultShapes:
        w = constant(inputs[1])
        if w is not None:
            _checked_filter(o, inputs[0].shape, w, inputs[2].shape, depthwise=depthwise)
        return (w,)

    def run(o: FlexOptions, x: Array, sizes: Array, dy: Array) -> Array:
        shape = tuple(ints(sizes))
        plain = _checked_filter(o, x.shape, shape, dy.shape, depthwise=depthwise)
        x, dy, dw = x.astype(np.float64), dy.astype(np.float64), np.zeros(plain)
        for at_x, at_w, at_y in _terms(o, x.shape, plain):
            dw[at_w] += x[at_x].T @ dy[at_y]
        return dw.reshape(shape)

    return run, shapes


# ---- gradients of pools


def _pooled(o: FlexOptions, x: Shape, dy: Shape) -> Shape:
    if len(o.ksize) != len(x) or o.ksize[0] != 1 or o.ksize[-1] != 1:
        raise ValueError(f"windows {list(o.ksize)} over {list(x)}")
    _checked(o, x, o.ksize[1:-1], dy)
    if dy[-1] != x[-1]:
        raise ValueError(f"a gradient {list(dy)} of a pool over {list(x)}")
    window: Shape = o.ksize[1:-1]
    return window


def max_pool_shape(o: FlexOptions, inputs: Specs) -> ResultShapes:
    _pooled(o, inputs[0].shape, inputs[2].shape)
    return (inputs[0].shape,)


def _windows(o: FlexOptions, x: Shape, dy: Shape) -> Iterator[tuple[_Index, list[_Index]]]:
    """Each place of a result, with the places of x that its window reads."""
    places = _places(o, x, _pooled(o, x, dy))
    for out, group in itertools.groupby(places, key=lambda place: place[0]):
        yield _at(slice(None), *out), [_at(slice(None), *at) for _, at, _ in group]


def max_pool_gradient(o: FlexOptions, x: Array, _y: Array, dy: Array) -> Array:
    """The first of equal values gets the gradient."""
    dx = np.zeros(x.shape, widen(dy).dtype)
    for out, places in _windows(o, x.shape, dy.shape):
        first = np.argmax(np.stack([x[at] for at in places]), axis=0)  # [N, C]
        for k, at in enumerate(places):
            dx[at] += np.where(first == k, dy[out], 0)
    return dx


def max_pool_3d_gradient(o: FlexOptions, x: Array, y: Array, dy: Array) -> Array:
    """Each value that equals the pool's result gets the gradient."""
    dx = np.zeros(x.shape, widen(dy).dtype)
    for out, places in _windows(o, x.shape, dy.shape):
        for at in places:
            dx[at] += np.where(x[at] == y[out], dy[out], 0)
    return dx


def average_pool_shape(o: FlexOptions, inputs: Specs) -> ResultShapes:
    shape = constant(inputs[0])
    if shape is not None:
        _pooled(o, shape, inputs[1].shape)
    return (shape,)


def average_pool_gradient(o: FlexOptions, sizes: Array, dy: Array) -> Array:
    """Each value of a window gets an equal part of the gradient."""
    shape = tuple(ints(sizes))
    dx = np.zeros(shape, widen(dy).dtype)
    for out, places in _windows(o, shape, dy.shape):
        for at in places:
            dx[at] += dy[out] / len(places)
    return dx


# ---- gradients of resized images

_FLOAT32 = (TensorSpec("", (), np.dtype(np.float32)),)
_LEAST = {"REFLECT": 1, "SYMMETRIC": 0}  # what a padding is less than the size


def image_shape(_o: FlexOptions, inputs: Specs) -> ResultShapes:
    dy, x = inputs
    if len(dy.shape) != 4 or len(x.shape) != 4 or dy.shape[::3] != x.shape[::3]:
        raise ValueError(f"a gradient {list(dy.shape)} of images {list(x.shape)}")
    return (x.shape,)


def sized_shape(_o: FlexOptions, inputs: Specs) -> ResultShapes:
    dy, size = inputs
    if len(dy.shape) != 4 or size.shape != (2,):
        raise ValueError(f"a gradient {list(dy.shape)}, a size {list(size.shape)}")
    sizes = constant(size)
    return (None if sizes is None else (dy.shape[0], *sizes, dy.shape[3]),)


def _gradient(resize: Callable[[FlexOptions, Array, Array], Array]) -> Run:
    """By the matrices that resize rows and columns."""

    def matrix(o: FlexOptions, n_in: int, n_out: int) -> Array:
        """Each pixel of a column as an image of its own, [n_out, n_in]."""
        units = np.eye(n_in, dtype=np.float32)[None, :, None]
        return resize(o, units, np.array([n_out, 1], np.int32))[0, :, 0].astype(np.float64)

    def run(o: FlexOptions, _inputs: Specs, outputs: Specs, dy: Array, _x: Array) -> tuple[Array]:
        shape = outputs[0].shape
        if min(*dy.shape[1:3], *shape[1:3]) < 1:
            raise ValueError(f"a gradient {list(dy.shape)} of images {list(shape)}: no pixels")
        rows, columns = (matrix(o, shape[i], dy.shape[i]) for i in (1, 2))
        dx = np.einsum("hi,nhwc,wj->nijc", rows, dy.astype(np.float64), columns)
        return (dx.astype(outputs[0].dtype),)

    return run


def _bilinear(o: FlexOptions, x: Array, size: Array) -> Array:
    options = ResizeBilinearOptions(o.align_corners, o.half_pixel_centers)
    return resize_bilinear(options, (), _FLOAT32, x, size)[0]


def _nearest(o: FlexOptions, x: Array, size: Array) -> Array:
    options = ResizeNearestNeighborOptions(o.align_corners, o.half_pixel_centers)
    return resize_nearest_neighbor(options, (), _FLOAT32, x, size)[0]


# ---- MirrorPadGrad: the gradient, paddings (before and after, for each dimension)


def mirror_shape(o: FlexOptions, inputs: Specs) -> ResultShapes:
    dy, pads = inputs
    if o.mode not in _LEAST or pads.shape != (len(dy.shape), 2):
        raise ValueError(f"the mode {o.mode!r}, paddings {list(pads.shape)} of {list(dy.shape)}")
    return (None if pads.const is None else _mirrored(o, dy.shape, np.asarray(pads.const)),)


def _mirrored(o: FlexOptions, shape: Shape, pads: Array) -> Shape:
    widths = pads.tolist()
    inner = tuple(n - sum(w) for n, w in zip(shape, widths, strict=True))
    if any(min(w) < 0 or max(w) > n - _LEAST[o.mode] for n, w in zip(inner, widths, strict=True)):
        raise ValueError(f"paddings {widths} of {list(inner)} by {o.mode}")
    return inner


def mirror_gradient(o: FlexOptions, dy: Array, pads: Array) -> Array:
    """Each value gets the gradients of its copies."""
    shape = _mirrored(o, dy.shape, pads)
    places = np.arange(math.prod(shape)).reshape(shape)
    copies = np.pad(places, pads.tolist(), o.mode.lower())
    dx = np.zeros(places.size)
    np.add.at(dx, copies.reshape(-1), dy.reshape(-1).astype(np.float64))
    return dx.reshape(shape)


KERNELS = kernels(
    {
        "AvgPool3DGrad": (average_pool_gradient, average_pool_shape),
        "AvgPoolGrad": (average_pool_gradient, average_pool_shape),
        "Conv2DBackpropFilter": _filter_gradient(),
        "Conv2DBackpropInput": _input_gradient(),
        "Conv3DBackpropFilterV2": _filter_gradient(),
        "DepthwiseConv2dNativeBackpropFilter": _filter_gradient(depthwise=True),
        "DepthwiseConv2dNativeBackpropInput": _input_gradient(depthwise=True),
        "MaxPool3DGrad": (max_pool_3d_gradient, max_pool_shape),
        "MaxPoolGrad": (max_pool_gradient, max_pool_shape),
        "MirrorPadGrad": (mirror_gradient, mirror_shape),
        "ResizeBicubicGrad": Kernel(_gradient(resize_bicubic), image_shape),
        "ResizeBilinearGrad": Kernel(_gradient(_bilinear), image_shape),
        "ResizeNearestNeighborGrad": Kernel(_gradient(_nearest), sized_shape),
    }
)
