"""Exact sums of products of integers: int8 times int8, added up in int32.

A quantized tensor is split into int8 pieces, value - zero point = sum of factor * (piece - zero):
int8 is one piece; uint8 is one, shifted by 128; int16 is two, its high byte, and its low byte
shifted by 128. So devices have units for every product, and nothing is rounded. The zero points
are subtracted from the sums: sum (x - a)(w - b) = sum xw - b sum x - a sum (w - b).
A sum of int32 wraps around as the kernels' do. Of two pieces, int64 sums of fewer than
MOST_PRODUCTS products are exact.
"""

import dataclasses
import functools
import operator
from collections.abc import Iterable
from typing import overload

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdelegate.op_lowering.common.basics import Array
from jaxdelegate.op_lowering.common.products import Axes

MOST_PRODUCTS = 1 << 17  # two int8 each: int32 holds their sum

_EXACT = 1 << 10  # products of two int8: float32 holds their sum, in any order
_SMALL = 1 << 12  # values of a matrix that one row is multiplied by

Zero = int | jax.Array  # an array broadcasts with the values


@overload
def to_int8(q: jax.Array) -> jax.Array: ...


@overload
def to_int8(q: np.ndarray) -> np.ndarray: ...


def to_int8(q: Array) -> Array:
    """Stored integers as int8, with array methods only: uint8 minus 128; int16 stays int16."""
    dtype = np.dtype(q.dtype)
    if dtype == np.int16:
        return q
    return (q.astype(np.int16) - 128).astype(np.int8) if dtype == np.uint8 else q.astype(np.int8)


def moved(zero_point: int, dtype: np.dtype) -> int:
    """The zero point of `to_int8`'s result for this dtype."""
    return zero_point - 128 if dtype == np.uint8 else zero_point


@dataclasses.dataclass(frozen=True)
class Piece:
    """factor * (values - zero), with values of int8."""

    values: jax.Array
    zero: Zero
    factor: int = 1


def pieces(q: jax.Array, zero_point: Zero) -> tuple[Piece, ...]:
    """int8 or int16 integers less their zero point, as a sum of pieces."""
    if q.dtype != np.int16:
        return (Piece(q, zero_point),)
    low = ((q & 255) - 128).astype(np.int8)
    return Piece((q >> 8).astype(np.int8), 0, 256), Piece(low, zero_point - 128)


def add_up(terms: Iterable[tuple[int, jax.Array]]) -> jax.Array:
    """The sum of factor * int32: int32 for one term, int64 for several."""
    weighted = list(terms)
    if len(weighted) == 1:
        return weighted[0][1]
    return functools.reduce(operator.add, (y.astype(np.int64) * f for f, y in weighted))


def matrix_product(
    x: tuple[Piece, ...],
    w: tuple[Piece, ...],
    axes: tuple[int, int] = (-1, -1),
    w_sums: np.ndarray | None = None,
) -> jax.Array:
    """[*B, M, K] or [*B, K, M] times [*B, N, K] or [*B, K, N] -> int32 or int64 [*B, M, N].

    `axes` are those of K, -1 or -2, in x and in w. `w_sums`, int32 [*B, N], are sums of w - zero
    over K, if they are known ahead of time; `w` then is one piece.
    """
    return add_up((a.factor * b.factor, _product(a, b, axes, w_sums)) for a in x for b in w)


def product(x: jax.Array, w: jax.Array, contract: Axes, batch: Axes) -> jax.Array:
    """lax.dot_general of int8, in int32.

    One row by a small matrix is a sum: XLA:CPU compiles it in half the time of a product, and
    several equal ones only once. It runs as fast.
    """
    (i,), (k,) = contract
    is_row = x.size == x.shape[i] > 0
    if not is_row or w.ndim != 2 or w.size > _SMALL:
        return dot(x, w, contract, batch)
    row = x.astype(np.int32).reshape((-1, 1) if k == 0 else (1, -1))
    sums = jnp.sum(row * w.astype(np.int32), k, dtype=np.int32)
    return sums.reshape(*(1,) * (x.ndim - 1), -1)


def dot(x: jax.Array, w: jax.Array, contract: Axes, batch: Axes = ((), ())) -> jax.Array:
    """lax.dot_general of int8 over one axis, in int32.

    On a GPU the factors are float16, which holds them: XLA lets Triton multiply int8 in steps of
    16 products, where the unit takes 32, and sums were twice too large (jaxlib 0.11 on an H200).
    """
    dims = (contract, batch)
    in_floats = functools.partial(_dot_in_floats, dims=dims)
    in_integers = functools.partial(
        lax.dot_general, dimension_numbers=dims, preferred_element_type=np.int32
    )
    y: jax.Array = lax.platform_dependent(x, w, cuda=in_floats, rocm=in_floats, default=in_integers)
    return y


def _dot_in_floats(x: jax.Array, w: jax.Array, *, dims: tuple[Axes, Axes]) -> jax.Array:
    ((i,), (k,)), _ = dims

    def part(start: int) -> jax.Array:
        end = min(start + _EXACT, x.shape[i])
        left = lax.slice_in_dim(x, start, end, axis=i).astype(np.float16)
        right = lax.slice_in_dim(w, start, end, axis=k).astype(np.float16)
        y = lax.dot_general(left, right, dims, preferred_element_type=np.float32)
        return y.astype(np.int32)

    return functools.reduce(operator.add, map(part, range(0, max(1, x.shape[i]), _EXACT)))


def _product(
    x: Piece, w: Piece, axes: tuple[int, int], w_sums: np.ndarray | jax.Array | None
) -> jax.Array:
    rank, depth = x.values.ndim, x.values.shape[axes[0]]
    batch = tuple(range(rank - 2))
    contract = (rank + axes[0],), (rank + axes[1],)
    total = product(x.values, w.values, contract, (batch, batch))
    if _may_shift(w.zero):
        total = total - w.zero * jnp.expand_dims(_sums(x.values, axes[0]), -1)
    if _may_shift(x.zero):
        if w_sums is None:
            w_sums = _sums(w.values, axes[1]) - depth * w.zero
        total = total - x.zero * jnp.expand_dims(jnp.asarray(w_sums), -2)
    return total


def _may_shift(zero: Zero) -> bool:
    return isinstance(zero, jax.Array) or zero != 0


def _sums(values: jax.Array, axis: int) -> jax.Array:
    return jnp.sum(values, axis, dtype=np.int32)
