"""Image resizing: RESIZE_BILINEAR, RESIZE_NEAREST_NEIGHBOR.

jax.image.resize does not serve here: it antialiases and has half-pixel centers only.
"""

import jax
import jax.numpy as jnp
import numpy as np

from jaxdelegate.op_lowering.common.movement import why_not_moved
from jaxdelegate.op_lowering.common.pointwise import why_not_stored
from jaxdelegate.op_lowering.common.signature import ANY, MOVED, moving_rule
from jaxdelegate.op_lowering.dtypes import FLOATS
from jaxdelegate.op_lowering.resize.options import (
    ResizeBilinearOptions,
    ResizeNearestNeighborOptions,
)
from jaxdelegate.op_lowering.rule import (
    Function,
    Op,
    first_reason,
    rule,
    table,
    why_not_const,
    why_not_dtype,
)
from jaxdelegate.op_lowering.spec import TensorSpec
from jaxdelegate.quant.jax_affine import rounded

_Taps = tuple[np.ndarray, np.ndarray, np.ndarray]  # lower tap, upper tap, weight of the upper
_FIXED_POINT = frozenset(np.dtype(t) for t in (np.int8, np.int16))
_BYTES = frozenset([np.dtype(np.uint8)])


def _why_not_size(image: TensorSpec, size: TensorSpec, *, at_least: int) -> str | None:
    reason = first_reason(why_not_const(size), why_not_dtype(size, np.int32))
    if reason is not None or size.const is None:
        return reason
    if len(image.shape) != 4 or size.shape != (2,):
        return (
            f"expected an image of rank 4 and 2 sizes, got {list(image.shape)}, {list(size.shape)}"
        )
    if 0 in image.shape[1:3]:
        return f"{image.name!r} of {list(image.shape)} has no pixels"
    sizes = size.const.tolist()
    return f"the size is {sizes}" if min(sizes) < at_least else None


def _why_not_bilinear(op: Op[ResizeBilinearOptions]) -> str | None:
    image, size = op.inputs[:2]
    both = op.options.align_corners and op.options.half_pixel_centers
    return first_reason(
        _why_not_size(image, size, at_least=1),
        # A mean of quantized values is the mean of the integers: no scale is needed.
        why_not_stored(image, FLOATS | _FIXED_POINT | _BYTES),
        why_not_moved(op.context, image, op.outputs[0]),
        "align_corners and half_pixel_centers exclude each other" if both else None,
    )


def _step(n_in: int, n_out: int, *, align_corners: bool) -> np.float32:
    if align_corners and n_out > 1:
        return np.float32(n_in - 1) / np.float32(n_out - 1)
    return np.float32(n_in) / np.float32(n_out)


def _taps(n_in: int, n_out: int, o: ResizeBilinearOptions) -> _Taps:
    """Taps [n_out], as kernels/internal/reference/resize_bilinear.h finds them."""
    step = _step(n_in, n_out, align_corners=o.align_corners)
    at = np.arange(n_out, dtype=np.float32)
    at = (at + np.float32(0.5)) * step - np.float32(0.5) if o.half_pixel_centers else at * step
    low = np.maximum(np.floor(at), 0).astype(np.int32)
    high = np.minimum(np.ceil(at), n_in - 1).astype(np.int32)
    return low, high, (at - low).astype(np.float32)


