"""Matrix products and convolutions."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxdelegate.conversion.emitter import F32, Emitter
from jaxdelegate.conversion.graph import Value
from jaxdelegate.conversion.movement import spread
from jaxdelegate.conversion.table import Primitive
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
    (xc, yc), (xb, yb) = dimension_numbers
    if F32 not in (x.dtype, y.dtype) or x.dtype != y.dtype:
        return _integer_product(e, x, y, dimension_numbers, preferred_element_type)
    x_free = [i for i in range(x.rank) if i not in (*xc, *xb)]
    y_free = [i for i in range(y.rank) if i not in (*yc, *yb)]
    shape = tuple(x.shape[i] for i in (*xb, *x_free)) + tuple(y.shape[i] for i in y_free)
    if not xb and isinstance(y.data, np.ndarray):
        result = _fully_connected(e, x, y, (x_free, xc), (y_free, yc))
        return e.reshape(result, shape)
    if not xb and isinstance(x.data, np.ndarray):
        result = _fully_connected(e, y, x, (y_free, yc), (x_free, xc))
        result = e.reshape(result, tuple(y.shape[i] for i in y_free) + shape[: len(x_free)])
        return e.transpose(result, [*range(len(y_free), result.rank), *range(len(y_free))])
    return e.reshape(_batched(e, x, y, (xb, x_free, xc), (yb, y_free, yc)), shape)


def _integer_product(e: Emitter, x: Value, y: Value, dimensions: Any, result: Any) -> Value:
    """Integers of at most 8 bits, whose products float32 sums exactly up to 2**24."""
    (xc, _), _ = dimensions
    terms = math.prod(x.shape[i] for i in xc)
    narrow = all(v.dtype.kind in "iub" and v.dtype.itemsize == 1 for v in (x, y))
    if not narrow or terms > 256:
        e.refuse(f"a product of {x.dtype.name} and {y.dtype.name} has no kernel", _TO_FLOAT)
    product = _dot_general(e, e.cast(x, F32), e.cast(y, F32), dimension_numbers=dimensions)
    return e.cast(product, result or x.dtype)


def _fully_connected(
    e: Emitter, x: Value, weights: Value, x_dims: tuple[Any, Any], w_dims: tuple[Any, Any]
) -> Value:
    """FULLY_CONNECTED, whose weights are [units, depth]."""
    (free, contracted), (units, depth) = x_dims, w_dims
    rows = tuple(x.shape[i] for i in free)
    size = math.prod(weights.shape[i] for i in depth)
    w = e.transpose(weights, [*units, *depth])
    w = e.reshape(w, (math.prod(weights.shape[i] for i in units), size))
    x = e.reshape(e.transpose(x, [*free, *contracted]), (*(rows or (1,)), size))
    shape = (*(rows or (1,)), w.shape[0])
    options = FullyConnectedOptions(keep_num_dims=True)
    return e.op("FULLY_CONNECTED", [x, w, None], shape, F32, options)


def _batched(
    e: Emitter, x: Value, y: Value, x_dims: tuple[Any, Any, Any], y_dims: tuple[Any, Any, Any]
) -> Value:
    """BATCH_MATMUL of [batch, rows, depth] and [batch, depth, columns], or its transpose."""
    (xb, x_free, xc), (yb, y_free, yc) = x_dims, y_dims
    batch = tuple(x.shape[i] for i in xb)
    rows, columns = (math.prod(v.shape[i] for i in f) for v, f in ((x, x_free), (y, y_free)))
    depth = math.prod(x.shape[i] for i in xc)
    flips = (*yb, *y_free, *yc) == tuple(range(y.rank))  # it is stored [batch, columns, depth]
    x = e.reshape(e.transpose(x, [*xb, *x_free, *xc]), (*batch, rows, depth))
    order = [*yb, *y_free, *yc] if flips else [*yb, *yc, *y_free]
    y = e.reshape(
        e.transpose(y, order), (*batch, *((columns, depth) if flips else (depth, columns)))
    )
    options = BatchMatMulOptions(adj_y=flips)
    return e.op("BATCH_MATMUL", [x, y], (*batch, rows, columns), F32, options)


# ---- convolutions


def _convolution(
    e: Emitter,
    x: Value,
    kernel: Value,
    *,
    window_strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    lhs_dilation: Sequence[int],
    rhs_dilation: Sequence[int],
    dimension_numbers: Any,
    feature_group_count: int,
    batch_group_count: int,
    **_: Any,
) -> Value:
    rank = len(window_strides)
    if batch_group_count != 1:
        e.refuse("convolutions have no groups of the batch", "use feature_group_count")
    if rank > 3 or x.dtype != F32 or (rank == 3 and feature_group_count != 1):
        e.refuse(f"no kernel convolves {rank} dimensions of {x.dtype.name}", _TO_FLOAT)
    lhs, rhs, out = dimension_numbers
    x = e.transpose(x, [lhs[0], *lhs[2:], lhs[1]])
    kernel = e.transpose(kernel, [rhs[0], *rhs[2:], rhs[1]])
    window = _Window(window_strides, list(padding), lhs_dilation, rhs_dilation, feature_group_count)
    result = _in_rank(e, x, kernel, window)
    return e.transpose(result, np.argsort([out[0], *out[2:], out[1]]))


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


def _in_rank(e: Emitter, x: Value, kernel: Value, w: _Window) -> Value:
    """The convolution of [batch, *spatial, channels] with [filters, *window, channels]."""
    if len(w.strides) == 1:
        n, size, channels = x.shape
        tall = e.reshape(x, (n, 1, size, channels))
        k = e.reshape(kernel, (kernel.shape[0], 1, *kernel.shape[1:]))
        y = _in_rank(e, tall, k, w.with_height())
        return e.reshape(y, (y.shape[0], *y.shape[2:]))
    if any(s > 1 for s in w.spread):
        if _is_transposed(kernel, w):
            return _transpose_conv(e, x, kernel, w)
        for axis, factor in enumerate(w.spread):
            x = spread(e, x, e.like(x, 0), axis + 1, factor - 1)
    x, padding = padded_for(e, x, w.reach(kernel), w.strides, w.pads)
    lost = [0 if padding == Padding.SAME else r - 1 for r in w.reach(kernel)]
    spans = zip(x.shape[1:-1], lost, w.strides, strict=True)
    shape = (x.shape[0], *(-(-(n - r) // s) for n, r, s in spans), kernel.shape[0])
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
        multiplier = kernel.shape[-1] // channels
        return (
            "DEPTHWISE_CONV_2D",
            kernel,
            DepthwiseConv2DOptions(padding, wide, high, multiplier, **spans),
        )
    return "CONV_2D", kernel, Conv2DOptions(padding, wide, high, **spans)


def _is_transposed(kernel: Value, w: _Window) -> bool:
    """Whether it is a transposed convolution."""
    ones = all(s == 1 for s in (*w.strides, *w.dilation))
    return ones and w.groups == 1 and len(w.spread) == 2 and kernel.is_constant


def _transpose_conv(e: Emitter, x: Value, kernel: Value, w: _Window) -> Value:
    """TRANSPOSE_CONV, which flips the kernel, and pads by what is not there."""
    flipped = e.const(kernel.data[:, ::-1, ::-1, :], name=kernel.name)
    window = kernel.shape[1:3]
    crops = [(k - 1 - a, k - 1 - b) for k, (a, b) in zip(window, w.pads, strict=True)]
    full = [(n - 1) * s + k for n, s, k in zip(x.shape[1:3], w.spread, window, strict=True)]
    sizes = [n - a - b for n, (a, b) in zip(full, crops, strict=True)]
    same = [
        low == max(n - size, 0) // 2 and low + high >= 0 and size == count * s
        for (low, high), n, size, count, s in zip(
            crops, full, sizes, x.shape[1:3], w.spread, strict=True
        )
    ]
    if all(same):
        return _transposed(e, x, flipped, w, sizes, Padding.SAME)
    whole = _transposed(e, x, flipped, w, full, Padding.VALID)
    pads = [(0, 0), *((max(-a, 0), max(-b, 0)) for a, b in crops), (0, 0)]
    starts = [0, *(max(a, 0) for a, _ in crops), 0]
    kept = [n - max(a, 0) - max(b, 0) for n, (a, b) in zip(full, crops, strict=True)]
    return e.pad(e.slice(whole, starts, (x.shape[0], *kept, kernel.shape[0])), pads)


def _transposed(
    e: Emitter, x: Value, kernel: Value, w: _Window, sizes: list[int], padding: Padding
) -> Value:
    shape = (x.shape[0], *sizes, kernel.shape[0])
    options = TransposeConvOptions(padding, w.spread[1], w.spread[0])
    return e.op("TRANSPOSE_CONV", [e.sizes(shape), kernel, x], shape, F32, options)


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
    if min(min(p) for p in pads) < 0:
        e.refuse("its padding is negative", "slice the input first")
    return e.pad(x, [(0, 0), *pads, (0, 0)], value), Padding.VALID


def _is_same(size: Any, reach: int, stride: int, pads: tuple[int, int]) -> bool:
    total = max((-(-size // stride) - 1) * stride + reach - size, 0)
    return bool(tuple(pads) == (total // 2, total - total // 2))


PRIMITIVES = (
    Primitive(
        "dot_general",
        "FULLY_CONNECTED, BATCH_MATMUL",
        _dot_general,
        "float32; int8 and uint8 with at most 256 terms, in floats",
    ),
    Primitive(
        "conv_general_dilated",
        "CONV_2D, DEPTHWISE_CONV_2D, TRANSPOSE_CONV, CONV_3D",
        _convolution,
        "float32, 1 to 3 spatial dimensions, batch_group_count 1",
    ),
)
