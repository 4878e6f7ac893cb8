"""Products of a few rows and filters on a GPU, and what surrounds them: in Pallas, by Triton.

A filter is read as the program stores it, one element or several in a byte, and widened in
registers. XLA does that where an element has a byte and a row one scale; otherwise it would write a
float copy. The kernel also normalizes the rows first, multiplies them by several filters, gates one
product by another one, and adds a residual, each of which would be another kernel. Like the CPU
kernels this one cannot be differentiated, so the context must allow it.

A program of the grid takes a tile of rows and columns; those of the same columns follow each other,
so that a filter comes from memory once. One row is multiplied without a matrix unit, which takes 16
rows at least. Where a product alone has too few tiles to keep a GPU's memory busy, several programs
share the depth of a tile, and XLA adds their sums, fused with what reads them. A kernel that does
more chooses its tile by what each processor reads.
"""

import dataclasses
import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax import lax

from jaxdelegate.op_lowering.common.basics import LARGEST, finite
from jaxdelegate.op_lowering.common.triton_support import both, expect_deprecation
from jaxdelegate.op_lowering.dtypes import HALVES
from jaxdelegate.op_lowering.precision import BFLOAT16, FLOAT16, FLOAT32

MOST_ROWS = 512  # XLA widens filters in memory, which more rows hide
_TILE_ROWS = 64  # at most: sums are in registers
_FEW_ROWS = 16  # the least of Triton's product
_LEAST, _MOST = 16, 128  # bytes of a filter's row in one step
_SUMS = 1 << 13  # of one row's products, which registers hold
# Measured on an H200 with filters of 4,096 x 4,096, 12,288 x 4,096 and 4,096 x 12,288, at 2 to 16
# rows: of 27 to 72 forms each, these were the fastest ones or took up to 15% longer. What concerns
# one row, more rows, or a kernel that does more was never measured.
_COLUMNS, _WARPS, _STAGES = 32, 4, 4
_PROGRAMS, _MOST_SPLITS, _LEAST_STEPS = 4, 4, 8  # programs for each processor; a program's steps
_SHARED = 48 << 10  # bytes of shared memory, which every GPU has
_NORMALIZED = 1 << 16  # values that a processor reads once more to normalize them
_MOST_VALUES = 1 << 31  # positions in an array are int32
_PARTS = 3  # a bfloat16 has a third of a float32's bits

Gate = Callable[[jax.Array], jax.Array]


@dataclasses.dataclass(frozen=True)
class Stored:
    """A filter [N, K / runs]: element j of a row of the array has one value of each run.

    With several runs, an element has 8 / runs bits, the first run the lowest ones. `block` is how
    many values share a scale; 0: all of a row. A filter of floats has one run.
    """

    runs: int = 1
    block: int = 0

    @property
    def bits(self) -> int:
        return 8 // self.runs

    def step(self, depth: int) -> int:
        """The most bytes of a row, a power of two, whose elements have one scale for each run."""
        return self.block & -self.block if self.block else _power(depth)


class Filter(NamedTuple):
    """The arrays of a filter."""

    w: Any  # [N, K / runs], int8, uint8 of several runs, or floats
    scales: Any = None  # [N, blocks of a row], or [N, 1]; None: of floats
    bias: Any = None  # float32 [N]


@dataclasses.dataclass(frozen=True)
class Around:
    """What a kernel computes besides the products."""

    # The dtype in which rows are multiplied. A float32 row is the sum of three rows of bfloat16;
    # one row alone stays float32.
    operand: np.dtype
    results: tuple[np.dtype, ...]  # the dtypes of the results
    epsilon: float = 0.0  # of root-mean-square normalization before the products
    # What the first of two products goes through before it multiplies the second one; None: each
    # product is a result.
    gate: Gate | None = None
    processors: int = 132  # how many multiprocessors the GPU has


def divides(stored: Stored, depth: int) -> bool:
    """Whether the kernel supports the blocks of rows of `depth` elements."""
    is_whole = not stored.block or depth // stored.runs % stored.block == 0
    return is_whole and stored.step(depth) >= min(_LEAST, depth)


def fits(columns: int, depth: int) -> bool:
    """Whether 32 bits count the values of a filter [columns, depth]."""
    return max(columns, MOST_ROWS) * depth < _MOST_VALUES


