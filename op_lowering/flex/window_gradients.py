"""Gradients of convolutions and pools over images and volumes (core/kernels/*grad*.cc)."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdelegate.op_lowering.common.movement import integers
from jaxdelegate.op_lowering.common.products import PRODUCT_FLOATS, Arithmetic, nothing
from jaxdelegate.op_lowering.common.window import (
    Window,
    Windows,
    pad_windows,
    read_tap,
    taps,
    why_not_fit,
    why_not_windows,
)
from jaxdelegate.op_lowering.dtypes import FLOATS
from jaxdelegate.op_lowering.flex.options import FlexVolumeGradientOptions
from jaxdelegate.op_lowering.flex.options import FlexWindowGradientOptions as _Options
from jaxdelegate.op_lowering.records.enums import Padding
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
from jaxdelegate.op_lowering.spec import Shape

_Op = Op[_Options]
_MOST_TAPS = 1000  # for each there is an operation
# By rank: the layouts of values and of filters.
_LAYOUTS = {4: ("NHWC", "HWIO"), 5: ("NDHWC", "DHWIO")}


def _windows(o: _Options, x: Shape, sizes: Shape) -> Windows:
    """Over the dimensions between the first and the last."""
    padding = Padding.VALID if o.padding == "EXPLICIT" else Padding[o.padding]
    around = o.explicit_paddings if o.padding == "EXPLICIT" else (0,) * (2 * len(x))
    edges = list(zip(around[::2], around[1::2], strict=True))
    return tuple(
        Window(x[i], size, o.strides[i], padding, o.dilations[i], edges[i])
        for i, size in enumerate(sizes, 1)
    )


def _why_not_options(o: _Options, rank: int) -> str | None:
    lists = (o.strides, o.dilations)
    fits = all(len(sizes) == rank and sizes[0] == sizes[-1] == 1 for sizes in lists)
    edges = o.explicit_paddings
    explicit = len(edges) == 2 * rank and min(edges) >= 0 == max(*edges[:2], *edges[-2:])
    padded = o.padding in Padding.__members__ or (o.padding == "EXPLICIT" and explicit)
    is_last = rank in _LAYOUTS and o.data_format == _LAYOUTS[rank][0]
    return first_reason(
        None if is_last else f"the data_format {o.data_format!r} of rank {rank}",
        None if fits else f"strides {list(o.strides)}, dilations {list(o.dilations)}",
        None if padded else f"the padding {o.padding!r} {list(edges)}",
    )


def _why_not_gradient(windows: Windows, x: Shape, dy: Shape, channels: int) -> str | None:
    wanted = (x[0], *(w.n_out for w in windows), channels)
    reason = why_not_windows(windows) or why_not_fit(windows)
    differ = f"a gradient {list(dy)} of a result {list(wanted)}"
    return reason or (None if wanted == dy else differ)


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
    sizes, floats = op.inputs[constant], [s for i, s in enumerate(op.inputs[:3]) if i != constant]
    reason = first_reason(
        why_not_const(sizes) or why_not_dtype(sizes, np.int32),
        *(why_not_dtype(s, PRODUCT_FLOATS) for s in floats),
        why_not_result(op.outputs[0], floats[0].dtype),
    )
    if reason is not None:
        return reason
    x, w, dy = shapes = _parts(op, constant)
    if any(len(shape) != len(dy) or min(shape, default=0) < 1 for shape in shapes):
        return f"x {list(x)}, filter {list(w)}, gradient {list(dy)}: expected sizes of one rank"
    reason = _why_not_options(op.options, len(x))
    if reason is not None:
        return reason
    depth, units = _plain(w, depthwise=depthwise)[-2:]
    if x[-1] % depth or units % (x[-1] // depth) or (depthwise and x[-1] != w[-2]):
        return f"{x[-1]} input channels for a filter {list(w)}"
    return _why_not_gradient(_windows(op.options, x, w[:-2]), x, dy, units)


def _lower_convolution(op: _Op, constant: int, *, depthwise: bool) -> Function:
    """The transpose of the convolution, which is linear in x and in the filter."""
    x, w, _ = shapes = _parts(op, constant)
    windows, dtype = _windows(op.options, x, w[:-2]), op.outputs[0].dtype
    given, plain = op.inputs[1 - constant], _plain(w, depthwise=depthwise)
    values, filters = _LAYOUTS[len(x)]
    a = Arithmetic.of_convolution(op.context, given, op.inputs[2])
    zeros = np.zeros((), a.operand)
    wanted = np.broadcast_to(zeros, shapes[constant])  # for its shape

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

        return (jax.linear_transpose(convolve, wanted)(dy)[0].astype(dtype),)

    return gradient


def _convolution_rule(
    name: str, constant: int, options: type[_Options] = _Options, *, depthwise: bool = False
) -> OpRule[_Options]:
    def why_not(op: _Op) -> str | None:
        return _why_not_convolution(op, constant, depthwise=depthwise)

    def lower(op: _Op) -> Function:
        return _lower_convolution(op, constant, depthwise=depthwise)

    return OpRule(f"{FLEX}{name}", options, 1, why_not, lower, arity=3)


# ---- MaxPoolGrad: x, the pool's result, its gradient


def _why_not_pool(op: _Op, x: Shape, dy: Shape) -> str | None:
    o = op.options
    fits = len(x) == len(dy) == len(o.ksize) and o.ksize[0] == o.ksize[-1] == 1
    reason = first_reason(
        None if fits else f"windows {list(o.ksize)} over {list(x)}, a gradient {list(dy)}",
        _why_not_options(o, len(x)),
    )
    if reason is not None:
        return reason
    return _why_not_gradient(_windows(o, x, o.ksize[1:-1]), x, dy, x[-1])


def _why_not_max_pool(op: _Op) -> str | None:
    x, y, dy = op.inputs[:3]
    reason = first_reason(
        *(why_not_dtype(spec, FLOATS) for spec in (x, y, dy)),
        *(why_not_result(spec, x.dtype) for spec in (y, dy, op.outputs[0])),
    )
    return reason or _why_not_pool(op, x.shape, dy.shape)


def _lower_max_pool(op: _Op) -> Function:
    """The first of equal values gets the gradient."""
    if 0 in (*op.inputs[0].shape, *op.inputs[2].shape):
        return nothing(op.outputs)
    windows = _windows(op.options, op.inputs[0].shape, op.options.ksize[1:-1])
    pads = [(0, 0), *(w.pads for w in windows), (0, 0)]
    lowest = np.asarray(-np.inf, op.inputs[0].dtype)

    def pool(x: jax.Array) -> jax.Array:
        sizes, strides = [1, *(w.size for w in windows), 1], [1, *(w.stride for w in windows), 1]
        pooled: jax.Array = lax.reduce_window(x, lowest, lax.max, sizes, strides, pads)
        return pooled

    return lambda x, _y, dy: jax.vjp(pool, x)[1](dy)


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
        padded = pad_windows(x, windows, around)
        return [read_tap(padded, windows, tap) for tap in taps(windows)]

    def gradient(x: jax.Array, y: jax.Array, dy: jax.Array) -> tuple[jax.Array]:
        parts = [jnp.where(values == y, dy, jnp.zeros_like(dy)) for values in read(x, -np.inf)]
        transposed = jax.linear_transpose(lambda values: read(values, 0), x)
        return (transposed(parts)[0],)

    return gradient


# ---- AvgPoolGrad: the shape of x, the gradient


def _why_not_average_pool(op: _Op) -> str | None:
    sizes, dy = op.inputs[:2]
    reason = first_reason(
        why_not_const(sizes) or why_not_dtype(sizes, np.int32),
        why_not_dtype(dy, FLOATS),
        why_not_result(op.outputs[0], dy.dtype),
    )
    return reason or _why_not_pool(op, integers(sizes), dy.shape)


def _lower_average_pool(op: _Op) -> Function:
    """The transpose of the sum over a window of each value's part of the average."""
    shape, dtype = integers(op.inputs[0]), op.outputs[0].dtype
    if 0 in (*shape, *op.inputs[1].shape):
        return nothing(op.outputs)
    windows = _windows(op.options, shape, op.options.ksize[1:-1])
    wide = op.context.precision.accumulator(dtype)
    counts: np.ndarray = functools.reduce(np.multiply.outer, map(_counts, windows))
    sizes, strides = [1, *(w.size for w in windows), 1], [1, *(w.stride for w in windows), 1]
    pads = [(0, 0), *(w.pads for w in windows), (0, 0)]
    zero = np.zeros((), wide)
    wanted = np.broadcast_to(zero, shape)

    def total(x: jax.Array) -> jax.Array:
        added: jax.Array = lax.reduce_window(x, zero, lax.add, sizes, strides, pads)
        return added

    def gradient(_sizes: jax.Array, dy: jax.Array) -> tuple[jax.Array]:
        part = jnp.asarray(dy, wide) / counts[None, ..., None].astype(wide)
        return (jax.linear_transpose(total, wanted)(part)[0].astype(dtype),)

    return gradient


