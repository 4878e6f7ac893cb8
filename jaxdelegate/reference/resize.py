"""Image resizing, as kernels/internal/reference/resize_bilinear.h computes it."""

import numpy as np

from jaxdelegate.op_lowering.options import ResizeBilinearOptions
from jaxdelegate.op_lowering.spec import Shape, Specs
from jaxdelegate.reference.kernel import Array


def resized_shape(_options: object, inputs: Specs) -> tuple[Shape | None, ...]:
    """[N, H, W, C] with H and W from the second input, where that is constant."""
    image, size = inputs[:2]
    if size.const is None:
        return (None,)
    return ((image.shape[0], int(size.const[0]), int(size.const[1]), image.shape[3]),)


def resize_bilinear(
    o: ResizeBilinearOptions, _inputs: Specs, _outputs: Specs, x: Array, size: Array
) -> tuple[Array]:
    """Weigh the four nearest pixels of [N, H, W, C] by their distance."""
    n_out_h, n_out_w = (int(n) for n in size)
    top, bottom, v = _neighbours(x.shape[1], n_out_h, o)
    left, right, u = _neighbours(x.shape[2], n_out_w, o)
    v, u = v[:, None, None], u[:, None]
    upper = x[:, top][:, :, left] * (1 - u) + x[:, top][:, :, right] * u
    lower = x[:, bottom][:, :, left] * (1 - u) + x[:, bottom][:, :, right] * u
    return ((upper * (1 - v) + lower * v).astype(x.dtype),)


def _neighbours(n_in: int, n_out: int, o: ResizeBilinearOptions) -> tuple[Array, Array, Array]:
    scale = np.float32(n_in / n_out)
    if o.align_corners and n_out > 1:
        scale = np.float32((n_in - 1) / (n_out - 1))
    i = np.arange(n_out, dtype=np.float32)
    half = np.float32(0.5)
    position = (i + half) * scale - half if o.half_pixel_centers else i * scale
    before = np.clip(np.floor(position), 0, None).astype(int)
    after = np.clip(np.ceil(position), None, n_in - 1).astype(int)
    return before, after, (position - before).astype(np.float32)