class Tile(NamedTuple):
    """The rows and columns of one program."""

    rows: int
    columns: int

    def across(self, columns: Sequence[int]) -> int:
        """How many tiles these filters take, each its own."""
        return sum(-(-n // self.columns) for n in columns)

    def waves(self, rows: int, columns: Sequence[int], processors: int) -> int:
        """How many programs a processor runs, one after the other."""
        return -(-self.across(columns) * -(-rows // self.rows) // processors)


def tile(
    rows: int, columns: Sequence[int], row_bytes: tuple[int, int], processors: int, *, splits: bool
) -> Tile:
    """The tile with which each processor reads the least.

    Args:
        rows: of the input.
        columns: of each filter.
        row_bytes: what a program reads of a row of the input, and of a filter.
        processors: of the GPU.
        splits: whether several programs may share a tile.
    """
    height = 1 if rows == 1 else min(_TILE_ROWS, max(_LEAST, _power(rows)))
    if splits and 1 < rows <= _FEW_ROWS:
        return Tile(height, _COLUMNS)
    widths = (32, 16, 8, 4) if rows == 1 else (128, 64, 32, 16)

    def read(t: Tile) -> int:
        waves = t.waves(rows, columns, processors)
        return waves * (min(rows, t.rows) * row_bytes[0] + t.columns * row_bytes[1])

    return min((Tile(height, width) for width in widths), key=read)


def normalizes(rows: int, depth: int, waves: int) -> bool:
    """Whether the kernel normalizes rows, which each of its programs reads twice then.

    Two kernels of XLA would take as long as a processor takes for about `_NORMALIZED` values.
    """
    return waves * rows * depth <= _NORMALIZED


def splits(tiles: int, steps: int, processors: int) -> int:
    """How many programs share a tile, whose depth takes this number of steps."""
    wanted = min(_MOST_SPLITS, _PROGRAMS * processors // tiles, steps // _LEAST_STEPS)
    return max(1, wanted)


def products(
    x: jax.Array,
    filters: Sequence[Filter],
    scale: jax.Array | None = None,
    residual: jax.Array | None = None,
    *,
    forms: Sequence[Stored],
    around: Around,
) -> tuple[jax.Array, ...]:
    """Each product [M, N] of the rows and a filter; with a gate, one of both.

    Scales of blocks multiply the elements, in the operand's type, as in the float view; those of
    several float32 rows multiply sums of float32. Sums are float32.

    Args:
        x: [M, K], float32, float16 or bfloat16.
        filters: the arrays.
        scale: [K], of the normalization; None: rows are multiplied as they are.
        residual: [M, N], which is added to the only result.
        forms: what each filter is; with a gate, both are the same.
        around: what else is computed.
    """
    from jax.experimental import pallas as pl  # noqa: PLC0415 (a GPU's programs alone need it)
    from jax.experimental.pallas import triton  # noqa: PLC0415

    (rows, depth), processors = x.shape, around.processors
    columns = [len(f.w) for f in filters[: len(around.results)]]
    is_alone = scale is None and residual is None and len(filters) == 1
    read = x.dtype.itemsize * depth, sum(_row_bytes(f) for f in filters) // len(filters)
    part = tile(rows, columns, read, processors, splits=is_alone)
    if scale is not None and not normalizes(rows, depth, part.waves(rows, columns, processors)):
        x, scale = _reduced(normalized(x, scale, around.epsilon), around.operand), None
    plans = [_Form.of(s, f, x, around, part) for f, s in zip(filters, forms, strict=True)]
    tiles = -(-rows // part.rows), part.across(columns)
    steps = -(-filters[0].w.shape[1] // plans[0].step)
    shares = splits(math.prod(tiles), steps, processors) if is_alone else 1
    leaves, tree = jax.tree.flatten((x, scale, residual, tuple(filters)))
    expect_deprecation()
    call = pl.pallas_call(
        functools.partial(_kernel, tree=tree, forms=plans, around=around, shares=shares),
        out_shape=[
            jax.ShapeDtypeStruct((shares, rows, n), FLOAT32 if shares > 1 else dtype)  # type: ignore[no-untyped-call]
            for n, dtype in zip(columns, around.results, strict=True)
        ],
        grid=(*tiles, shares),
        compiler_params=triton.CompilerParams(num_warps=_WARPS, num_stages=_STAGES),
        name="stored_width_product",
    )
    results: Sequence[jax.Array] = call(*leaves)
    if shares == 1:
        return tuple(y[0] for y in results)
    total, bias = results[0].sum(0), filters[0].bias
    return (_result(total if bias is None else total + bias[None, :], around.results[0]),)


def normalized(x: jax.Array, scale: jax.Array, epsilon: float) -> jax.Array:
    """float32 rows [M, K] over the roots of their mean squares, times scale [K]."""
    wide = x.astype(np.float32)
    mean = jnp.mean(wide * wide, axis=1, keepdims=True)
    inverse = lax.rsqrt(finite(mean + np.float32(epsilon)))
    return wide * inverse * scale[None, :]


def _row_bytes(given: Filter) -> int:
    bytes_each: int = given.w.shape[1] * given.w.dtype.itemsize
    return bytes_each


@dataclasses.dataclass(frozen=True)
class _Form:
    """How a program reads a filter: `step` bytes of a row, a power of two, with `blocks` scales.

    `blocks` is for each run; 0: sums are scaled instead. Elements become `dtype`.
    """

    stored: Stored
    step: int
    blocks: int
    dtype: np.dtype
    tile: Tile

    @classmethod
    def of(cls, stored: Stored, given: Filter, x: jax.Array, around: Around, tile: Tile) -> Self:
        block, dtype, filters = stored.block, around.operand, 2 if around.gate else 1
        parts = _PARTS if dtype == FLOAT32 and tile.rows > 1 else 1
        elements = BFLOAT16 if parts > 1 else FLOAT32 if tile.rows == 1 else dtype
        step = stored.step(x.shape[1])
        most = _SUMS // (filters * tile.columns) if tile.rows == 1 else _MOST
        scales_elements = block > 0 and parts == 1
        if scales_elements and block == step:  # a power of two: several blocks fit one step
            step = max(step, most)
        step = max(_LEAST, min(most, step, _power(given.w.shape[1])))
        read = max(x.dtype.itemsize, 2 * parts) * stored.runs * tile.rows
        each = read + filters * given.w.dtype.itemsize * tile.columns
        while tile.rows > 1 and step > _LEAST and _STAGES * step * each > _SHARED:
            step //= 2
        blocks = max(1, step // block) if scales_elements else 0
        return cls(stored, step, blocks, elements, tile)


def _kernel(*refs: Any, tree: Any, forms: Sequence[_Form], around: Around, shares: int) -> None:
    from jax.experimental import pallas as pl  # noqa: PLC0415

    x, scale, residual, filters = tree.unflatten(refs[: tree.num_leaves])
    results, part = refs[tree.num_leaves :], forms[0].tile
    down, at, share = map(pl.program_id, range(3))
    row = down * part.rows + lax.iota(np.int32, part.rows)
    rows = _Rows(x, row, around, scale, None if scale is None else _inverse(x, row, around))
    first = 0
    for i, y in enumerate(results):
        own = slice(None) if around.gate else slice(i, i + 1)
        place = at - first, (share, shares)
        program = functools.partial(
            _program, rows, filters[own], forms[i], residual=residual, y=y, place=place
        )
        last = first + part.across([y.shape[2]])
        if len(results) == 1:
            program()
        else:
            pl.when((at >= first) & (at < last))(program)
        first = last


class _Rows(NamedTuple):
    """The rows of a program: `inverse` of the root of their mean square, and how to read them."""

    x: Any
    row: jax.Array
    around: Around
    scale: Any = None
    inverse: jax.Array | None = None

    @property
    def inside(self) -> jax.Array:
        inside: jax.Array = self.row < self.x.shape[0]
        return inside

    def read(self, place: jax.Array, inside: jax.Array) -> list[jax.Array]:
        """[rows, size of `place`], normalized, as parts whose sum it is."""
        from jax.experimental.pallas import triton  # noqa: PLC0415

        mask = both(self.inside, inside)
        x = triton.load(self.x.at[self.row[:, None], place[None, :]], mask=mask, other=0)
        if self.inverse is not None:
            scale = triton.load(self.scale.at[place], mask=inside, other=0)
            x = x.astype(np.float32) * self.inverse[:, None] * scale.astype(np.float32)[None, :]
        if self.around.operand != FLOAT32:
            x = _reduced(x, self.around.operand)
        if self.row.size == 1:
            return [x.astype(np.float32)]
        return _parts(x) if self.around.operand == FLOAT32 else [x]


def _inverse(x: Any, row: jax.Array, around: Around) -> jax.Array:
    """One over the root of the mean square of each row."""
    from jax.experimental.pallas import triton  # noqa: PLC0415

    depth, step = x.shape[1], min(_power(x.shape[1]), max(_LEAST, (1 << 13) // row.size))

    def add(i: jax.Array, total: jax.Array) -> jax.Array:
        place = i * step + lax.iota(np.int32, step)
        mask = both(row < x.shape[0], place < depth)
        values = triton.load(x.at[row[:, None], place[None, :]], mask=mask, other=0)
        wide = values.astype(np.float32)
        return total + (wide * wide).sum(1)

    zeros = jnp.zeros((row.size,), np.float32)
    squares = lax.fori_loop(np.int32(0), np.int32(-(-depth // step)), add, zeros)
    mean = squares * np.float32(1 / depth) + np.float32(around.epsilon)
    inverse: jax.Array = lax.rsqrt(jnp.minimum(mean, np.float32(LARGEST)))
    return inverse


def _program(
    rows: _Rows,
    filters: Sequence[Filter],
    form: _Form,
    residual: Any,
    y: Any,
    place: tuple[jax.Array, tuple[jax.Array, int]],
) -> None:
    """Compute a tile of `y`; `place` is which one, and which share of its depth of how many."""
    from jax.experimental.pallas import triton  # noqa: PLC0415

    (tile, share), width = place, form.tile.columns
    column = tile * width + lax.iota(np.int32, width)
    is_column = column < y.shape[2]
    totals = _sums(rows, filters, form, column, share)
    if share[1] == 1:

        def with_bias(total: jax.Array, bias: Any) -> jax.Array:
            return total + triton.load(bias.at[column], mask=is_column, other=0)[None, :]

        totals = [
            total if f.bias is None else with_bias(total, f.bias)
            for f, total in zip(filters, totals, strict=True)
        ]
    gate = rows.around.gate
    total = totals[0] if gate is None else gate(totals[0]) * totals[1]
    mask = both(rows.inside, is_column)
    if residual is not None:
        added = triton.load(residual.at[rows.row[:, None], column[None, :]], mask=mask, other=0)
        total = total + added.astype(np.float32)
    to = y.at[share[0], rows.row[:, None], column[None, :]]
    triton.store(to, _result(total, y.dtype), mask=mask)


def _sums(
    rows: _Rows,
    filters: Sequence[Filter],
    form: _Form,
    column: jax.Array,
    share: tuple[jax.Array, int],
) -> list[jax.Array]:
    """The scaled sums of each filter, float32 [rows, columns]."""
    from jax.experimental.pallas import triton  # noqa: PLC0415

    (columns, width), step = filters[0].w.shape, form.step
    steps = -(-width // (step * share[1]))
    first = share[0] * (steps * step)
    is_column = column < columns

    def add(i: jax.Array, totals: list[jax.Array]) -> list[jax.Array]:
        start = first + i * step
        at = start + lax.iota(np.int32, step)
        inside = both(is_column, at < width)
        data = [
            triton.load(f.w.at[column[:, None], at[None, :]], mask=inside, other=0) for f in filters
        ]
        for run in range(form.stored.runs):
            left = rows.read(at + run * width, at < width)
            totals = [
                total + _terms(left, d, f.scales, form, column, (run, start, width))
                for f, d, total in zip(filters, data, totals, strict=True)
            ]
        return totals

    shape = form.tile if form.tile.rows > 1 else (form.tile.columns, step)
    zeros = [jnp.zeros(shape, np.float32) for _ in filters]
    totals = lax.fori_loop(np.int32(0), np.int32(steps), add, zeros)
    if form.tile.rows == 1:
        totals = [total.sum(1)[None, :] for total in totals]
    if form.stored.block or filters[0].scales is None:
        return list(totals)
    return [
        _scaled(total, f.scales, column, np.int32(0))
        for f, total in zip(filters, totals, strict=True)
    ]


def _terms(
    left: Sequence[jax.Array],
    data: jax.Array,
    scales: Any,
    form: _Form,
    column: jax.Array,
    place: tuple[int, jax.Array, int],
) -> jax.Array:
    """What one step of a run adds: [rows, columns], or of one row its terms, [columns, step]."""
    run, start, width = place
    elements = _widened(data, run, form.stored.bits, form.dtype)
    if form.blocks:
        elements = _scaled_elements(elements, scales, form, column, place)
    if form.tile.rows == 1:
        return left[0] * elements

    def product(part: jax.Array) -> jax.Array:
        axes = (((1,), (1,)), ((), ()))
        return lax.dot_general(part, elements, axes, preferred_element_type=np.float32)

    total = functools.reduce(operator.add, map(product, left))
    if form.stored.block and not form.blocks:
        total = _scaled(total, scales, column, (start + run * width) // form.stored.block)
    return total


def _scaled(total: jax.Array, scales: Any, column: jax.Array, block: Any) -> jax.Array:
    from jax.experimental.pallas import triton  # noqa: PLC0415

    is_column = column < scales.shape[0]
    scale = triton.load(scales.at[column, block], mask=is_column, other=0)
    return total * scale.astype(np.float32)[None, :]


def _scaled_elements(
    elements: jax.Array,
    scales: Any,
    form: _Form,
    column: jax.Array,
    place: tuple[int, jax.Array, int],
) -> jax.Array:
    from jax.experimental.pallas import triton  # noqa: PLC0415

    run, start, width = place
    size = form.stored.block
    block = (start + run * width) // size + lax.iota(np.int32, form.blocks)
    inside = both(column < scales.shape[0], block < (run + 1) * width // size)
    scale = triton.load(scales.at[column[:, None], block[None, :]], mask=inside, other=0)
    shape = (column.size, form.blocks, -1)
    scaled = elements.reshape(shape) * scale.astype(elements.dtype)[:, :, None]
    return scaled.reshape(elements.shape)


# Floats whose last bits count ones, from 2**10, 2**7 and 2**23 on: integers' bits are put there.
_ONES: dict[np.dtype, tuple[type, int, int]] = {
    FLOAT16: (np.uint16, 0x6400, 1 << 10),
    BFLOAT16: (np.uint16, 0x4300, 1 << 7),
    FLOAT32: (np.uint32, 0x4B000000, 1 << 23),
}


def _widened(data: jax.Array, run: int, bits: int, dtype: np.dtype) -> jax.Array:
    """One run's elements as floats, by fewer instructions than conversions where they fit."""
    wide, pattern, start = _ONES[dtype]
    least = 1 << (bits - 1)
    if data.dtype.kind == "f" or data.dtype == BFLOAT16 or 2 * least > start:
        return data.astype(dtype)
    raw = (lax.bitcast_convert_type(data, np.uint8) >> np.uint8(bits * run)) & np.uint8(
        2 * least - 1
    )
    shifted = (raw ^ np.uint8(least)).astype(wide) | np.asarray(pattern, wide)
    ones: jax.Array = lax.bitcast_convert_type(shifted, dtype)
    widened: jax.Array = ones - dtype.type(start + least)
    return widened


def _parts(x: jax.Array) -> list[jax.Array]:
    """Arrays of bfloat16 whose sum is a float32 one: its leading bits, then those of the rest."""
    parts, rest = list[jax.Array](), x.astype(np.float32)
    for _ in range(_PARTS):
        bits = lax.bitcast_convert_type(rest, np.uint32) & np.uint32(0xFFFF0000)
        known = lax.bitcast_convert_type(bits, np.float32)
        parts.append(known.astype(BFLOAT16))
        rest = jnp.where(jnp.abs(rest) < np.float32(np.inf), rest - known, np.float32(0))
    return parts


def _reduced(x: jax.Array, dtype: np.dtype) -> jax.Array:
    """In a short dtype; finite values beyond its range become its largest."""
    wide = x.astype(np.float32)
    finite = jnp.abs(wide) < np.float32(np.inf)
    return x if x.dtype == dtype else jnp.where(finite, _clamped(wide, dtype), wide).astype(dtype)


def _result(total: jax.Array, dtype: np.dtype) -> jax.Array:
    """float32 in the dtype of a result; in a short one, infinities become its largest, too."""
    return (_clamped(total, dtype) if dtype in HALVES else total).astype(dtype)


def _clamped(x: jax.Array, dtype: np.dtype) -> jax.Array:
    most = np.float32(ml_dtypes.finfo(dtype).max)  # type: ignore[no-untyped-call]
    return jnp.where(x > most, most, jnp.where(x < -most, -most, x))


def _power(n: int) -> int:
    return 1 << (n - 1).bit_length()
