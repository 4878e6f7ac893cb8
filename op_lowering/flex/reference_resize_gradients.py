"""Gradients of resized and of mirrored images (core/kernels/image/, mirror_pad_op.cc)."""

import math
from collections.abc import Callable

import numpy as np

from jaxdelegate.op_lowering.flex.options import FlexImageOptions, FlexPaddingOptions
from jaxdelegate.op_lowering.flex.reference_images import resize_bicubic
from jaxdelegate.op_lowering.flex.reference_named import named
from jaxdelegate.op_lowering.records.flex import FLEX
from jaxdelegate.op_lowering.records.record import Options
from jaxdelegate.op_lowering.resize.options import (
    ResizeBilinearOptions,
    ResizeNearestNeighborOptions,
)
from jaxdelegate.op_lowering.resize.reference import resize_bilinear, resize_nearest_neighbor
from jaxdelegate.op_lowering.spec import Shape, Specs
from jaxdelegate.reference.kernel import Array, Kernel, Run
from jaxdelegate.reference.movement import ints

_Shapes = tuple[Shape | None, ...]
_Translated = Callable[[FlexImageOptions], Options]


def image_shape(_o: FlexImageOptions, inputs: Specs) -> _Shapes:
    dy, x = inputs
    if len(dy.shape) != 4 or len(x.shape) != 4 or dy.shape[::3] != x.shape[::3]:
        raise ValueError(f"a gradient {list(dy.shape)} of images {list(x.shape)}")
    return (x.shape,)


def sized_shape(_o: FlexImageOptions, inputs: Specs) -> _Shapes:
    dy, size = inputs
    if len(dy.shape) != 4 or size.shape != (2,):
        raise ValueError(f"a gradient {list(dy.shape)}, a size {list(size.shape)}")
    if size.const is None:
        return (None,)
    height, width = ints(np.asarray(size.const))
    return ((dy.shape[0], height, width, dy.shape[3]),)


def _gradient(resize: Callable[..., tuple[Array]], translated: _Translated) -> Run:
    """By the matrices that resize rows and columns."""

    def matrix(o: FlexImageOptions, outputs: Specs, n_in: int, n_out: int) -> Array:
        """Each pixel of a column as an image of its own, [n_out, n_in]."""
        units = np.eye(n_in, dtype=np.float32)[None, :, None]
        (y,) = resize(translated(o), (), outputs, units, np.array([n_out, 1], np.int32))
        return y[0, :, 0].astype(np.float64)

    def run(
        o: FlexImageOptions, _inputs: Specs, outputs: Specs, dy: Array, _x: Array
    ) -> tuple[Array]:
        shape = outputs[0].shape
        if min(*dy.shape[1:3], *shape[1:3]) < 1:
            raise ValueError(f"a gradient {list(dy.shape)} of images {list(shape)}: no pixels")
        rows, columns = (matrix(o, outputs, shape[i], dy.shape[i]) for i in (1, 2))
        dx = np.einsum("hi,nhwc,wj->nijc", rows, dy.astype(np.float64), columns)
        return (dx.astype(outputs[0].dtype),)

    return run


_BICUBIC = _gradient(resize_bicubic, lambda o: o)
_BILINEAR = _gradient(
    resize_bilinear, lambda o: ResizeBilinearOptions(o.align_corners, o.half_pixel_centers)
)
_NEAREST = _gradient(
    resize_nearest_neighbor,
    lambda o: ResizeNearestNeighborOptions(o.align_corners, o.half_pixel_centers),
)


# ---- MirrorPadGrad: the gradient, paddings (before and after, for each dimension)


def mirror_shape(o: FlexPaddingOptions, inputs: Specs) -> _Shapes:
    dy, pads = inputs
    least = {"REFLECT": 1, "SYMMETRIC": 0}.get(o.mode)
    if least is None or pads.shape != (len(dy.shape), 2):
        raise ValueError(f"the mode {o.mode!r}, paddings {list(pads.shape)} of {list(dy.shape)}")
    if pads.const is None:
        return (None,)
    widths = np.asarray(pads.const).tolist()
    shape = tuple(n - sum(w) for n, w in zip(dy.shape, widths, strict=True))
    if any(min(w) < 0 or max(w) > n - least for n, w in zip(shape, widths, strict=True)):
        raise ValueError(f"paddings {widths} of {list(shape)} by {o.mode}")
    return (shape,)


def mirror_gradient(
    o: FlexPaddingOptions, _inputs: Specs, outputs: Specs, dy: Array, pads: Array
) -> tuple[Array]:
    """Each value gets the gradients of its copies."""
    shape = outputs[0].shape
    places = np.arange(math.prod(shape)).reshape(shape)
    copies = np.pad(places, pads.tolist(), o.mode.lower())  # type: ignore[call-overload]
    dx = np.zeros(places.size)
    np.add.at(dx, copies.reshape(-1), dy.reshape(-1).astype(np.float64))
    return (dx.reshape(shape).astype(outputs[0].dtype),)


KERNELS = named(
    {
        f"{FLEX}MirrorPadGrad": Kernel(mirror_gradient, mirror_shape),
        f"{FLEX}ResizeBicubicGrad": Kernel(_BICUBIC, image_shape),
        f"{FLEX}ResizeBilinearGrad": Kernel(_BILINEAR, image_shape),
        f"{FLEX}ResizeNearestNeighborGrad": Kernel(_NEAREST, sized_shape),
    }
)
