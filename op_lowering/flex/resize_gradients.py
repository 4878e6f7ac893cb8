"""Gradients of resized and of mirrored images (core/kernels/image/, mirror_pad_op.cc)."""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from jaxdelegate.op_lowering.common.movement import integers
from jaxdelegate.op_lowering.dtypes import FLOATS
from jaxdelegate.op_lowering.flex.images import RULES as IMAGES
from jaxdelegate.op_lowering.flex.options import FlexImageOptions, FlexPaddingOptions
from jaxdelegate.op_lowering.records.flex import FLEX
from jaxdelegate.op_lowering.records.record import Options
from jaxdelegate.op_lowering.resize.options import (
    ResizeBilinearOptions,
    ResizeNearestNeighborOptions,
)
from jaxdelegate.op_lowering.resize.rule import RESIZE_BILINEAR, RESIZE_NEAREST_NEIGHBOR
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

_Op = Op[FlexImageOptions]


def _transposed(forward: Callable[[jax.Array], jax.Array], shape: tuple[int, ...]) -> Function:
    """The gradient of a linear function by its input of a shape, in float32."""
    wanted = np.broadcast_to(np.float32(0), shape)  # for its shape

    def gradient(dy: jax.Array, *_: jax.Array) -> tuple[jax.Array]:
        wide = jnp.asarray(dy, np.float32)
        return (jax.linear_transpose(forward, wanted)(wide)[0].astype(dy.dtype),)

    return gradient


def _resize_gradient(
    name: str, rule: OpRule, translated: Callable[[FlexImageOptions], Options]
) -> OpRule[FlexImageOptions]:
    """`rule` resizes images; the gradient's result has their shape."""

    def forward(op: _Op) -> Op[Options]:
        dy, dx = op.inputs[0], op.outputs[0]
        x = dataclasses.replace(dx, dtype=np.dtype(np.float32), const=None)
        sizes = np.array(dy.shape[1:3], np.int32)
        size = dataclasses.replace(x, shape=(2,), dtype=sizes.dtype, const=sizes)
        y = dataclasses.replace(dy, dtype=x.dtype, const=None)
        return Op(op.context, translated(op.options), (x, size), (y,))

    def why_not(op: _Op) -> str | None:
        dy, dx = op.inputs[0], op.outputs[0]
        fits = len(dy.shape) == len(dx.shape) == 4 and 0 not in (*dy.shape, *dx.shape)
        fits = fits and dy.shape[::3] == dx.shape[::3]
        reason = first_reason(
            why_not_dtype(dy, np.float32),
            why_not_result(dx, dy.dtype),
            None if fits else f"a gradient {list(dy.shape)} of images {list(dx.shape)}",
        )
        return reason or rule.why_not(forward(op))

    def lower(op: _Op) -> Function:
        resize, size = rule.lower(forward(op)), np.zeros(2, np.int32)
        return _transposed(lambda x: resize(x, size)[0], op.outputs[0].shape)

    return OpRule(f"{FLEX}{name}", FlexImageOptions, 1, why_not, lower, arity=2)


def _bilinear(o: FlexImageOptions) -> Options:
    return ResizeBilinearOptions(o.align_corners, o.half_pixel_centers)


def _nearest(o: FlexImageOptions) -> Options:
    return ResizeNearestNeighborOptions(o.align_corners, o.half_pixel_centers)


# ---- MirrorPadGrad: the gradient, paddings (before and after, for each dimension)


def _why_not_mirror(op: Op[FlexPaddingOptions]) -> str | None:
    dy, pads = op.inputs[:2]
    return first_reason(
        why_not_dtype(dy, FLOATS),
        why_not_result(op.outputs[0], dy.dtype),
        why_not_const(pads),
        None if 0 not in op.outputs[0].shape else "there are no values",
    )


def _lower_mirror(op: Op[FlexPaddingOptions]) -> Function:
    pads = np.reshape(integers(op.inputs[1]), (-1, 2)).tolist()
    mode = op.options.mode.lower()
    return _transposed(lambda x: jnp.pad(x, pads, mode), op.outputs[0].shape)


RULES = table(
    _resize_gradient("ResizeBicubicGrad", IMAGES[f"{FLEX}ResizeBicubic"], lambda o: o),
    _resize_gradient("ResizeBilinearGrad", RESIZE_BILINEAR, _bilinear),
    _resize_gradient("ResizeNearestNeighborGrad", RESIZE_NEAREST_NEIGHBOR, _nearest),
    OpRule(f"{FLEX}MirrorPadGrad", FlexPaddingOptions, 1, _why_not_mirror, _lower_mirror, arity=2),
)
