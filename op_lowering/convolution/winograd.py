"""Convolutions 3x3 with fewer products: Winograd's F(2x2, 3x3), for a CPU.

A tile of 4x4 values yields 2x2 results. Tiles and filters are transformed by sums of a few values
and then multiplied point by point: 16 products for each pair of channels, where the convolution
itself takes 36. Over all tiles and channels those are 16 matrix products. Lavin and Gray, Fast
Algorithms for Convolutional Neural Networks, 2016. Tiles of 6x6 would save more products and lose
a decimal digit; with tiles of 4x4 results are as exact as the convolution's own.
"""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdelegate.op_lowering.common.basics import Array
from jaxdelegate.op_lowering.common.fusion_barrier import fusion_barrier
from jaxdelegate.op_lowering.common.products import Arithmetic
from jaxdelegate.op_lowering.convolution.algorithms import Convolution
from jaxdelegate.op_lowering.spec import Shape

_POINTS = 4  # a tile's, along each axis
_STEP = 2  # from tile to tile, and the results of a tile, along each axis

# Where it is faster than XLA:CPU's convolution, measured on the shapes of ResNet50, Inception v3,
# DenseNet121 and U-Net.
_LEAST_CHANNELS = 32  # shorter sums do not make up for the transforms
_LEAST_PRODUCTS = 10_000_000  # less work does not make up for the cost of a dozen kernels
_MOST_FILTERS = 12_288  # pairs of channels per tile: all 16 matrices are read, however few tiles
_MOST_BYTES = 24 << 20  # transformed tiles; see jaxdelegate/lowering/microbatching.py

# From the three values of a filter to four points.
_FILTER = np.array([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]], np.float32)


def is_possible(c: Convolution) -> bool:
    """For a 3x3 window, dense, that moves by one pixel."""
    dense = all((w.size, w.stride, w.dilation) == (3, 1, 1) for w in c.windows)
    return dense and len(c.windows) == 2 and c.groups == 1


def pays(c: Convolution) -> bool:
    """Whether it is faster than XLA's convolution on a CPU, if it is possible."""
    bytes_transformed = 4 * _POINTS**2 * _n_tiles(c) * (c.depth + c.output_channels)
    return (
        min(c.depth, c.output_channels) >= _LEAST_CHANNELS
        and work(c) >= _LEAST_PRODUCTS
        and has_few_filters(c)
        and bytes_transformed <= _MOST_BYTES
    )


def work(c: Convolution) -> int:
    return c.batch * math.prod(c.out) * c.products * c.output_channels


def has_few_filters(c: Convolution) -> bool:
    """Whether its filters, all of which are read, are few relative to the tiles."""
    return c.depth * c.output_channels <= _n_tiles(c) * _MOST_FILTERS


def _n_tiles(c: Convolution) -> int:
    return c.batch * math.prod(_tiles(c))


def transformed(c: Convolution, w: Array) -> Array:
    """A filter [3, 3, I, O] as 16 matrices [I, O]."""
    return (np.kron(_FILTER, _FILTER) @ w.reshape(9, -1)).reshape(-1, c.depth, c.output_channels)


def winograd(a: Arithmetic, c: Convolution, x: jax.Array, w: jax.Array) -> jax.Array:
    """A 3x3 convolution by tiles; `w` is [16, I, O]."""
    tiles = _tiles(c)
    points = _points(_padded(c, x), tiles).reshape(_POINTS**2, -1, c.depth)
    products = a.dot(points, w, ((2,), (1,)), ((0,), (0,)))  # [16, N * tiles, O]
    products = products.reshape(_POINTS, _POINTS, -1, *tiles, c.output_channels)
    rows = zip(*(_results(products[:, j]) for j in range(_POINTS)), strict=True)
    y = jnp.stack([jnp.stack(_results(row), 3) for row in rows], 2)  # [N, tiles, 2, tiles, 2, O]
    y = y.reshape(-1, *(_STEP * n for n in tiles), c.output_channels)
    return y[:, : c.out[0], : c.out[1]]


def _tiles(c: Convolution) -> Shape:
    return tuple(-(-n // _STEP) for n in c.out)


def _padded(c: Convolution, x: jax.Array) -> jax.Array:
    """Zeros around [N, H, W, C], enough for tiles that extend beyond the last window."""
    odd = (_STEP * n - out for n, out in zip(_tiles(c), c.out, strict=True))
    edges = [(w.pads[0], w.pads[1] + more, 0) for w, more in zip(c.windows, odd, strict=True)]
    return lax.pad(x, jnp.zeros((), x.dtype), [(0, 0, 0), *edges, (0, 0, 0)])


def _points(padded: jax.Array, tiles: Shape) -> jax.Array:
    """The 16 points of all tiles, [4, 4, N, *tiles, C].

    The input of each step is in memory, because XLA:CPU would compute it again for each reader.
    """
    columns = jnp.stack(_point(_values(fusion_barrier(padded), 2, tiles[1])))
    return jnp.stack(_point(_values(fusion_barrier(columns), 2, tiles[0])))


def _values(x: jax.Array, axis: int, n_tiles: int) -> list[jax.Array]:
    """The first to fourth value of every tile along an axis."""
    past = _STEP * (n_tiles - 1) + 1
    return [lax.slice_in_dim(x, i, i + past, _STEP, axis) for i in range(_POINTS)]


def _point(d: Sequence[jax.Array]) -> Sequence[jax.Array]:
    """The four values of a tile -> four points."""
    return d[0] - d[2], d[1] + d[2], d[2] - d[1], d[1] - d[3]


def _results(m: Sequence[jax.Array] | jax.Array) -> Sequence[jax.Array]:
    """Four points -> the two results of a tile."""
    return m[0] + m[1] + m[2], m[1] - m[2] - m[3]
