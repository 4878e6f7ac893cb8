"""Images: ResizeBicubic (core/kernels/image/resize_bicubic_op.cc)."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxdelegate.op_lowering.common.movement import integers
from jaxdelegate.op_lowering.dtypes import FLOATS
from jaxdelegate.op_lowering.flex.options import FlexImageOptions
from jaxdelegate.op_lowering.records.flex import FLEX
from jaxdelegate.op_lowering.rule import (
    Function,
    Op,
    OpRule,
    first_reason,
    table,
    why_not_const,
    why_not_dtype,
    why_not_result,
)

_PIXELS = FLOATS | frozenset(np.dtype(t) for t in (np.uint8, np.int8, np.int16, np.int32))
_STEPS = 1024  # a pixel has as many places


def _why_not_bicubic(op: Op[FlexImageOptions]) -> str | None:
    image, size = op.inputs[:2]
    both = op.options.align_corners and op.options.half_pixel_centers
    reason = first_reason(
        why_not_dtype(image, _PIXELS),
        why_not_result(op.outputs[0], np.float32),
        why_not_const(size) or why_not_dtype(size, np.int32),
        None if len(image.shape) == 4 and size.shape == (2,) else "expected an image of rank 4",
        "align_corners and half_pixel_centers exclude each other" if both else None,
    )
    if reason is not None:
        return reason
    has_pixels = min(*image.shape[1:3], *integers(size)) > 0
    return None if has_pixels else f"{image.name!r} {list(image.shape)} or its result has no pixels"


def _curve(a: float) -> tuple[np.ndarray, np.ndarray]:
    """Weights of the pixels at a distance below 1, and from 1 to 2; Keys's cubic convolution."""
    near = np.arange(_STEPS + 1) / _STEPS
    far = near + 1
    return (
        ((a + 2) * near - (a + 3)) * near * near + 1,
        ((a * far - 5 * a) * far + 8 * a) * far - 4 * a,
    )


def _taps(n_in: int, n_out: int, o: FlexImageOptions) -> tuple[np.ndarray, np.ndarray]:
    """Pixels and weights, both [n_out, 4]. Only half-pixel centers leave out those outside."""
    aligned = int(o.align_corners and n_out > 1)
    scale = np.float32(n_in - aligned) / np.float32(n_out - aligned)
    at = np.arange(n_out, dtype=np.float32)
    half = np.float32(0.5)
    at = (at + half) * scale - half if o.half_pixel_centers else at * scale
    first = np.floor(at)
    place = np.rint((at - first) * _STEPS).astype(int)
    near, far = _curve(-0.5 if o.half_pixel_centers else -0.75)
    weights = np.stack([far[place], near[place], near[_STEPS - place], far[_STEPS - place]], 1)
    wanted = first.astype(int)[:, None] + np.arange(-1, 3)
    pixels = np.clip(wanted, 0, n_in - 1)
    if o.half_pixel_centers:
        weights = np.where(wanted == pixels, weights, 0)
        total = weights.sum(1, keepdims=True)
        weights = np.where(np.abs(total) > 1e-30, weights / total, weights)
    return pixels, weights.astype(np.float32)


def _lower_bicubic(op: Op[FlexImageOptions]) -> Function:
    sizes = zip(op.inputs[0].shape[1:3], op.outputs[0].shape[1:3], strict=True)
    axes = [(axis, *_taps(*size, op.options)) for axis, size in enumerate(sizes, 1)]

    def resize_bicubic(x: jax.Array, _size: jax.Array) -> tuple[jax.Array]:
        y = x.astype(np.float32)  # [N, H, W, C] -> [N, h, w, C]
        for axis, pixels, weights in axes:
            shape = [-1 if i == axis else 1 for i in range(4)]
            terms = (
                jnp.take(y, pixels[:, k], axis) * weights[:, k].reshape(shape) for k in range(4)
            )
            y = sum(terms, start=jnp.zeros((), np.float32))
        return (y,)

    return resize_bicubic


RULES = table(
    OpRule(f"{FLEX}ResizeBicubic", FlexImageOptions, 1, _why_not_bicubic, _lower_bicubic, arity=2)
)
