"""Convolutions and FULLY_CONNECTED of float32 by this package's CPU kernels.

The kernels add the bias and clamp while sums are in registers, and read weights that were laid out
ahead of time; XLA sees a call. It can be neither differentiated nor exported, so the context must
allow it, and XLA computes everything that the kernels do not support.
"""

import math
from collections.abc import Callable, Hashable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from jaxdelegate.kernels import library
from jaxdelegate.op_lowering.common.basics import LARGEST, Array, pad
from jaxdelegate.op_lowering.common.native_call import native_call
from jaxdelegate.op_lowering.common.quantized_products import Tensors
from jaxdelegate.op_lowering.convolution.algorithms import Convolution
from jaxdelegate.op_lowering.convolution.winograd import (
    has_few_filters,
    is_possible,
    transformed,
    work,
)
from jaxdelegate.op_lowering.precision import BFLOAT16, FLOAT32
from jaxdelegate.op_lowering.records.enums import ActivationFunctionType as Act
from jaxdelegate.op_lowering.records.enums import Nonlinearity
from jaxdelegate.op_lowering.rule import Lowered, LoweringContext, Prepare
from jaxdelegate.op_lowering.spec import Grid, Shape

# The names of these algorithms: a product of matrices or a sum of taps, Winograd's F(2x2, 3x3), and
# a product of matrices whose operands are rounded to bfloat16.
NATIVE, NATIVE_WINOGRAD, NATIVE_BFLOAT16 = "native", "native_winograd", "native_bfloat16"

# For at least this many products Winograd's algorithm is the default: measured on AVX-512 and AVX2,
# on the shapes of ResNet50, DenseNet121, Inception v3 and U-Net. Less is not worth its rounding.
_LEAST_PRODUCTS = 4_000_000

# XLA computes groups of at most this many output channels and products: measured as above, on
# images of 14 to 56 pixels. If a panel is nearly empty, then also those of more products.
_NARROW, _SHORT = 7, 8
_FEW, _LONG = 2, 40

# Output channels of groups whose products share a panel: a vector of 8 or 16 holds several.
_SHARES = (2, 4, 8)
_LEAST_SAVED = 4  # products for each copied value of float32

_Range = tuple[float, float]
RANGES = {
    Act.NONE: (-LARGEST, LARGEST),
    Act.RELU: (0.0, LARGEST),
    Act.RELU_N1_TO_1: (-1.0, 1.0),
    Act.RELU6: (0.0, 6.0),
}


def algorithms(
    context: LoweringContext, tensors: Tensors, c: Convolution | None = None
) -> tuple[str, ...]:
    """The default first; `c` is None for FULLY_CONNECTED."""
    specs = [spec for spec in tensors if spec is not None]
    is_float32 = all(spec.dtype == np.float32 and not spec.is_quantized for spec in specs)
    if not (context.kernels.cpu and is_float32 and tensors.w.const is not None):
        return ()
    operand = _operand(context, tensors, c)
    if operand == FLOAT32:
        return (NATIVE,) if c is None else _algorithms_of(c)
    if operand != BFLOAT16 or not _multiplies_reduced(context, c, tensors):
        return ()
    others = () if c is None or c.is_pointwise else _algorithms_of(c)
    return (NATIVE_BFLOAT16, *others)


def _operand(context: LoweringContext, tensors: Tensors, c: Convolution | None) -> np.dtype | None:
    """The policy's dtype of operands; None if it stores tensors in reduced precision.

    The policy says what XLA does well. The kernel also multiplies windows and few rows in bfloat16.
    """
    policy, w, output_channels = context.precision, tensors.w, tensors.y.shape[-1]
    if policy.storage != FLOAT32:
        return None
    if output_channels >= library.PANEL and _multiplies_reduced(context, c, tensors):
        return policy.operand_dtype(w.dtype, w.const)
    if c is not None and not (c.groups == 1 and c.is_pointwise):
        return policy.convolved(w.dtype, w.const)
    rows = math.prod(tensors.y.shape) // max(output_channels, 1)
    return policy.operand_dtype(w.dtype, w.const, rows=rows, output_channels=output_channels)


def _multiplies_reduced(context: LoweringContext, c: Convolution | None, tensors: Tensors) -> bool:
    is_matrix = c is None or (c.groups == 1 and len(c.windows) == 2)
    depth = tensors.w.shape[1] if c is None else c.channels
    sums = context.precision.accumulate_float32
    return context.kernels.cpu_bfloat16 and is_matrix and depth % 2 == 0 and sums


