"""Convolutions and FULLY_CONNECTED of integers by this package's CPU kernels.

The kernels sum in int32 and requantize while sums are in registers or the nearest cache; results
equal those of XLA's algorithms bit for bit. They multiply x of 8 bits as unsigned bytes, so the
contribution of x's zero point, and of int8's 128, to each sum is subtracted from the bias ahead of
time. They multiply int16 by filters of int8 as int16 by int16. LiteRT sums these in int64, so the
kernels compute only what int32 holds whatever x is.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxdelegate.kernels import library
from jaxdelegate.op_lowering.common.basics import Array, pad
from jaxdelegate.op_lowering.common.integer_products import moved, to_int8
from jaxdelegate.op_lowering.common.native_call import native_call
from jaxdelegate.op_lowering.common.quantization import quantization_of, zero_point_of
from jaxdelegate.op_lowering.common.quantized_products import (
    INT8,
    INT16,
    INT32,
    INT64,
    UINT8,
    Epilogue,
    Tensors,
)
from jaxdelegate.op_lowering.convolution.algorithms import Convolution
from jaxdelegate.op_lowering.convolution.cpu_kernel import (
    NATIVE,
    geometry,
    matrices,
    matrix_geometry,
    packed_groups,
    panels,
    runs_as_products,
    runs_by_channel,
)
from jaxdelegate.op_lowering.convolution.integer import filter_sums
from jaxdelegate.op_lowering.rule import Lowered, LoweringContext, Prepare
from jaxdelegate.op_lowering.spec import Shape

# Adjacent values of the depth in a panel of int8 (kDeep in elements.h), and of int16.
QUAD, _PAIR = 4, 2
_ROWS = 2  # adjacent window rows in a depthwise filter (kRows)
_LARGEST_INT16 = 1 << 15  # magnitude


class _Targets(NamedTuple):
    """The names of calls for a dtype of x, and adjacent values of the depth in a panel."""

    product: str
    depthwise: str
    deep: int

    @classmethod
    def of(cls, tensors: Tensors) -> "_Targets":
        if tensors.x.dtype == INT16:
            return cls(library.PRODUCT_INT16, library.DEPTHWISE_INT16, _PAIR)
        return cls(library.PRODUCT_INT8, library.DEPTHWISE_INT8, QUAD)


def algorithms(
    context: LoweringContext, tensors: Tensors, io: Prepare, c: Convolution | None = None
) -> tuple[str, ...]:
    """For operators that LiteRT's integer kernels accept.

    `io` transposes the file's filter to [..., I, O]; `c` is None for FULLY_CONNECTED.
    """
    if not context.kernels.cpu or tensors.w.const is None or not takes(c):
        return ()
    is_int16 = tensors.x.dtype == INT16
    fits = _fits_int16(tensors, io) if is_int16 else _fits_bytes(tensors)
    return (NATIVE,) if fits else ()


def _fits_bytes(tensors: Tensors) -> bool:
    x, w, bias, y = tensors
    are_bytes = x.dtype == w.dtype == y.dtype and x.dtype in (INT8, UINT8)
    return are_bytes and (bias is None or bias.dtype == INT32)


def _fits_int16(tensors: Tensors, io: Prepare) -> bool:
    """Whether no x results in a sum that int32 does not hold."""
    _, w, bias, y = tensors
    added = np.zeros(1) if bias is None else bias.const
    if added is None or w.dtype != INT8 or y.dtype != INT16:
        return False
    zero = quantization_of(w).zero_point.flat[0]  # the only one, or all are 0
    filters = np.abs(io(w.const).astype(np.int16) - np.int16(zero))
    sums = _LARGEST_INT16 * filters.sum(tuple(range(filters.ndim - 1)), dtype=np.int64)
    largest = sums + np.abs(added.reshape(-1).astype(np.float64))
    return bool(np.max(largest, initial=0) <= np.iinfo(np.int32).max)


def takes(c: Convolution | None) -> bool:
    """Whether the kernels support this geometry; None: FULLY_CONNECTED's."""
    return c is None or (len(c.windows) == 2 and (runs_as_products(c) or runs_by_channel(c)))


def is_chosen(
    context: LoweringContext, tensors: Tensors, io: Prepare, c: Convolution | None = None
) -> bool:
    return context.algorithm in (None, NATIVE) and bool(algorithms(context, tensors, io, c))


def convolution(
    c: Convolution, spatial_io: Prepare, tensors: Tensors, w_zero: int, end: Epilogue
) -> Lowered:
    """CONV_2D or DEPTHWISE_CONV_2D, [N, H, W, C] -> [N, *out, O].

    `spatial_io` transposes the file's filter to [H, W, I, O]; `w_zero` is the filter's zero point,
    as stored.
    """
    zero, out = moved(w_zero, tensors.w.dtype), (c.batch, *c.out, c.output_channels)
    filters = to_int8(spatial_io(tensors.w.const))
    target, depthwise, deep = _Targets.of(tensors)
    if runs_by_channel(c):
        call = _call(depthwise, geometry(c), out, tensors, 0, end)
        return _lowered(call, tensors, filters, zero, lambda w: pairs(to_int8(spatial_io(w)), zero))
    together = packed_groups(c, deep) if zero == 0 else 1
    count = c.groups // together
    call = _call(target, geometry(c, together), out, tensors, zero, end, matrices=count)
    prepare = _preparing(tensors, spatial_io, zero, count)
    return _lowered(call, tensors, filters, zero, prepare, count)


