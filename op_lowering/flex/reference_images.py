"""Images: ResizeBicubic (core/kernels/image/resize_bicubic_op.cc)."""

import numpy as np

from jaxdelegate.op_lowering.flex.options import FlexImageOptions
from jaxdelegate.op_lowering.records.flex import FLEX
from jaxdelegate.op_lowering.spec import Shape, Specs
from jaxdelegate.reference.kernel import Array, Kernel


def bicubic_shape(_o: FlexImageOptions, inputs: Specs) -> tuple[Shape | None, ...]:
    image, size = inputs
    if len(image.shape) != 4:
        raise ValueError(f"ResizeBicubic: an image {list(image.shape)}")
    if size.const is None:
        return (None,)
    height, width = (int(n) for n in np.asarray(size.const))
    return ((image.shape[0], height, width, image.shape[3]),)


def resize_bicubic(
    o: FlexImageOptions, _inputs: Specs, outputs: Specs, x: Array, size: Array
) -> tuple[Array]:
    """The rows by a matrix, then the columns."""
    if o.align_corners and o.half_pixel_centers:
        raise ValueError("ResizeBicubic: align_corners and half_pixel_centers")
    if min(*x.shape[1:3], *size.tolist()) < 1:
        raise ValueError(f"ResizeBicubic of {list(x.shape)} to {size.tolist()}")
    rows, columns = (_matrix(n, int(m), o) for n, m in zip(x.shape[1:3], size, strict=True))
    y = np.einsum("ih,nhwc->niwc", rows, x.astype(np.float64))
    return (np.einsum("jw,niwc->nijc", columns, y).astype(outputs[0].dtype),)


def _matrix(n_in: int, n_out: int, o: FlexImageOptions) -> Array:
    """The weight of each pixel in each result, [n_out, n_in]."""
    scale = np.float32(n_in / n_out)
    if o.align_corners and n_out > 1:
        scale = np.float32((n_in - 1) / (n_out - 1))
    matrix = np.zeros((n_out, n_in))
    for i in range(n_out):
        at = np.float32(i) * scale
        if o.half_pixel_centers:
            at = np.float32(i + 0.5) * scale - np.float32(0.5)
        first = int(np.floor(at))
        part = round(float(at - np.float32(first)) * 1024) / 1024  # a table has 1024 places
        for pixel in range(first - 1, first + 3):
            weight = _weight(abs(pixel - first - part), -0.5 if o.half_pixel_centers else -0.75)
            if 0 <= pixel < n_in or not o.half_pixel_centers:
                matrix[i, min(max(pixel, 0), n_in - 1)] += weight
    if o.half_pixel_centers:
        matrix /= matrix.sum(axis=1, keepdims=True)
    return matrix


def _weight(distance: float, a: float) -> float:
    """Keys's cubic convolution."""
    if distance <= 1:
        return ((a + 2) * distance - (a + 3)) * distance**2 + 1
    return ((distance - 5) * distance + 8) * distance * a - 4 * a


KERNELS = {f"{FLEX}ResizeBicubic": Kernel(resize_bicubic, bicubic_shape)}
