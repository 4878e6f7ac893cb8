"""Products of a few float rows and a filter of small integers on a GPU: in Pallas, by Triton.

The filter is read as the program stores it, one element or several in a byte, and widened in
registers. XLA does that where an element has a byte and a row one scale; otherwise it would write a
float copy. Like the CPU kernels this one cannot be differentiated, so the context must allow it.

A program of the grid takes a tile of columns. Where these are too few to keep a GPU's memory busy,
several programs share the rows of a tile, and their sums are added afterwards, which XLA fuses with
what reads them.
"""

import dataclasses
import functools
import operator
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdelegate.op_lowering.common.triton_support import both, expect_deprecation
from jaxdelegate.op_lowering.precision import BFLOAT16

MOST_ROWS = 16  # Triton's least; of more, XLA's products were faster on an H200
_LEAST, _MOST = 16, 128  # bytes of a row in one step
# Measured on an H200 with filters of 4,096 x 4,096, 12,288 x 4,096 and 4,096 x 12,288: of 27 to 72
# forms each, these were the fastest ones or took up to 15% longer.
_COLUMNS, _WARPS, _STAGES = 32, 4, 4
_PROGRAMS, _MOST_SPLITS, _LEAST_STEPS = 512, 4, 8  # programs of the grid; a program's steps
_SHARED = 48 << 10  # bytes of shared memory, which every GPU has


@dataclasses.dataclass(frozen=True)
class Stored:
    """A filter [N, K / runs]: byte j of a row holds element j of each of its `runs` runs.

    With several runs, an element has 8 / runs bits, the first run the lowest ones. `block` is how
    many elements share a scale; 0: all of a row.
    """

    runs: int = 1
    block: int = 0

    @property
    def bits(self) -> int:
        return 8 // self.runs

    def step(self, depth: int) -> int:
        """The most bytes of a row, a power of two, whose elements have one scale for each run."""
        return self.block & -self.block if self.block else 1 << (depth - 1).bit_length()


def divides(stored: Stored, depth: int) -> bool:
    """Whether the kernel supports the blocks of rows of `depth` elements."""
    is_whole = not stored.block or depth // stored.runs % stored.block == 0
    return is_whole and stored.step(depth) >= min(_LEAST, depth)


