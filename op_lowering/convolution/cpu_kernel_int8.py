"""Convolutions and FULLY_CONNECTED of 8-bit integers by this package's CPU kernels.

The kernels sum in int32 and requantize while sums are in registers or the nearest cache; results
equal those of XLA's algorithms bit for bit. They multiply x as unsigned bytes, so the contribution
of x's zero point, and of int8's 128, to each sum is subtracted from the bias ahead of time.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from jaxdelegate.kernels.library import DEPTHWISE_INT8, PANEL, PRODUCT_INT8
from jaxdelegate.op_lowering.common.basics import Array, pad
from jaxdelegate.op_lowering.common.integer_products import moved, to_int8
from jaxdelegate.op_lowering.common.quantization import zero_point_of
from jaxdelegate.op_lowering.common.quantized_products import INT8, INT32, UINT8, Epilogue, Tensors
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

QUAD = 4  # adjacent values of the depth in a panel (kDeep in elements.h)
_ROWS = 2  # adjacent window rows in a depthwise filter (kRows)


def algorithms(
    context: LoweringContext, tensors: Tensors, c: Convolution | None = None
) -> tuple[str, ...]:
    """For operators that LiteRT's integer kernels accept; `c` is None for FULLY_CONNECTED."""
    x, w, bias, y = tensors
    are_bytes = x.dtype == w.dtype == y.dtype and x.dtype in (INT8, UINT8)
    fits = are_bytes and w.const is not None and (bias is None or bias.dtype == INT32)
    return (NATIVE,) if context.native_kernels and fits and takes(c) else ()


def takes(c: Convolution | None) -> bool:
    """Whether the kernels support this geometry; None: FULLY_CONNECTED's."""
    return c is None or (len(c.windows) == 2 and (runs_as_products(c) or runs_by_channel(c)))


def is_chosen(context: LoweringContext, tensors: Tensors, c: Convolution | None = None) -> bool:
    return context.algorithm in (None, NATIVE) and bool(algorithms(context, tensors, c))


def convolution(
    c: Convolution, spatial_io: Prepare, tensors: Tensors, w_zero: int, end: Epilogue
) -> Lowered:
    """CONV_2D or DEPTHWISE_CONV_2D, [N, H, W, C] -> [N, *out, O].

    `spatial_io` transposes the file's filter to [H, W, I, O]; `w_zero` is the filter's zero point,
    as stored.
    """
    zero, out = moved(w_zero, tensors.w.dtype), (c.batch, *c.out, c.output_channels)
    filters = to_int8(spatial_io(tensors.w.const))
    if runs_by_channel(c):
        call = _call(DEPTHWISE_INT8, geometry(c), out, tensors, 0, end)
        return _lowered(call, tensors, filters, zero, lambda w: pairs(to_int8(spatial_io(w)), zero))
    together = packed_groups(c, QUAD) if zero == 0 else 1
    count = c.groups // together
    call = _call(PRODUCT_INT8, geometry(c, together), out, tensors, zero, end, matrices=count)
    return _lowered(
        call, tensors, filters, zero, lambda w: quads(to_int8(spatial_io(w)), count), count
    )


def fully_connected(rows: int, tensors: Tensors, w_zero: int, end: Epilogue) -> Lowered:
    """[..., K] x [N, K] -> y, with rows * N elements.

    `w_zero` is the zero point of the filter as int8 (see `to_int8`).
    """
    output_channels, depth = tensors.w.shape
    fields = matrix_geometry(rows, depth, output_channels)
    call = _call(PRODUCT_INT8, fields, (rows, output_channels), tensors, w_zero, end)

    def product(x: jax.Array, *rest: jax.Array) -> jax.Array:
        whole = x.reshape(-1)[: rows * depth]  # LiteRT's kernel ignores the rest
        return call(whole.reshape(rows, depth), *rest).reshape(tensors.y.shape)

    def prepare(w: Array) -> Array:
        return quads(to_int8(w).transpose(1, 0).reshape(1, 1, depth, output_channels))

    return _lowered(
        product, tensors, to_int8(np.asarray(tensors.w.const)).transpose(1, 0), w_zero, prepare
    )


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
        total = jnp.asarray(offset) if bias is None else bias.reshape(-1) + offset
        return (call(x, w, total),)

    return Lowered(run, {1: prepare}, (NATIVE, matrices))


def _call(
    target: str,
    fields: tuple[int, ...],
    out: Shape,
    tensors: Tensors,
    w_zero: int,
    end: Epilogue,
    matrices: int = 1,
) -> Callable[..., jax.Array]:
    """The function of x, weights in the kernel's layout, and a bias [N].

    Bias and scales are padded to whole panels for each matrix.
    """
    output_channels = out[-1] // matrices
    more = -output_channels % PANEL if target == PRODUCT_INT8 else 0
    edges = [(0, 0), (0, more)]
    y_type = jax.ShapeDtypeStruct(out, end.dtype)  # type: ignore[no-untyped-call]
    call = jax.ffi.ffi_call(target, y_type, vmap_method="sequential")
    values = (zero_point_of(tensors.x), w_zero, end.zero_point, *end.bounds)
    scales = _scales(end, out[-1])
    filled = np.pad(scales.reshape(-1, output_channels), edges, mode="edge").reshape(
        len(scales), -1
    )
    attributes = {"geometry": np.array(fields, np.int64), "integers": np.array(values, np.int64)}

    def run(x: jax.Array, w: jax.Array, bias: jax.Array) -> jax.Array:
        sums = jnp.pad(bias.reshape(matrices, output_channels), edges).reshape(-1)
        y: jax.Array = call(x, w, sums, filled, **attributes)
        return y

    return run


def _scales(end: Epilogue, output_channels: int) -> np.ndarray:
    """Scales, float64 [1, N], or multipliers and shifts, int32 [2, N]."""
    if end.scale is not None:
        return np.broadcast_to(end.scale, (1, output_channels))
    multiplier = np.broadcast_to(np.asarray(end.multiplier, np.int32), output_channels)
    shift = np.where(multiplier == 0, np.int32(-1), end.shift)  # vectors of right shifts are faster
    return np.stack([multiplier, shift.astype(np.int32)])


def quads(w: Array, count: int = 1) -> Array:
    """Filters of int8 [H, W, I, O] -> panels [count, panels, depth / 4, PANEL, 4].

    The depth is that of every window row, W * I, padded to a multiple of 4 with zeros; `count` is
    the number of matrices.
    """
    height, output_channels = w.shape[0], w.shape[-1]
    rows = w.reshape(height, -1, output_channels)
    filled = pad(rows, [(0, 0), (0, -rows.shape[1] % QUAD), (0, 0)])
    laid_out = panels(matrices(filled.reshape(-1, output_channels), count))
    return laid_out.reshape(*laid_out.shape[:2], -1, QUAD, PANEL).swapaxes(-2, -1)


def pairs(w: Array, zero: int) -> Array:
    """Depthwise filters of int8 [H, W, 1, O] -> int16 [H / 2, W, O, 2], less their zero point.

    An odd number of rows is padded with zeros.
    """
    height, width, _, output_channels = w.shape
    centered = (w.astype(np.int16) - np.int16(zero)).reshape(height, width, output_channels)
    filled = pad(centered, [(0, -height % _ROWS), (0, 0), (0, 0)])
    return filled.reshape(-1, _ROWS, width, output_channels).transpose(0, 2, 3, 1)
