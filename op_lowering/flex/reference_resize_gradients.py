"""Gradients of resized and of mirrored images (core/kernels/image/, mirror_pad_op.cc)."""

import math
from collections.abc import Callable

import numpy as np

from jaxdelegate.op_lowering.flex.reference_images import resize_bicubic
from jaxdelegate.op_lowering.flex.reference_kernels import constant, kernels
from jaxdelegate.op_lowering.records.flex import FlexOptions
from jaxdelegate.op_lowering.resize.options import (
    ResizeBilinearOptions,
    ResizeNearestNeighborOptions,
)
from jaxdelegate.op_lowering.resize.reference import resize_bilinear, resize_nearest_neighbor
from jaxdelegate.op_lowering.spec import Shape, Specs, TensorSpec
from jaxdelegate.reference.kernel import Array, Kernel, Run

_Shapes = tuple[Shape | None, ...]
_FLOAT32 = (TensorSpec("", (), np.dtype(np.float32)),)
_LEAST = {"REFLECT": 1, "SYMMETRIC": 0}  # what a padding is less than the size


def image_shape(_o: FlexOptions, inputs: Specs) -> _Shapes:
    dy, x = inputs
    if len(dy.shape) != 4 or len(x.shape) != 4 or dy.shape[::3] != x.shape[::3]:
        raise ValueError(f"a gradient {list(dy.shape)} of images {list(x.shape)}")
    return (x.shape,)


def sized_shape(_o: FlexOptions, inputs: Specs) -> _Shapes:
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


def mirror_shape(o: FlexOptions, inputs: Specs) -> _Shapes:
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
        "MirrorPadGrad": (mirror_gradient, mirror_shape),
        "ResizeBicubicGrad": Kernel(_gradient(resize_bicubic), image_shape),
        "ResizeBilinearGrad": Kernel(_gradient(_bilinear), image_shape),
        "ResizeNearestNeighborGrad": Kernel(_gradient(_nearest), sized_shape),
    }
)