def fully_connected(rows: int, tensors: Tensors, w_zero: int, end: Epilogue) -> Lowered:
    """[..., K] x [N, K] -> y, with rows * N elements.

    `w_zero` is the zero point of the filter as int8 (see `to_int8`).
    """
    output_channels, depth = tensors.w.shape
    fields = matrix_geometry(rows, depth, output_channels)
    call = _call(
        _Targets.of(tensors).product, fields, (rows, output_channels), tensors, w_zero, end
    )

    def product(x: jax.Array, *rest: jax.Array) -> jax.Array:
        whole = x.reshape(-1)[: rows * depth]  # LiteRT's kernel ignores the rest
        return call(whole.reshape(rows, depth), *rest).reshape(tensors.y.shape)

    def image(w: Array) -> Array:
        return transposed(w).reshape(1, 1, depth, output_channels)

    filters = to_int8(transposed(np.asarray(tensors.w.const)))
    return _lowered(product, tensors, filters, w_zero, _preparing(tensors, image, w_zero))


def transposed(w: Array) -> Array:
    """A filter [N, K] of FULLY_CONNECTED -> [K, N]."""
    return w.transpose(1, 0)


def _preparing(tensors: Tensors, io: Prepare, w_zero: int, matrices: int = 1) -> Prepare:
    """`io` transposes the file's filter to [H, W, I, O]."""
    deep = _Targets.of(tensors).deep
    if tensors.x.dtype == INT16:
        return lambda w: steps(io(w).astype(np.int16) - np.int16(w_zero), deep, matrices)
    return lambda w: steps(to_int8(io(w)), deep, matrices)


def _lowered(
    call: Callable[..., jax.Array],
    tensors: Tensors,
    filters: Array,
    w_zero: int,
    prepare: Prepare,
    matrices: int = 1,
) -> Lowered:
    # `filters` are int8 [..., I, O], their zero point is `w_zero`.
    unsigned = zero_point_of(tensors.x) + (128 if tensors.x.dtype == INT8 else 0)
    offset = (-unsigned * filter_sums(filters, w_zero).astype(np.int64)).astype(np.int32)

    def run(x: jax.Array, w: jax.Array, bias: jax.Array | None = None) -> tuple[jax.Array]:
        total = jnp.asarray(offset) if bias is None else bias.reshape(-1).astype(INT32) + offset
        return (call(x, w, total),)

    return Lowered(run, {1: prepare}, (NATIVE, tensors.x.dtype.name, w_zero, matrices))


def _call(
    target: str,
    fields: tuple[int, ...],
    out: Shape,
    tensors: Tensors,
    w_zero: int,
    end: Epilogue,
    matrices: int = 1,
) -> Callable[..., jax.Array]:
    # Bias and scales are padded to whole panels for each matrix.
    output_channels = out[-1] // matrices
    more = -output_channels % library.PANEL if target == _Targets.of(tensors).product else 0
    edges = [(0, 0), (0, more)]
    values: tuple[int, ...] = (zero_point_of(tensors.x), w_zero, end.zero_point, *end.bounds)
    if tensors.x.dtype == INT16:
        values = (*values, end.accumulator == INT64)
    scales = epilogue_scales(end, out[-1])
    filled = np.pad(scales.reshape(-1, output_channels), edges, mode="edge").reshape(
        len(scales), -1
    )
    geometry, integers = np.array(fields, np.int64), np.array(values, np.int64)
    call = native_call(target, out, end.dtype, geometry=geometry, integers=integers)

    def run(x: jax.Array, w: jax.Array, bias: jax.Array) -> jax.Array:
        sums = jnp.pad(bias.reshape(matrices, output_channels), edges).reshape(-1)
        return call(x, w, sums, filled)

    return run


def epilogue_scales(end: Epilogue, output_channels: int) -> np.ndarray:
    """Scales, float64 [1, N], or multipliers and shifts, int32 [2, N]."""
    if end.scale is not None:
        return np.broadcast_to(end.scale, (1, output_channels))
    multiplier = np.broadcast_to(np.asarray(end.multiplier, np.int32), output_channels)
    shift = np.where(multiplier == 0, np.int32(-1), end.shift)  # vectors of right shifts are faster
    return np.stack([multiplier, shift.astype(np.int32)])


def steps(w: Array, deep: int, count: int = 1) -> Array:
    """Filters [H, W, I, O] -> panels [count, panels, depth / deep, PANEL, deep].

    The depth is that of every window row, W * I, padded to a multiple of `deep` with zeros; `count`
    is the number of matrices.
    """
    height, output_channels = w.shape[0], w.shape[-1]
    rows = w.reshape(height, -1, output_channels)
    filled = pad(rows, [(0, 0), (0, -rows.shape[1] % deep), (0, 0)])
    laid_out = panels(matrices(filled.reshape(-1, output_channels), count))
    return laid_out.reshape(*laid_out.shape[:2], -1, deep, library.PANEL).swapaxes(-2, -1)


def pairs(w: Array, zero: int) -> Array:
    """Depthwise filters of int8 [H, W, 1, O] -> int16 [H / 2, W, O, 2], less their zero point.

    An odd number of rows is padded with zeros.
    """
    height, width, _, output_channels = w.shape
    centered = (w.astype(np.int16) - np.int16(zero)).reshape(height, width, output_channels)
    filled = pad(centered, [(0, -height % _ROWS), (0, 0), (0, 0)])
    return filled.reshape(-1, _ROWS, width, output_channels).transpose(0, 2, 3, 1)
