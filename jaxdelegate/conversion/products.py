"""Matrix products and convolutions."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from jax import lax

from jaxdelegate.conversion.emitter import F32, Emitter
from jaxdelegate.conversion.graph import Complex, Shape, Value
from jaxdelegate.conversion.interpreting import Primitive, by, write
from jaxdelegate.conversion.movement import spread
from jaxdelegate.op_lowering.options import (
    BatchMatMulOptions,
    Conv2DOptions,
    Conv3DOptions,
    DepthwiseConv2DOptions,
    FullyConnectedOptions,
    Options,
    Padding,
    TransposeConvOptions,
)

_TO_FLOAT = "convert the inputs to float32"
Pads = list[tuple[int, int]]


# ---- matrix products


def _dot_general(
    e: Emitter, x: Value, y: Value, *, dimension_numbers: Any, preferred_element_type: Any = None,
    **_: Any,
) -> Value:  # fmt: skip
    if F32 not in (x.dtype, y.dtype) or x.dtype != y.dtype:
        return _integer_product(e, x, y, dimension_numbers, preferred_element_type)
    (xc, yc), (xb, yb) = dimension_numbers
    x_free, y_free = (
        [i for i in range(v.rank) if i not in used]
        for v, used in ((x, (*xc, *xb)), (y, (*yc, *yb)))
    )
    if xb or not (isinstance(x.data, np.ndarray) or isinstance(y.data, np.ndarray)):
        return e.reshape(_batched(e, x, y, (xb, x_free, xc), (yb, y_free, yc)), e.shape)
    if isinstance(y.data, np.ndarray):
        return e.reshape(_fully_connected(e, x, y, (x_free, xc), (y_free, yc)), e.shape)
    result = _fully_connected(e, y, x, (y_free, yc), (x_free, xc))
    n, free = len(x_free), len(y_free)
    result = e.reshape(result, (*e.shape[n:], *e.shape[:n]))
    return e.transpose(result, [*range(free, free + n), *range(free)])


def _integer_product(e: Emitter, x: Value, y: Value, dimensions: Any, result: Any) -> Value:
    """Integers of at most 8 bits, whose products float32 sums exactly up to 2**24."""
    terms = math.prod(x.shape[i] for i in dimensions[0][0])
    narrow = all(v.dtype.kind in "iub" and v.dtype.itemsize == 1 for v in (x, y))
    if not narrow or terms > 256:
        e.refuse(f"a product of {x.dtype.name} and {y.dtype.name} has no kernel", _TO_FLOAT)
    product = _dot_general(e, e.cast(x, F32), e.cast(y, F32), dimension_numbers=dimensions)
    return e.cast(product, result or x.dtype)


def _complex_product(x: Any, y: Any, **how: Any) -> Complex:
    def dot(a: Any, b: Any) -> Any:
        return lax.dot_general_p.bind(a, b, **{**how, "preferred_element_type": F32})

    return Complex(dot(x.re, y.re) - dot(x.im, y.im), dot(x.re, y.im) + dot(x.im, y.re))


def _matrix(e: Emitter, x: Value, *groups: Sequence[int], batch: Sequence[int] = ()) -> Value:
    """The tensor with the dimensions of a batch, and one for each group of others."""
    moved = e.transpose(x, [*batch, *(i for group in groups for i in group)])
    sizes = [math.prod(x.shape[i] for i in group) for group in groups]
    return e.reshape(moved, (*(x.shape[i] for i in batch), *sizes))


def _fully_connected(
    e: Emitter, x: Value, weights: Value, x_dims: tuple[Any, Any], w_dims: tuple[Any, Any]
) -> Value:
    """FULLY_CONNECTED, whose weights are [units, depth]."""
    free, contracted = x_dims
    w = _matrix(e, weights, *w_dims)
    x = _matrix(e, x, *([] if free else [()]), contracted, batch=free)
    shape = (*x.shape[:-1], w.shape[0])
    options = FullyConnectedOptions(keep_num_dims=True)
    return e.op("FULLY_CONNECTED", [x, w, None], shape, F32, options)


def _batched(
    e: Emitter, x: Value, y: Value, x_dims: tuple[Any, Any, Any], y_dims: tuple[Any, Any, Any]
) -> Value:
    """BATCH_MATMUL of [batch, rows, depth] and [batch, depth, columns], or its transpose."""
    (xb, x_free, xc), (yb, y_free, yc) = x_dims, y_dims
    flips = (*yb, *y_free, *yc) == tuple(range(y.rank))  # it is stored [batch, columns, depth]
    a = _matrix(e, x, x_free, xc, batch=xb)
    b = _matrix(e, y, *((y_free, yc) if flips else (yc, y_free)), batch=yb)
    shape = (*a.shape[:-1], b.shape[-2 if flips else -1])
    return e.op("BATCH_MATMUL", [a, b], shape, F32, BatchMatMulOptions(adj_y=flips))


# ---- convolutions


@dataclasses.dataclass(frozen=True)
class _Window:
    """How a kernel moves over the spatial dimensions."""

    strides: Sequence[int]
    pads: Pads
    spread: Sequence[int]  # of the input, as transposed convolutions have it
    dilation: Sequence[int]
    groups: int

    def with_height(self) -> "_Window":
        spread, dilation = [1, *self.spread], [1, *self.dilation]
        return _Window([1, *self.strides], [(0, 0), *self.pads], spread, dilation, self.groups)

    def reach(self, kernel: Value) -> list[int]:
        """The sizes of the dilated kernel."""
        return [(k - 1) * d + 1 for k, d in zip(kernel.shape[1:-1], self.dilation, strict=True)]


def _convolution(
    e: Emitter, x: Value, kernel: Value, *, window_strides: Any, padding: Any, lhs_dilation: Any,
    rhs_dilation: Any, dimension_numbers: Any, feature_group_count: int, batch_group_count: int,
    **_: Any,
) -> Value:  # fmt: skip
    rank = len(window_strides)
    if batch_group_count != 1:
        e.refuse("convolutions have no groups of the batch", "use feature_group_count")
    if rank > 3 or x.dtype != F32 or (rank == 3 and feature_group_count != 1):
        e.refuse(f"no kernel convolves {rank} dimensions of {x.dtype.name}", _TO_FLOAT)
    w = _Window(window_strides, list(padding), lhs_dilation, rhs_dilation, feature_group_count)
    x, kernel = (
        e.transpose(v, _channels_last(d))
        for v, d in zip((x, kernel), dimension_numbers, strict=False)
    )
    order = _channels_last(dimension_numbers[2])
    shape = tuple(e.shape[i] for i in order)
    if rank == 1:
        x, kernel = (e.reshape(v, (v.shape[0], 1, *v.shape[1:])) for v in (x, kernel))
        tall = _convolved(e, x, kernel, w.with_height(), (shape[0], 1, *shape[1:]))
        return e.transpose(e.reshape(tall, shape), np.argsort(order))
    return e.transpose(_convolved(e, x, kernel, w, shape), np.argsort(order))


def _channels_last(dimensions: Sequence[int]) -> list[int]:
    return [dimensions[0], *dimensions[2:], dimensions[1]]


def _convolved(e: Emitter, x: Value, kernel: Value, w: _Window, shape: Shape) -> Any:
    """The convolution of [batch, *spatial, channels] with [filters, *window, channels]."""
    if any(s > 1 for s in w.spread) and _is_transposed(kernel, w):
        return _transpose_conv(e, x, kernel, w, shape)
    for axis, factor in enumerate(w.spread):
        x = write(e, spread(axis + 1, factor - 1), x, e.like(x, 0)) if factor > 1 else x
    x, padding = padded_for(e, x, w.reach(kernel), w.strides, w.pads)
    op, kernel, options = _operator(e, kernel, w, padding, x.shape[-1])
    bias = [e.const(np.zeros(shape[-1], np.float32))] if op != "CONV_3D" else []
    return e.op(op, [x, kernel, *bias], shape, F32, options)


def _operator(
    e: Emitter, kernel: Value, w: _Window, padding: Padding, channels: int
) -> tuple[str, Value, Options]:
    """The operator, its kernel in its order of dimensions, and its options."""
    *depth, high, wide = w.strides
    *deep, tall, broad = w.dilation
    spans: dict[str, Any] = {"dilation_w_factor": broad, "dilation_h_factor": tall}
    if depth:
        kernel = e.transpose(kernel, (1, 2, 3, 4, 0))  # [depth, height, width, channels, filters]
        options = Conv3DOptions(padding, depth[0], wide, high, dilation_d_factor=deep[0], **spans)
        return "CONV_3D", kernel, options
    if 1 < w.groups == channels:
        kernel = e.transpose(kernel, (3, 1, 2, 0))
        depthwise = DepthwiseConv2DOptions(
            padding, wide, high, kernel.shape[-1] // channels, **spans
        )
        return "DEPTHWISE_CONV_2D", kernel, depthwise
    return "CONV_2D", kernel, Conv2DOptions(padding, wide, high, **spans)


def _is_transposed(kernel: Value, w: _Window) -> bool:
    """Whether it is a transposed convolution."""
    ones = all(s == 1 for s in (*w.strides, *w.dilation))
    return ones and w.groups == 1 and len(w.spread) == 2 and kernel.is_constant


def _transpose_conv(e: Emitter, x: Value, kernel: Value, w: _Window, shape: Shape) -> Any:
    """TRANSPOSE_CONV, which flips the kernel, and pads by what is not there."""
    flipped = e.const(kernel.data[:, ::-1, ::-1, :], name=kernel.name)
    crops = [(k - 1 - a, k - 1 - b) for k, (a, b) in zip(kernel.shape[1:3], w.pads, strict=True)]
    full = [size + low + high for size, (low, high) in zip(shape[1:3], crops, strict=True)]
    is_same = all(
        low == max(n - size, 0) // 2 and low + high >= 0 and size == count * s
        for (low, high), n, size, count, s in zip(
            crops, full, shape[1:3], x.shape[1:3], w.spread, strict=True
        )
    )
    sizes = shape if is_same else (shape[0], *full, shape[3])
    options = TransposeConvOptions(
        Padding.SAME if is_same else Padding.VALID, w.spread[1], w.spread[0]
    )
    y = e.op("TRANSPOSE_CONV", [e.sizes(sizes), flipped, x], sizes, F32, options)
    config = [(0, 0, 0), *((-low, -high, 0) for low, high in crops), (0, 0, 0)]
    return y if is_same else write(e, lambda y: lax.pad(y, np.float32(0), config), y)


def padded_for(
    e: Emitter,
    x: Value,
    reach: Sequence[int],
    strides: Sequence[int],
    pads: Sequence[tuple[int, int]],
    value: Value | None = None,
) -> tuple[Value, Padding]:
    """The input [batch, *spatial, channels] and the padding for a window that moves over it.

    SAME if its pads are these, else a PAD operator for those that it cannot have.
    """
    if not any(map(any, pads)):
        return x, Padding.VALID
    if all(map(_is_same, x.shape[1:-1], reach, strides, pads)):
        return x, Padding.SAME
    config = [(0, 0, 0), *((*p, 0) for p in pads), (0, 0, 0)]
    edge = e.like(x, 0) if value is None else value
    return write(e, lambda x, edge: lax.pad(x, edge, config), x, edge), Padding.VALID


def _is_same(size: Any, reach: int, stride: int, pads: tuple[int, int]) -> bool:
    total = max((-(-size // stride) - 1) * stride + reach - size, 0)
    return bool(tuple(pads) == (total // 2, total - total // 2))


PRIMITIVES = (
    Primitive(
        "dot_general",
        "FULLY_CONNECTED, BATCH_MATMUL",
        _dot_general,
        "float32; int8 and uint8 with at most 256 terms, in floats",
        by(_complex_product),
    ),
    Primitive(
        "conv_general_dilated",
        "CONV_2D, DEPTHWISE_CONV_2D, TRANSPOSE_CONV, CONV_3D",
        _convolution,
        "float32, 1 to 3 spatial dimensions, batch_group_count 1",
    ),
)
