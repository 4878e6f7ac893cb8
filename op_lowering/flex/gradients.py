"""Gradients: convolutions and pools over images and volumes, resized and mirrored images.

Sources: core/kernels/*grad*.cc, core/kernels/image/, mirror_pad_op.cc.
"""

import dataclasses
import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdelegate.op_lowering.common import window
from jaxdelegate.op_lowering.common.movement import integers
from jaxdelegate.op_lowering.common.products import PRODUCT_FLOATS, Arithmetic, nothing
from jaxdelegate.op_lowering.common.signature import (
    ANY,
    CONSTANTS,
    CONSTANTS32,
    FLOAT,
    FLOAT32,
    SAME,
    Input,
)
from jaxdelegate.op_lowering.flex.images import RULES as IMAGES
from jaxdelegate.op_lowering.flex.signature import rule
from jaxdelegate.op_lowering.records.enums import Padding
from jaxdelegate.op_lowering.records.flex import FLEX, FlexOptions
from jaxdelegate.op_lowering.records.record import Options
from jaxdelegate.op_lowering.resize.options import (
    ResizeBilinearOptions,
    ResizeNearestNeighborOptions,
)
from jaxdelegate.op_lowering.resize.rule import RESIZE_BILINEAR, RESIZE_NEAREST_NEIGHBOR
from jaxdelegate.op_lowering.rule import Function, Op, OpRule, table
from jaxdelegate.op_lowering.spec import Shape

_Op = Op[FlexOptions]
_FLOAT = Input(PRODUCT_FLOATS)
_MOST_TAPS = 1000  # for each there is an operation
# By rank: the layouts of values and of filters.
_LAYOUTS = {4: ("NHWC", "HWIO"), 5: ("NDHWC", "DHWIO")}


def _windows(o: FlexOptions, x: Shape, sizes: Shape) -> window.Windows:
    """Over the dimensions between the first and the last."""
    padding = Padding.VALID if o.padding == "EXPLICIT" else Padding[o.padding]
    around = o.explicit_paddings if o.padding == "EXPLICIT" else (0,) * (2 * len(x))
    edges = list(zip(around[::2], around[1::2], strict=True))
    return tuple(
        window.Window(x[i], size, o.strides[i], padding, o.dilations[i], edges[i])
        for i, size in enumerate(sizes, 1)
    )


def _why_not_windows(o: FlexOptions, x: Shape, sizes: Shape) -> str | None:
    edges = o.explicit_paddings
    if len(x) not in _LAYOUTS:
        return f"values of rank {len(x)}"
    if o.padding == "EXPLICIT" and not min(edges) >= 0 == max(*edges[:2], *edges[-2:]):
        return f"the padding {o.padding!r} {list(edges)}"
    windows = _windows(o, x, sizes)
    return window.why_not_windows(windows) or window.why_not_fit(windows)


# ---- ...BackpropInput: sizes, filter, gradient; ...BackpropFilter: x, sizes, gradient


def _parts(op: _Op, constant: int) -> tuple[Shape, Shape, Shape]:
    """The shapes of x, filter and gradient; one of the first two is a constant's values."""
    shapes = [spec.shape for spec in op.inputs[:3]]
    shapes[constant] = integers(op.inputs[constant])
    return shapes[0], shapes[1], shapes[2]


def _plain(w: Shape, *, depthwise: bool) -> Shape:
    """The filter's shape as one of a convolution in groups."""
    return (*w[:-2], 1, w[-2] * w[-1]) if depthwise else w


def _why_not_convolution(op: _Op, constant: int, *, depthwise: bool) -> str | None:
    x, w, dy = _parts(op, constant)
    if 0 in (*x, *dy) or dy[-1] != _plain(w, depthwise=depthwise)[-1]:
        return f"x {list(x)}, filter {list(w)}, gradient {list(dy)}"
    return _why_not_windows(op.options, x, w[:-2])


def _lower_convolution(op: _Op, constant: int, *, depthwise: bool) -> Function:
    """The transpose of the convolution, which is linear in x and in the filter."""
    x, w, _ = shapes = _parts(op, constant)
    windows, dtype = _windows(op.options, x, w[:-2]), op.outputs[0].dtype
    other, plain = op.inputs[1 - constant], _plain(w, depthwise=depthwise)
    values, filters = _LAYOUTS[len(x)]
    a = Arithmetic.of_convolution(op.context, other, op.inputs[2])
    zeros = np.zeros((), a.operand)
    like = np.broadcast_to(zeros, shapes[constant])  # for its shape

    def gradient(*arrays: jax.Array) -> tuple[jax.Array]:
        held, dy = a.reduced(arrays[1 - constant]), a.reduced(arrays[2])

        def convolve(part: jax.Array) -> jax.Array:
            operands = (part, held) if constant == 0 else (held, part)
            return lax.conv_general_dilated(
                operands[0],
                operands[1].reshape(plain),
                [w.stride for w in windows],
                [w.pads for w in windows],
                rhs_dilation=[w.dilation for w in windows],
                dimension_numbers=(values, filters, values),
                feature_group_count=x[-1] // plain[-2],
                precision=a.precision,
            )

        return (jax.linear_transpose(convolve, like)(dy)[0].astype(dtype),)

    return gradient


