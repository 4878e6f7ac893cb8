"""Image resizing, as kernels/internal/reference/resize_{bilinear,nearest_neighbor}.h compute it."""

import math

import numpy as np

from jaxdelegate.op_lowering.reduction.reference import accumulator
from jaxdelegate.op_lowering.resize.options import (
    ResizeBilinearOptions,
    ResizeNearestNeighborOptions,
)
from jaxdelegate.op_lowering.spec import Shape, Specs
from jaxdelegate.reference.kernel import Array, Kernel


def resized_shape(_options: object, inputs: Specs) -> tuple[Shape | None, ...]:
    """[N, H, W, C] with H and W from the second input; None where that is not constant."""
    image, size = inputs[:2]
    if size.const is None:
        return (None,)
    return ((image.shape[0], int(size.const[0]), int(size.const[1]), image.shape[3]),)


@np.errstate(all="ignore")
def resize_bilinear(
    o: ResizeBilinearOptions, _inputs: Specs, outputs: Specs, x: Array, size: Array
) -> tuple[Array]:
    """Quantized images keep their scale: a mean of them is the mean of the stored integers."""
    n_out_h, n_out_w = (int(n) for n in size)
    if (o.align_corners and o.half_pixel_centers) or min(n_out_h, n_out_w) < 1:
        raise ValueError(f"RESIZE_BILINEAR to {size.tolist()} with {o}")
    if x.dtype in (np.int8, np.int16):
        return (_bilinear_fixed_point(o, x, n_out_h, n_out_w).astype(outputs[0].dtype),)
    top, bottom, v = _neighbors(x.shape[1], n_out_h, o)
    left, right, u = _neighbors(x.shape[2], n_out_w, o)
    v, u = v[:, None, None], u[:, None]
    wide = np.dtype(np.float32) if x.dtype == np.uint8 else accumulator(x.dtype)
    upper, lower = x[:, top].astype(wide), x[:, bottom].astype(wide)
    y = upper[:, :, left] * (1 - v) * (1 - u) + lower[:, :, left] * v * (1 - u)
    y = y + upper[:, :, right] * (1 - v) * u + lower[:, :, right] * v * u
    if x.dtype == np.uint8:
        y = np.trunc(y + np.float32(0.5))
    return (y.astype(outputs[0].dtype),)


def _neighbors(n_in: int, n_out: int, o: ResizeBilinearOptions) -> tuple[Array, Array, Array]:
    scale = np.float32(n_in / n_out)
    if o.align_corners and n_out > 1:
        scale = np.float32((n_in - 1) / (n_out - 1))
    i = np.arange(n_out, dtype=np.float32)
    half = np.float32(0.5)
    position = (i + half) * scale - half if o.half_pixel_centers else i * scale
    before = np.clip(np.floor(position), 0, None).astype(int)
    after = np.clip(np.ceil(position), None, n_in - 1).astype(int)
    return before, after, (position - before).astype(np.float32)


def _bilinear_fixed_point(o: ResizeBilinearOptions, x: Array, n_h: int, n_w: int) -> Array:
    """Positions and weights in units of 1/1024; the result rounds half away from zero."""
    top, bottom, v = _fixed_point_neighbors(x.shape[1], n_h, o)
    left, right, u = _fixed_point_neighbors(x.shape[2], n_w, o)
    v, u = v[:, None, None], u[:, None]
    upper, lower = x[:, top].astype(np.int64), x[:, bottom].astype(np.int64)
    y = upper[:, :, left] * (1024 - v) * (1024 - u) + lower[:, :, left] * v * (1024 - u)
    y = y + upper[:, :, right] * (1024 - v) * u + lower[:, :, right] * v * u
    return np.asarray(np.sign(y) * ((np.abs(y) + (1 << 19)) >> 20))


def _fixed_point_neighbors(
    n_in: int, n_out: int, o: ResizeBilinearOptions
) -> tuple[Array, Array, Array]:
    scale = (1024 * n_in + n_out // 2) // n_out
    if o.align_corners and n_out > 1:
        scale = (1024 * (n_in - 1) + (n_out - 1) // 2) // (n_out - 1)
    position = np.arange(n_out, dtype=np.int64) * scale
    if o.half_pixel_centers:
        position = position + scale // 2 - 512
    before = np.maximum(np.trunc(position / 1024).astype(np.int64), 0)
    after = np.minimum(np.trunc((position + 1023) / 1024).astype(np.int64), n_in - 1)
    return before, after, position - 1024 * before


def resize_nearest_neighbor(
    o: ResizeNearestNeighborOptions, _inputs: Specs, _outputs: Specs, x: Array, size: Array
) -> tuple[Array]:
    n_out_h, n_out_w = (int(n) for n in size)
    rows = [_nearest(i, x.shape[1], n_out_h, o) for i in range(n_out_h)]
    columns = [_nearest(j, x.shape[2], n_out_w, o) for j in range(n_out_w)]
    return (x[:, np.asarray(rows, int)][:, :, np.asarray(columns, int)],)


def _nearest(i: int, n_in: int, n_out: int, o: ResizeNearestNeighborOptions) -> int:
    scale = np.float32(n_in) / np.float32(n_out)
    if o.align_corners and n_out > 1:
        scale = np.float32(n_in - 1) / np.float32(n_out - 1)
    position = np.float32(i + 0.5 * o.half_pixel_centers) * scale
    # C's round() takes a half away from zero.
    whole = math.floor(float(position) + 0.5) if o.align_corners else math.floor(position)
    return max(min(whole, n_in - 1), 0)


KERNELS = {
    "RESIZE_BILINEAR": Kernel(resize_bilinear, resized_shape),
    "RESIZE_NEAREST_NEIGHBOR": Kernel(resize_nearest_neighbor, resized_shape),
}
