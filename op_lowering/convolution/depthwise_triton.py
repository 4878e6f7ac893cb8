"""Depthwise convolutions of floats on a GPU: a kernel in Pallas, which XLA compiles by Triton.

cuDNN needs a padded image and a separate kernel for the epilogue. XLA's loop over a sum of taps
reads 16-bit values one by one. This kernel reads 16 bytes of neighboring channels at once, adds in
float32, applies bias, residual and activation, and rounds once. Like the CPU kernels it cannot be
differentiated, so the context must allow it.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdelegate.op_lowering.common.downcast import downcast
from jaxdelegate.op_lowering.common.quantized_products import Tensors
from jaxdelegate.op_lowering.common.triton_support import expect_deprecation
from jaxdelegate.op_lowering.common.window import taps
from jaxdelegate.op_lowering.convolution.algorithms import Convolution, is_short_on_gpu
from jaxdelegate.op_lowering.precision import FLOAT32
from jaxdelegate.op_lowering.rule import Lowered, LoweringContext, Prepare
from jaxdelegate.op_lowering.spec import Grid

TRITON = "triton"  # the algorithm's name

_MOST_TAPS = 64  # all written out
_VECTOR = 8  # channels that one thread reads; a divisor of their number
# The most channels and values that one program computes: 4 warps, 16 values for each thread.
_CHANNELS, _VALUES, _WARPS = 64, 2048, 4
_MOST_VALUES = 1 << 31  # a tensor's positions are int32

End = Callable[[jax.Array], jax.Array]


def takes(context: LoweringContext, tensors: Tensors, c: Convolution) -> bool:
    """Whether the kernel supports a convolution of these tensors."""
    specs = [spec for spec in tensors if spec is not None]
    sizes = (tensors.x.shape, tensors.y.shape)
    return (
        context.kernels.triton
        and all(spec.dtype == FLOAT32 and not spec.is_quantized for spec in specs)
        and len(c.windows) == 2
        and c.is_depthwise
        and c.output_channels == c.channels
        and c.channels % _VECTOR == 0
        and c.products <= _MOST_TAPS
        and max(map(math.prod, sizes)) < _MOST_VALUES
    )


def is_chosen(context: LoweringContext, tensors: Tensors, c: Convolution) -> bool:
    """By name, or by default if the operator is long enough."""
    if not takes(context, tensors, c):
        return False
    return context.algorithm == TRITON or (context.algorithm is None and not is_short_on_gpu(c))


def convolution(context: LoweringContext, c: Convolution, spatial_io: Prepare, end: End) -> Lowered:
    """DEPTHWISE_CONV_2D, [N, H, W, C] -> [N, *out, C].

    Its function also takes a residual, after the bias. Both, and the input, are float32, float16
    or bfloat16; the result has the precision policy's storage dtype. `spatial_io` transposes the
    file's filter to [H, W, 1, C]; `end` is applied to the sums of products, bias and residual, in
    float32.
    """
    grid = context.result.grid
    whole = end if grid is None else lambda total: on_grid(end(total), grid)
    run = functools.partial(depthwise, c, whole, context.precision.storage)
    return Lowered(
        lambda *arrays: (run(*arrays),),
        {1: lambda w: spatial_io(w).reshape(-1, c.channels)},
        (TRITON,),
        takes_reduced=True,
        is_on_grid=grid is not None,
    )


def on_grid(x: jax.Array, grid: Grid) -> jax.Array:
    """float32 on the grid of a quantized tensor; see lowering/fake_quantization.py, `simulate`."""
    first, last, inverse, low, scale = map(np.float32, grid)
    inside = jnp.minimum(jnp.where(x > first, x, first), last)
    steps = (inside - first) * inverse
    whole = jnp.floor(steps)  # steps are not negative: halves go up
    return (whole + (steps - whole >= np.float32(0.5)).astype(np.float32) + low) * scale


def depthwise(
    c: Convolution,
    end: End,
    dtype: np.dtype,
    x: jax.Array,
    w: jax.Array,
    bias: jax.Array | None = None,
    residual: jax.Array | None = None,
) -> jax.Array:
    """The convolution of x [N, H, W, C] with w, float32 [taps, C]; a result of `dtype`."""
    from jax.experimental import pallas as pl  # noqa: PLC0415 (only a GPU's programs need it)
    from jax.experimental.pallas import triton  # noqa: PLC0415

    arrays = [x, w, *(v for v in (bias, residual) if v is not None)]
    shape = (c.batch, *c.out, c.channels)
    height, width, channels = _block(c)
    down, across, deep = -(-c.out[0] // height), -(-c.out[1] // width), c.channels // channels

    def kernel(*refs: Any) -> None:
        x_ref, w_ref, *rest, y_ref = refs
        # Channels first: programs side by side share what they read.
        tile, part = jnp.divmod(pl.program_id(0), np.int32(deep))
        tile, column = jnp.divmod(tile, np.int32(across))
        image, row = jnp.divmod(tile, np.int32(down))
        pixels = _pixels(c, row * height, column * width, height, width)
        at = part * channels + lax.iota(np.int32, channels)
        total = _sum_of_taps(c, x_ref, w_ref, image, pixels, at)
        where = _positions(image, pixels, c.out, at, c.channels)
        if bias is not None:
            total = total + triton.load(rest[0].at[at]).astype(np.float32)[None, :]
        if residual is not None:
            total = total + triton.load(rest[-1].at[where]).astype(np.float32)
        triton.store(y_ref.at[where], downcast(end(total), dtype, infinities=False))

    expect_deprecation()
    call = pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((math.prod(shape),), dtype),  # type: ignore[no-untyped-call]
        grid=(c.batch * down * across * deep,),
        compiler_params=triton.CompilerParams(num_warps=_WARPS, num_stages=1),
        name="depthwise",
    )
    y: jax.Array = call(*(v.reshape(-1) for v in arrays))
    return y.reshape(shape)


def _block(c: Convolution) -> tuple[int, int, int]:
    """Rows, columns and channels that one program computes: powers of two."""
    channels = math.gcd(c.channels, _CHANNELS)
    pixels = _VALUES // channels
    square = 1 << (pixels.bit_length() - 1) // 2
    width = min(square, 1 << (c.out[1] - 1).bit_length())
    return pixels // width, width, channels


def _pixels(
    c: Convolution, top: jax.Array, left: jax.Array, height: int, width: int
) -> tuple[jax.Array, jax.Array]:
    """Rows and columns of a tile, int32 [pixels] each.

    Beyond the image they are its last ones, to which several programs then write equal values.
    """
    within = lax.iota(np.int32, height * width)
    rows = jnp.minimum(top + within // width, c.out[0] - 1)
    return rows, jnp.minimum(left + within % width, c.out[1] - 1)


def _positions(
    image: jax.Array,
    pixels: tuple[jax.Array, jax.Array],
    size: tuple[int, ...],
    at: jax.Array,
    channels: int,
) -> jax.Array:
    """The flat indices of [pixels, channels `at`] in an array [N, *size, channels]."""
    row, column = pixels
    return (((image * size[0] + row) * size[1] + column) * channels)[:, None] + at[None, :]


def _sum_of_taps(
    c: Convolution,
    x: Any,
    w: Any,
    image: jax.Array,
    pixels: tuple[jax.Array, jax.Array],
    at: jax.Array,
) -> jax.Array:
    """float32 [pixels, channels `at`]; `x` and `w` are references."""
    from jax.experimental.pallas import triton  # noqa: PLC0415

    size = tuple(d.n_in for d in c.windows)
    top, left = (p * d.stride - d.pads[0] for p, d in zip(pixels, c.windows, strict=True))
    start = _positions(image, (top, left), size, at, c.channels)
    total = jnp.zeros(start.shape, np.float32)
    for i, tap in enumerate(taps(c.windows)):
        down, across = (t * d.dilation for t, d in zip(tap, c.windows, strict=True))
        is_inside = _is_inside(top + down, size[0]) & _is_inside(left + across, size[1])
        values = triton.load(
            x.at[start + (down * size[1] + across) * c.channels],
            mask=jnp.broadcast_to(is_inside[:, None], start.shape),
            other=0,
        )
        row = triton.load(w.at[i * c.channels + at])
        total = total + values.astype(np.float32) * row.astype(np.float32)[None, :]
    return total


def _is_inside(position: jax.Array, size: int) -> jax.Array:
    return (position >= 0) & (position < size)