def product(
    x: jax.Array, w: jax.Array, scales: jax.Array, stored: Stored, parts: int = 1
) -> jax.Array:
    """float32 [M, N]: the sum of `parts` products, scaled.

    Scales of blocks multiply the elements, in the type of `x`, as in the float view; with several
    parts, which add up to a float32, they multiply sums of float32.

    Args:
        x: [parts * M, K], float16 or bfloat16; M is at most `MOST_ROWS`.
        w: [N, K / runs], int8, or uint8 of several runs.
        scales: [N, blocks of a row], or [N, 1].
        stored: what `w` and `scales` are.
        parts: how many.
    """
    from jax.experimental import pallas as pl  # noqa: PLC0415 (a GPU's programs alone need it)
    from jax.experimental.pallas import triton  # noqa: PLC0415

    rows, (columns, width) = x.shape[0] // parts, w.shape
    form = _Form.of(stored, x.shape[1], parts)
    tiles = -(-columns // _COLUMNS)
    steps = -(-width // form.step)
    splits = max(1, min(_MOST_SPLITS, _PROGRAMS // tiles, steps // _LEAST_STEPS))
    share = -(-width // (form.step * splits)) * form.step
    expect_deprecation()
    call = pl.pallas_call(
        functools.partial(_kernel, form=form, share=share, rows=rows),
        out_shape=jax.ShapeDtypeStruct((splits, rows, columns), np.float32),  # type: ignore[no-untyped-call]
        grid=(tiles, splits),
        compiler_params=triton.CompilerParams(num_warps=_WARPS, num_stages=_STAGES),
        name="stored_width_product",
    )
    y: jax.Array = call(x, w, scales)
    return y.sum(0)


@dataclasses.dataclass(frozen=True)
class _Form:
    """How a program reads `stored`: `step` bytes of a row, a power of two, with `blocks` scales.

    `blocks` is for each run; 0: sums are scaled instead.
    """

    stored: Stored
    step: int
    blocks: int

    @classmethod
    def of(cls, stored: Stored, depth: int, parts: int) -> Self:
        step, block = stored.step(depth), stored.block
        scales_elements = block > 0 and parts == 1
        if scales_elements and block == step:  # a power of two: several blocks fit one step
            step = max(step, _MOST)
        step = max(_LEAST, min(_MOST, step))
        halves = 2 * parts * stored.runs * MOST_ROWS
        while step > _LEAST and _STAGES * step * (halves + _COLUMNS) > _SHARED:
            step //= 2
        return cls(stored, step, max(1, step // block) if scales_elements else 0)


def _kernel(x: Any, w: Any, scales: Any, y: Any, *, form: _Form, share: int, rows: int) -> None:
    from jax.experimental import pallas as pl  # noqa: PLC0415
    from jax.experimental.pallas import triton  # noqa: PLC0415

    stored, step = form.stored, form.step
    row, width = lax.iota(np.int32, MOST_ROWS), w.shape[1]
    column = pl.program_id(0) * _COLUMNS + lax.iota(np.int32, _COLUMNS)
    split = pl.program_id(1)
    is_row, is_column = row < rows, column < w.shape[0]

    def scaled_sums(total: jax.Array, block: Any) -> jax.Array:
        scale = triton.load(scales.at[column, block], mask=is_column, other=0)
        return total * scale.astype(np.float32)[None, :]

    def scaled_elements(elements: jax.Array, run: int, start: jax.Array) -> jax.Array:
        block = (start + run * width) // stored.block + lax.iota(np.int32, form.blocks)
        inside = both(is_column, block < (run + 1) * width // stored.block)
        scale = triton.load(scales.at[column[:, None], block[None, :]], mask=inside, other=0)
        shape = (_COLUMNS, form.blocks, -1)
        scaled = elements.reshape(shape) * scale.astype(x.dtype)[:, :, None]
        return scaled.reshape(elements.shape)

    def run_product(data: jax.Array, run: int, start: jax.Array, at: jax.Array) -> jax.Array:
        place = at + run * width
        inside, elements = both(is_row, at < width), _widened(data, run, stored.bits, x.dtype)
        if form.blocks:
            elements = scaled_elements(elements, run, start)

        def part(first: int) -> jax.Array:
            left = triton.load(x.at[first + row[:, None], place[None, :]], mask=inside, other=0)
            return lax.dot_general(
                left, elements, (((1,), (1,)), ((), ())), preferred_element_type=np.float32
            )

        return functools.reduce(operator.add, map(part, range(0, x.shape[0], rows)))

    def add(i: jax.Array, total: jax.Array) -> jax.Array:
        start = split * share + i * step
        at = start + lax.iota(np.int32, step)
        data = triton.load(
            w.at[column[:, None], at[None, :]], mask=both(is_column, at < width), other=0
        )
        for run in range(stored.runs):
            part = run_product(data, run, start, at)
            if stored.block and not form.blocks:
                part = scaled_sums(part, (start + run * width) // stored.block)
            total = total + part
        return total

    zeros = jnp.zeros((MOST_ROWS, _COLUMNS), np.float32)
    total = lax.fori_loop(np.int32(0), np.int32(share // step), add, zeros)
    if not stored.block:
        total = scaled_sums(total, 0)
    triton.store(y.at[split, row[:, None], column[None, :]], total, mask=both(is_row, is_column))


# Floats whose last bits count ones, from 2**10 and from 2**7 on: integers' bits are put there.
_ONES = {np.dtype(np.float16): (0x6400, 1 << 10), BFLOAT16: (0x4300, 1 << 7)}


def _widened(data: jax.Array, run: int, bits: int, dtype: np.dtype) -> jax.Array:
    """One run's elements as floats, by fewer instructions than conversions where they fit."""
    pattern, start = _ONES[np.dtype(dtype)]
    least = 1 << (bits - 1)
    if 2 * least > start:
        return data.astype(dtype)
    raw = (lax.bitcast_convert_type(data, np.uint8) >> np.uint8(bits * run)) & np.uint8(
        2 * least - 1
    )
    shifted = (raw ^ np.uint8(least)).astype(np.uint16) | np.uint16(pattern)
    ones: jax.Array = lax.bitcast_convert_type(shifted, dtype)
    widened: jax.Array = ones - np.dtype(dtype).type(start + least)
    return widened