def _counts(w: Window) -> np.ndarray:
    """How many values each window has."""
    first = np.arange(w.n_out) * w.stride - w.pads[0]
    return np.minimum(first + w.size, w.n_in) - np.maximum(first, 0)


RULES = table(
    _convolution_rule("Conv2DBackpropInput", 0),
    _convolution_rule("Conv2DBackpropFilter", 1),
    _convolution_rule("Conv3DBackpropFilterV2", 1, FlexVolumeGradientOptions),
    _convolution_rule("DepthwiseConv2dNativeBackpropFilter", 1, depthwise=True),
    _convolution_rule("DepthwiseConv2dNativeBackpropInput", 0, depthwise=True),
    OpRule(f"{FLEX}MaxPoolGrad", _Options, 1, _why_not_max_pool, _lower_max_pool, arity=3),
    OpRule(
        f"{FLEX}MaxPool3DGrad",
        FlexVolumeGradientOptions,
        1,
        _why_not_max_pool_3d,
        _lower_max_pool_3d,
        arity=3,
    ),
    *(
        OpRule(f"{FLEX}{name}", options, 1, _why_not_average_pool, _lower_average_pool, arity=2)
        for name, options in (
            ("AvgPoolGrad", _Options),
            ("AvgPool3DGrad", FlexVolumeGradientOptions),
        )
    ),
)
