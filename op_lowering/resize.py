"""Image resizing: RESIZE_BILINEAR. Not jax.image.resize, which antialiases and knows half-pixel centers only."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxdelegate.op_lowering.dtypes import FLOATS
from jaxdelegate.op_lowering.options import ResizeBilinearOptions
from jaxdelegate.op_lowering.rule import (
    Function,
    LoweringContext,
    OpRule,
    first_reason,
    why_not_const,
    why_not_dtype,
)
from jaxdelegate.op_lowering.spec import Specs

_Taps = tuple[np.ndarray, np.ndarray, np.ndarray]


def _why_not_bilinear(
    _context: LoweringContext, o: ResizeBilinearOptions, inputs: Specs, _outputs: Specs
) -> str | None:
    image, size = inputs[:2]
    both = o.align_corners and o.half_pixel_centers
    return first_reason(
        why_not_const(size),
        why_not_dtype(image, FLOATS),
        "align_corners and half_pixel_centers exclude each other" if both else None,
    )


def _taps(n_in: int, n_out: int, o: ResizeBilinearOptions) -> _Taps:
    """Lower tap, upper tap, weight of the upper; each [n_out]. As kernels/internal/reference/resize_bilinear.h."""
    aligned = o.align_corners and n_out > 1
    step = (
        np.float32(n_in - 1) / np.float32(n_out - 1)
        if aligned
        else np.float32(n_in) / np.float32(n_out)
    )
    at = np.arange(n_out, dtype=np.float32)
    at = (at + np.float32(0.5)) * step - np.float32(0.5) if o.half_pixel_centers else at * step
    low = np.maximum(np.floor(at), 0).astype(np.int32)
    high = np.minimum(np.ceil(at), n_in - 1).astype(np.int32)
    return low, high, (at - low).astype(np.float32)


def _lower_bilinear(
    _context: LoweringContext, o: ResizeBilinearOptions, inputs: Specs, _outputs: Specs
) -> Function:
    image, size = inputs[:2]
    n_out = [int(n) for n in np.asarray(size.const)]
    taps = [(axis, _taps(image.shape[axis], n_out[axis - 1], o)) for axis in (1, 2)]

    def resize_bilinear(
        x: jax.Array, _size: jax.Array
    ) -> tuple[jax.Array]:  # [N, H, W, C] -> [N, h, w, C]
        for axis, (low, high, weight) in taps:
            t = jnp.asarray(weight, x.dtype).reshape([-1 if i == axis else 1 for i in range(4)])
            x = jnp.take(x, low, axis) * (1 - t) + jnp.take(x, high, axis) * t
        return (x,)

    return resize_bilinear


RESIZE_BILINEAR = OpRule(
    "RESIZE_BILINEAR", ResizeBilinearOptions, 4, _why_not_bilinear, _lower_bilinear, arity=2
)