def _convolution_rule(name: str, *, depthwise: bool = False) -> OpRule[FlexOptions]:
    constant = int("Filter" in name)
    inputs = [_FLOAT, _FLOAT, _FLOAT]
    inputs[constant] = CONSTANTS32

    def why_not(op: _Op) -> str | None:
        return _why_not_convolution(op, constant, depthwise=depthwise)

    def lower(op: _Op) -> Function:
        return _lower_convolution(op, constant, depthwise=depthwise)

    return rule(name, inputs, lower, why_not, results=[1 - constant])


# ---- MaxPoolGrad: x, the pool's result, its gradient


def _why_not_max_pool(op: _Op) -> str | None:
    return _why_not_windows(op.options, op.inputs[0].shape, op.options.ksize[1:-1])


def _pool(
    x: jax.Array, windows: window.Windows, first: np.ndarray, function: Callable[..., jax.Array]
) -> jax.Array:
    sizes, strides = [1, *(w.size for w in windows), 1], [1, *(w.stride for w in windows), 1]
    pads = [(0, 0), *(w.pads for w in windows), (0, 0)]
    pooled: jax.Array = lax.reduce_window(x, first, function, sizes, strides, pads)
    return pooled


def _lower_max_pool(op: _Op) -> Function:
    """The first of equal values gets the gradient."""
    if 0 in (*op.inputs[0].shape, *op.inputs[2].shape):
        return nothing(op.outputs)
    windows = _windows(op.options, op.inputs[0].shape, op.options.ksize[1:-1])
    lowest = np.asarray(-np.inf, op.inputs[0].dtype)
    return lambda x, _y, dy: jax.vjp(lambda x: _pool(x, windows, lowest, lax.max), x)[1](dy)


def _why_not_max_pool_3d(op: _Op) -> str | None:
    n = math.prod(op.options.ksize)
    many = f"windows of {n} values: the host reads those" if n > _MOST_TAPS else None
    return _why_not_max_pool(op) or many


def _lower_max_pool_3d(op: _Op) -> Function:
    """Each value that equals the pool's result gets the gradient."""
    if 0 in (*op.inputs[0].shape, *op.inputs[2].shape):
        return nothing(op.outputs)
    windows = _windows(op.options, op.inputs[0].shape, op.options.ksize[1:-1])

    def read(x: jax.Array, around: float) -> list[jax.Array]:
        padded = window.pad_windows(x, windows, around)
        return [window.read_tap(padded, windows, tap) for tap in window.taps(windows)]

    def gradient(x: jax.Array, y: jax.Array, dy: jax.Array) -> tuple[jax.Array]:
        parts = [jnp.where(values == y, dy, jnp.zeros_like(dy)) for values in read(x, -np.inf)]
        transposed = jax.linear_transpose(lambda values: read(values, 0), x)
        return (transposed(parts)[0],)

    return gradient


# ---- AvgPoolGrad: the shape of x, the gradient


def _why_not_average_pool(op: _Op) -> str | None:
    return _why_not_windows(op.options, integers(op.inputs[0]), op.options.ksize[1:-1])


def _lower_average_pool(op: _Op) -> Function:
    """The transpose of the sum over a window of each value's part of the average."""
    shape, dtype = integers(op.inputs[0]), op.outputs[0].dtype
    if 0 in (*shape, *op.inputs[1].shape):
        return nothing(op.outputs)
    windows = _windows(op.options, shape, op.options.ksize[1:-1])
    wide = op.context.precision.accumulator(dtype)
    counts: np.ndarray = functools.reduce(np.multiply.outer, map(_counts, windows))
    zero = np.zeros((), wide)
    like = np.broadcast_to(zero, shape)

    def total(x: jax.Array) -> jax.Array:
        return _pool(x, windows, zero, lax.add)

    def gradient(_sizes: jax.Array, dy: jax.Array) -> tuple[jax.Array]:
        part = jnp.asarray(dy, wide) / counts[None, ..., None].astype(wide)
        return (jax.linear_transpose(total, like)(part)[0].astype(dtype),)

    return gradient


def _counts(w: window.Window) -> np.ndarray:
    """How many values each window has."""
    first = np.arange(w.n_out) * w.stride - w.pads[0]
    return np.minimum(first + w.size, w.n_in) - np.maximum(first, 0)


# ---- gradients of resized images


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


_MAX_POOL = [FLOAT, SAME, SAME]
_AVERAGE_POOL = [CONSTANTS32, FLOAT]
RULES = table(
    _convolution_rule("Conv2DBackpropFilter"),
    _convolution_rule("Conv2DBackpropInput"),
    _convolution_rule("Conv3DBackpropFilterV2"),
    _convolution_rule("DepthwiseConv2dNativeBackpropFilter", depthwise=True),
    _convolution_rule("DepthwiseConv2dNativeBackpropInput", depthwise=True),
    *(
        rule(name, _AVERAGE_POOL, _lower_average_pool, _why_not_average_pool, results=[1])
        for name in ("AvgPool3DGrad", "AvgPoolGrad")
    ),
    rule("MaxPool3DGrad", _MAX_POOL, _lower_max_pool_3d, _why_not_max_pool_3d),
    rule("MaxPoolGrad", _MAX_POOL, _lower_max_pool, _why_not_max_pool),
    _resize_gradient("ResizeBicubicGrad", IMAGES[f"{FLEX}ResizeBicubic"], lambda o: o),
    _resize_gradient("ResizeBilinearGrad", RESIZE_BILINEAR, _bilinear),
    _resize_gradient("ResizeNearestNeighborGrad", RESIZE_NEAREST_NEIGHBOR, _nearest),
    rule("MirrorPadGrad", [FLOAT, CONSTANTS], _lower_mirror, _why_not_mirror),
)