def _algorithms_of(c: Convolution) -> tuple[str, ...]:
    if len(c.windows) != 2:
        return ()
    if c.groups > 1:
        return (NATIVE,) if runs_by_channel(c) or runs_as_products(c) else ()
    if not is_possible(c) or c.channels < library.LEAST_CHANNELS:
        return (NATIVE,)
    pays = work(c) >= _LEAST_PRODUCTS and c.output_channels >= library.PANEL and has_few_filters(c)
    return (NATIVE_WINOGRAD, NATIVE) if pays else (NATIVE, NATIVE_WINOGRAD)


def runs_as_products(c: Convolution) -> bool:
    """Whether the kernels multiply matrices, windows by filters, one product for each group.

    They do for groups only where that is faster than XLA.
    """
    if c.groups == 1:
        return True
    output_channels = c.output_channels // c.groups
    is_empty = output_channels <= _FEW and packed_groups(c) == 1
    pays = output_channels > _NARROW or c.products > (_LONG if is_empty else _SHORT)
    return pays and c.depth > 1 and c.windows[1].dilation == 1


def runs_by_channel(c: Convolution) -> bool:
    return c.is_depthwise and c.output_channels == c.channels >= library.LEAST_CHANNELS


def chosen(context: LoweringContext, tensors: Tensors, c: Convolution | None = None) -> str | None:
    """None if XLA computes the operator."""
    names = algorithms(context, tensors, c)
    return next((name for name in names if context.algorithm in (None, name)), None)


def convolution(
    name: str,
    c: Convolution,
    activation: Act,
    spatial_io: Prepare,
    nonlinearity: Nonlinearity = Nonlinearity.NONE,
    grid: Grid | None = None,
) -> Lowered:
    """CONV_2D or DEPTHWISE_CONV_2D, [N, H, W, C] -> [N, *out, O].

    Its function also takes a residual of that shape, after the bias, and adds it before the
    activation. `spatial_io` transposes the file's filter to [H, W, I, O]; `nonlinearity` is the
    activation if that is not a clamp; the result is rounded to the grid, if there is one.
    """
    target, layout = _kernel(name, c)
    out = (c.batch, *c.out, c.output_channels)
    fields = geometry(c, packed_groups(c))
    run = call(target, fields, RANGES[activation], out, nonlinearity, grid)
    prepare = {1: lambda w: layout(spatial_io(w))}
    return Lowered(run, prepare, (name, c.groups), is_on_grid=grid is not None)


