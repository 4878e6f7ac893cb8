"""Requantized products of int8 matrices on a GPU: a kernel in Pallas, compiled by Triton.

XLA fuses nothing into a matrix product that reads a sum twice or shifts it, so requantization would
be another kernel, whose input is four times as large as its output. This kernel requantizes sums in
registers, in 32 bits. Like the CPU kernels it cannot be differentiated, so the context must allow
it.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdelegate.op_lowering.common.quantized_products import INT8, INT32, Epilogue, Tensors
from jaxdelegate.op_lowering.common.triton_support import both, expect_deprecation
from jaxdelegate.op_lowering.rule import LoweringContext
from jaxdelegate.quant.jax_fixed_point import multiply_in_halves
from jaxdelegate.quant.jax_requantize import clamp

# Rows, columns and products of one step, at most; warps.
_ROWS, _COLUMNS, _DEPTH, _WARPS = 128, 128, 64, 8
_LEAST = 16  # rows, columns and depth of Triton's product; for int8 the least depth is twice that
_MOST_VALUES = 1 << 31  # positions in a matrix are int32
# Seen on an H200 only, which has 132 multiprocessors: with fewer, XLA's kernels were faster
# (MobileNet v2 at batch 1). At batch 128 both took the same time, but this kernel moves a third of
# the bytes (bench/compile_for_gpu.py), which counts more where memory is slower.
_LEAST_BLOCKS = 128


def takes(
    context: LoweringContext, tensors: Tensors, end: Epilogue, shape: tuple[int, ...]
) -> bool:
    """`shape` is rows, depth and columns."""
    x, w, _, y = tensors
    rows, depth, columns = shape
    across, down = -(-columns // _block(columns, _COLUMNS)), -(-rows // _block(rows, _ROWS))
    return (
        context.kernels.triton
        and across * down >= _LEAST_BLOCKS
        and (x.dtype, w.dtype, y.dtype, end.accumulator) == (INT8, INT8, INT8, INT32)
        and end.scale is None
        and rows * max(depth, columns) < _MOST_VALUES
        and bool(np.all((np.asarray(end.shift) >= -31) & (np.asarray(end.multiplier) >= 0)))
    )


def product(x: jax.Array, w: jax.Array, offset: jax.Array, end: Epilogue) -> jax.Array:
    """int8 [M, N] of x [M, K] and w [K, N], int8, with int32 [N] added to the sums.

    Sums wrap around and are requantized by `end`; `offset` includes the bias.
    """
    from jax.experimental import pallas as pl  # noqa: PLC0415 (a GPU's programs alone need it)
    from jax.experimental.pallas import triton  # noqa: PLC0415

    columns = w.shape[1]
    vectors = [np.full(columns, v, np.int32) for v in (end.multiplier, end.shift)]
    block = tuple(map(_block, (x.shape[0], columns), (_ROWS, _COLUMNS)))
    across = -(-columns // block[1])

    expect_deprecation()
    call = pl.pallas_call(
        functools.partial(_kernel, end, (*block, across)),
        out_shape=jax.ShapeDtypeStruct((x.shape[0], columns), INT8),  # type: ignore[no-untyped-call]
        grid=(-(-x.shape[0] // block[0]) * across,),
        compiler_params=triton.CompilerParams(num_warps=_WARPS, num_stages=2),
        name="int8_product",
    )
    y: jax.Array = call(x, w, offset, *vectors)
    return y


def _block(n: int, most: int) -> int:
    """A power of two."""
    return max(_LEAST, min(most, 1 << (n - 1).bit_length()))


def _kernel(
    end: Epilogue,
    grid: tuple[int, ...],
    x: Any,
    w: Any,
    offset: Any,
    multiplier: Any,
    shift: Any,
    y: Any,
) -> None:
    """`grid` is the rows and columns of a block, and how many blocks are side by side."""
    from jax.experimental import pallas as pl  # noqa: PLC0415
    from jax.experimental.pallas import triton  # noqa: PLC0415

    rows, columns, across = grid
    down, right = jnp.divmod(pl.program_id(0), np.int32(across))
    row = down * rows + lax.iota(np.int32, rows)
    column = right * columns + lax.iota(np.int32, columns)
    total = _sums(x, w, row, column)
    read = functools.partial(triton.load, mask=column < w.shape[1], other=0)
    total = total + read(offset.at[column])[None, :]
    steps = multiply_in_halves(
        total, read(multiplier.at[column])[None, :], read(shift.at[column])[None, :]
    )
    q = clamp(steps + np.int32(end.zero_point), *end.bounds, end.dtype)
    at = y.at[row[:, None], column[None, :]]
    triton.store(at, q, mask=both(row < x.shape[0], column < w.shape[1]))


def _sums(x: Any, w: Any, row: jax.Array, column: jax.Array) -> jax.Array:
    """int32 [rows, columns] of references x [M, K] and w [K, N]."""
    from jax.experimental.pallas import triton  # noqa: PLC0415

    depth = x.shape[1]
    step = max(2 * _LEAST, min(_DEPTH, 1 << (depth - 1).bit_length()))

    def add(i: jax.Array, total: jax.Array) -> jax.Array:
        k = i * step + lax.iota(np.int32, step)
        left = triton.load(
            x.at[row[:, None], k[None, :]], mask=both(row < x.shape[0], k < depth), other=0
        )
        right = triton.load(
            w.at[k[:, None], column[None, :]], mask=both(k < depth, column < w.shape[1]), other=0
        )
        return total + lax.dot(left, right, preferred_element_type=np.int32)

    zeros = jnp.zeros((row.size, column.size), np.int32)
    total: jax.Array = lax.fori_loop(np.int32(0), np.int32(-(-depth // step)), add, zeros)
    return total
