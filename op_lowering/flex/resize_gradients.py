"""Gradients of resized and of mirrored images (core/kernels/image/, mirror_pad_op.cc)."""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from jaxdelegate.op_lowering.common.movement import integers
from jaxdelegate.op_lowering.common.signature import ANY, CONSTANTS, FLOAT, FLOAT32
from jaxdelegate.op_lowering.flex.images import RULES as IMAGES
from jaxdelegate.op_lowering.flex.signature import rule
from jaxdelegate.op_lowering.records.flex import FLEX, FlexOptions
from jaxdelegate.op_lowering.records.record import Options
from jaxdelegate.op_lowering.resize.options import (
    ResizeBilinearOptions,
    ResizeNearestNeighborOptions,
)
from jaxdelegate.op_lowering.resize.rule import RESIZE_BILINEAR, RESIZE_NEAREST_NEIGHBOR
from jaxdelegate.op_lowering.rule import Function, Op, OpRule, table

_Op = Op[FlexOptions]


def _transposed(forward: Callable[[jax.Array], jax.Array], shape: tuple[int, ...]) -> Function:
    """The gradient of a linear function by its input of a shape, in float32."""
    like = np.broadcast_to(np.float32(0), shape)  # for its shape

    def gradient(dy: jax.Array, *_: jax.Array) -> tuple[jax.Array]:
        wide = jnp.asarray(dy, np.float32)
        return (jax.linear_transpose(forward, like)(wide)[0].astype(dy.dtype),)

    return gradient


def _resize_gradient(
    name: str, resize_rule: OpRule, translated: Callable[[FlexOptions], Options]
) -> OpRule[FlexOptions]:
    """`resize_rule` resizes images; the gradient's result has their shape."""

    def forward(op: _Op) -> Op[Options]:
        dy, dx = op.inputs[0], op.outputs[0]
        x = dataclasses.replace(dx, dtype=np.dtype(np.float32), const=None)
        sizes = np.array(dy.shape[1:3], np.int32)
        size = dataclasses.replace(x, shape=(2,), dtype=sizes.dtype, const=sizes)
        y = dataclasses.replace(dy, dtype=x.dtype, const=None)
        return Op(op.context, translated(op.options), (x, size), (y,))

    def why_not(op: _Op) -> str | None:
        dy, dx = op.inputs[0].shape, op.outputs[0].shape
        if len(dy) != 4 or 0 in (*dy, *dx):
            return f"a gradient {list(dy)} of images {list(dx)}"
        return resize_rule.why_not(forward(op))

    def lower(op: _Op) -> Function:
        resize, size = resize_rule.lower(forward(op)), np.zeros(2, np.int32)
        return _transposed(lambda x: resize(x, size)[0], op.outputs[0].shape)

    return rule(name, [FLOAT32, ANY], lower, why_not)


def _bilinear(o: FlexOptions) -> Options:
    return ResizeBilinearOptions(o.align_corners, o.half_pixel_centers)


def _nearest(o: FlexOptions) -> Options:
    return ResizeNearestNeighborOptions(o.align_corners, o.half_pixel_centers)


# ---- MirrorPadGrad: the gradient, paddings (before and after, for each dimension)


def _why_not_mirror(op: _Op) -> str | None:
    return "there are no values" if 0 in op.outputs[0].shape else None


def _lower_mirror(op: _Op) -> Function:
    pads = np.reshape(integers(op.inputs[1]), (-1, 2)).tolist()
    mode = op.options.mode.lower()
    return _transposed(lambda x: jnp.pad(x, pads, mode), op.outputs[0].shape)


RULES = table(
    _resize_gradient("ResizeBicubicGrad", IMAGES[f"{FLEX}ResizeBicubic"], lambda o: o),
    _resize_gradient("ResizeBilinearGrad", RESIZE_BILINEAR, _bilinear),
    _resize_gradient("ResizeNearestNeighborGrad", RESIZE_NEAREST_NEIGHBOR, _nearest),
    rule("MirrorPadGrad", [FLOAT, CONSTANTS], _lower_mirror, _why_not_mirror),
)