def _fixed_point_taps(n_in: int, n_out: int, o: ResizeBilinearOptions) -> _Taps:
    """Taps [n_out], the weight in units of 1/1024, as ResizeBilinearInteger finds them."""
    aligned = int(o.align_corners and n_out > 1)
    steps = n_out - aligned
    step = (1024 * (n_in - aligned) + steps // 2) // steps
    at = np.arange(n_out, dtype=np.int64) * step
    if o.half_pixel_centers:
        at += step // 2 - 512
    low = np.maximum(at // 1024, 0)
    high = np.minimum((at + 1023) // 1024, n_in - 1)
    return low.astype(np.int32), high.astype(np.int32), at - 1024 * low


def _lower_bilinear(op: Op[ResizeBilinearOptions]) -> Function:
    dtype = op.inputs[0].dtype
    n_in, n_out = op.inputs[0].shape[1:3], op.outputs[0].shape[1:3]
    find = _fixed_point_taps if dtype in _FIXED_POINT else _taps
    rows, columns = (find(n, m, op.options) for n, m in zip(n_in, n_out, strict=True))
    if dtype in _FIXED_POINT:
        return _resize_fixed_point(rows, columns, dtype)
    if dtype in _BYTES:
        return _resize_bytes(rows, columns)
    return _resize_float(rows, columns, op.context.precision.accumulator(dtype))


def _resize_float(rows: _Taps, columns: _Taps, accumulator: np.dtype) -> Function:
    def resize_bilinear(x: jax.Array, _size: jax.Array) -> tuple[jax.Array]:
        y = x.astype(accumulator)  # [N, H, W, C] -> [N, h, w, C]
        for axis, (low, high, weight) in ((1, rows), (2, columns)):
            t = _along(weight.astype(accumulator), axis)
            y = jnp.take(y, low, axis) * (1 - t) + jnp.take(y, high, axis) * t
        return (y.astype(x.dtype),)

    return resize_bilinear


def _along(weight: np.ndarray, axis: int) -> np.ndarray:
    return weight.reshape([-1 if i == axis else 1 for i in range(4)])


def _corners(x: jax.Array, rows: _Taps, columns: _Taps) -> tuple[jax.Array, ...]:
    """Upper left, lower left, upper right, lower right, each [N, h, w, C]."""
    top, bottom = jnp.take(x, rows[0], 1), jnp.take(x, rows[1], 1)
    left, right = columns[:2]
    return tuple(jnp.take(half, at, 2) for at in (left, right) for half in (top, bottom))


def _resize_bytes(rows: _Taps, columns: _Taps) -> Function:
    """In float32, term by term in the kernel's order, rounded half up."""
    v, u = _along(rows[2], 1), _along(columns[2], 2)

    def weighed(corner: jax.Array, by_row: np.ndarray, by_column: np.ndarray) -> jax.Array:
        return rounded(rounded(corner * by_row) * by_column)

    def resize_bilinear(x: jax.Array, _size: jax.Array) -> tuple[jax.Array]:
        a, b, c, d = _corners(x.astype(np.float32), rows, columns)
        left = weighed(a, 1 - v, 1 - u) + weighed(b, v, 1 - u)
        return ((left + weighed(c, 1 - v, u) + weighed(d, v, u) + 0.5).astype(x.dtype),)

    return resize_bilinear


def _resize_fixed_point(rows: _Taps, columns: _Taps, dtype: np.dtype) -> Function:
    wide = np.dtype(np.int64 if dtype == np.int16 else np.int32)  # 16 + 20 bits, 8 + 20 bits
    v, u = _along(rows[2].astype(wide), 1), _along(columns[2].astype(wide), 2)

    def resize_bilinear(x: jax.Array, _size: jax.Array) -> tuple[jax.Array]:
        a, b, c, d = _corners(x.astype(wide), rows, columns)
        left = a * ((1024 - v) * (1024 - u)) + b * (v * (1024 - u))
        y = left + c * ((1024 - v) * u) + d * (v * u)
        away = (y < 0).astype(wide)  # rounds halves of negative numbers away from zero
        return (((y + (1 << 19) - away) >> 20).astype(x.dtype),)

    return resize_bilinear


RESIZE_BILINEAR = rule("RESIZE_BILINEAR", 4, _why_not_bilinear, _lower_bilinear, arity=2)


def _why_not_nearest(op: Op[ResizeNearestNeighborOptions]) -> str | None:
    return _why_not_size(*op.inputs[:2], at_least=0)


def _nearest(n_in: int, n_out: int, o: ResizeNearestNeighborOptions) -> np.ndarray:
    """The input pixel of each output pixel, [n_out] (resize_nearest_neighbor.h)."""
    if n_out == 0:
        return np.zeros(0, np.int32)
    step = _step(n_in, n_out, align_corners=o.align_corners)
    offset = np.float32(0.5 if o.half_pixel_centers else 0.0)
    at = (np.arange(n_out, dtype=np.float32) + offset) * step
    nearest = np.floor(at)
    if o.align_corners:
        nearest += at - nearest >= 0.5  # std::round; positions are not negative
    return np.asarray(np.minimum(nearest, n_in - 1), np.int32)


def _lower_nearest(op: Op[ResizeNearestNeighborOptions]) -> Function:
    sizes = zip(op.inputs[0].shape[1:3], op.outputs[0].shape[1:3], strict=True)
    rows, columns = (_nearest(n_in, n_out, op.options) for n_in, n_out in sizes)

    def resize_nearest_neighbor(x: jax.Array, _size: jax.Array) -> tuple[jax.Array]:
        return (jnp.take(jnp.take(x, rows, 1), columns, 2),)  # [N, H, W, C] -> [N, h, w, C]

    return resize_nearest_neighbor


RESIZE_NEAREST_NEIGHBOR = moving_rule(
    "RESIZE_NEAREST_NEIGHBOR", 4, [MOVED, ANY], _lower_nearest, _why_not_nearest
)

RULES = table(RESIZE_BILINEAR, RESIZE_NEAREST_NEIGHBOR)