def _kernel(name: str, c: Convolution) -> tuple[str, Prepare]:
    """The call's target, and its layout of a filter [H, W, I, O]."""
    if name == NATIVE_WINOGRAD:
        return library.WINOGRAD, lambda w: panels(transformed(c, w))
    if name == NATIVE_BFLOAT16:
        return library.PRODUCT_BFLOAT16, lambda w: pairs(w.reshape(-1, c.output_channels))
    if runs_by_channel(c):
        return library.DEPTHWISE, lambda w: w.reshape(-1, c.output_channels)
    return library.PRODUCT, lambda w: panels(matrices(w, c.groups // packed_groups(c)))


def fully_connected(
    name: str, tensors: Tensors, activation: Act, grid: Grid | None = None
) -> Lowered:
    """[..., K] x [N, K] -> y, with rows * N elements; see `convolution`."""
    return _matrix_product(
        name, tensors, RANGES[activation], lambda w: w.transpose(1, 0), name, grid
    )


def batch_matmul(name: str, tensors: Tensors, *, is_transposed: bool) -> Lowered:
    """[..., K] times one constant matrix -> [..., N]; infinities stay.

    The file stores it as [..., K, N], or [..., N, K] if transposed; `tensors.w` is its [N, K].
    """
    order, shape = (1, 0) if is_transposed else (0, 1), tensors.w.shape
    stored = shape if is_transposed else shape[::-1]

    def by_depth(w: Array) -> Array:
        return w.reshape(stored).transpose(order)

    everything = -math.inf, math.inf
    return _matrix_product(name, tensors, everything, by_depth, (name, "batch_matmul", stored))


def _matrix_product(
    name: str,
    tensors: Tensors,
    limits: _Range,
    by_depth: Prepare,
    layout_key: Hashable,
    grid: Grid | None = None,
) -> Lowered:
    """`by_depth` makes the file's filter [K, N]."""
    x, w, _, y = tensors
    output_channels, depth = w.shape
    rows = math.prod(x.shape) // depth
    is_reduced = name == NATIVE_BFLOAT16
    target, layout = (library.PRODUCT_BFLOAT16, pairs) if is_reduced else (library.PRODUCT, panels)
    fields = matrix_geometry(rows, depth, output_channels)
    product = call(target, fields, limits, (rows, output_channels), grid=grid)
    out = y.shape

    def run(x: jax.Array, w: jax.Array, bias: jax.Array | None = None) -> tuple[jax.Array]:
        whole = x.reshape(-1)[: rows * depth]  # LiteRT's kernel ignores the rest
        (y,) = product(whole.reshape(rows, depth), w, bias)
        return (y.reshape(out),)

    prepare = {1: lambda w: layout(by_depth(w))}
    return Lowered(run, prepare, layout_key, is_on_grid=grid is not None)


def panels(w: Array) -> Array:
    """Matrices [..., K, N] -> [..., panels, depth, PANEL], padded with zeros."""
    *more, depth, output_channels = w.shape
    filled = pad(w, [*[(0, 0)] * (len(more) + 1), (0, -output_channels % library.PANEL)])
    return filled.reshape(*more, depth, -1, library.PANEL).swapaxes(-2, -3)


def pairs(w: Array) -> Array:
    """A matrix [K, N] -> bfloat16 [panels, depth / 2, PANEL, 2]; the depth is even."""
    depth = w.shape[0]
    laid_out = panels(w.astype(BFLOAT16))
    return laid_out.reshape(-1, depth // 2, 2, library.PANEL).swapaxes(-2, -1)


def matrices(w: Array, count: int) -> Array:
    """Filters [..., O] of `count` groups, or packed ones -> [count, depth, O / count]."""
    return w.reshape(-1, count, w.shape[-1] // count).transpose(1, 0, 2)


def packed_groups(c: Convolution, deep: int = 1) -> int:
    """How many groups share a panel: one group of few output channels would leave it mostly empty.

    `deep`: adjacent values of the depth in a panel.
    """
    output_channels = c.output_channels // c.groups
    fits = c.groups > 1 and output_channels in _SHARES and 0 < c.depth <= output_channels * deep
    count = library.PANEL // output_channels if fits and c.depth % deep == 0 else 1
    # Each value is copied for every column of its group, and saves products of other panels.
    taps, steps = math.prod(w.size for w in c.windows), math.prod(w.stride for w in c.windows)
    pays = deep > 1 or (count - 1) * taps >= _LEAST_SAVED * steps
    return count if c.groups % count == 0 and pays else 1


def geometry(c: Convolution, packed: int = 1) -> tuple[int, ...]:
    """A convolution's `Geometry` of kernels.h."""
    height, width = c.windows
    image = (c.batch, height.n_in, width.n_in, c.channels)
    sizes = (*image, *c.out, c.output_channels, c.groups, packed, height.size, width.size)
    steps = (height.stride, width.stride, height.dilation, width.dilation)
    return (*sizes, *steps, height.pads[0], width.pads[0])


def matrix_geometry(rows: int, depth: int, output_channels: int) -> tuple[int, ...]:
    """A matrix product's `Geometry`: a convolution with a window of one pixel."""
    return (1, rows, 1, depth, rows, 1, output_channels, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0)


def call(
    target: str,
    fields: Sequence[int],
    limits: _Range,
    out: Shape,
    nonlinearity: Nonlinearity = Nonlinearity.NONE,
    grid: Grid | None = None,
) -> Callable[..., tuple[jax.Array]]:
    """The function of x, weights in the kernel's layout, bias and perhaps a residual."""
    attributes = {
        "geometry": np.array(fields, np.int64),
        "range": np.array(limits, np.float32),
        "then": np.array([nonlinearity], np.int64),
    }
    if grid is not None:
        attributes["to_grid"] = np.array(grid, np.float32)
    kernel = native_call(target, out, **attributes)

    def run(
        x: jax.Array, w: jax.Array, bias: jax.Array | None = None, *residual: jax.Array
    ) -> tuple[jax.Array]:
        summed = jnp.zeros(out[-1], jnp.float32) if bias is None else bias.reshape(-1)
        return (kernel(x, w, summed, *residual),)

    return run
