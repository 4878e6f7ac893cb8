"""Updates of one place in each of several arrays on a TPU: in Pallas, by Mosaic.

XLA's own update of a batch, with a place for each item, is a loop of several kernels for each item.
This is one kernel. Its arrays stay in the device's memory: of each item it reads the tiles with the
place into the core's memory, and writes them back. It cannot be differentiated, so the context must
allow it.

It was compiled for a TPU and ran in Pallas' interpreter, but never on a TPU.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax import lax

from jaxdelegate.op_lowering.common.row_batches import OfRows, by_matrices
from jaxdelegate.op_lowering.spec import Shape

# Mosaic has no float16 on some TPUs.
_DTYPES = frozenset(np.dtype(t) for t in (np.float32, ml_dtypes.bfloat16, np.int8))
_LANES, _TILE_BYTES = 128, 4096
_MOST_WINDOW = 2 << 20  # bytes; there are four: two are read or written while two are computed


def axis_of(x: Shape, update: Shape, dtype: np.dtype) -> int | None:
    """The dimension of the one place that `update` has, if the kernel supports it; else None.

    Arrays are of whole tiles: XLA lays others out in ways that Mosaic does not read, and would copy
    them.
    """
    if dtype not in _DTYPES or len(x) < 3 or x[-1] % _LANES or x[-2] % _sublanes(dtype):
        return None
    axes = [i for i, (n, new) in enumerate(zip(x, update, strict=True)) if n != new]
    if len(axes) != 1 or update[axes[0]] != 1:
        return None
    (axis,) = axes
    window = math.prod(x) // x[axis] * _window(x, axis, dtype) * dtype.itemsize
    return axis if window <= _MOST_WINDOW else None


def update_places(x: jax.Array, update: jax.Array, places: jax.Array, axis: int) -> jax.Array:
    """`x` with `update` at a place along a dimension, for each item of a batch.

    Args:
        x: [batch, ...]; it becomes the result where nothing else needs it.
        update: [batch, ...], of the same dtype, without the dimension.
        places: int32 [batch], inside of it.
        axis: the dimension, an `axis_of`, not counting the batch's.
    """
    return _by_axis(axis)(x, update, places)


@functools.cache
def _by_axis(axis: int) -> OfRows:
    def otherwise(x: jax.Array, update: jax.Array, places: jax.Array) -> jax.Array:
        one = functools.partial(lax.dynamic_update_index_in_dim, axis=axis)
        y: jax.Array = jax.vmap(one)(x, update, places)
        return y

    return by_matrices(otherwise)(functools.partial(_updated, axis=axis + 1))


def _updated(x: jax.Array, update: jax.Array, places: jax.Array, axis: int) -> jax.Array:
    from jax.experimental import pallas as pl  # noqa: PLC0415 (a TPU's programs alone need it)
    from jax.experimental.pallas import tpu  # noqa: PLC0415

    size = np.int32(_window(x.shape, axis, x.dtype))
    window = (1, *x.shape[1:axis], int(size), *x.shape[axis + 1 :])
    zero = np.int32(0)

    def tiles(item: jax.Array, places: Any) -> tuple[Any, ...]:
        before, after = (zero,) * (axis - 1), (zero,) * (x.ndim - axis - 1)
        return (item, *before, lax.div(places[item], size), *after)

    def whole(item: jax.Array, _places: Any) -> tuple[Any, ...]:
        return (item, *(zero,) * (update.ndim - 1))

    def kernel(places: Any, x: Any, update: Any, y: Any) -> None:
        place = lax.rem(places[pl.program_id(0)], size)
        is_place = lax.broadcasted_iota(np.int32, window, axis) == place
        y[...] = jnp.where(is_place, jnp.expand_dims(update[...], axis), x[...])

    moved = 2 * len(x) * math.prod(window) * x.dtype.itemsize + update.nbytes
    call = pl.pallas_call(
        kernel,
        out_shape=tpu.HBM(x.shape, x.dtype),
        grid_spec=tpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(len(x),),
            in_specs=[pl.BlockSpec(window, tiles), pl.BlockSpec((1, *update.shape[1:]), whole)],
            out_specs=pl.BlockSpec(window, tiles),
        ),
        input_output_aliases={1: 0},
        cost_estimate=pl.CostEstimate(flops=0, transcendentals=0, bytes_accessed=moved),
        name="cache_update",
    )
    y: jax.Array = call(places, x, update)
    return y


def _window(x: Shape, axis: int, dtype: np.dtype) -> int:
    return {1: _LANES, 2: _sublanes(dtype)}.get(len(x) - axis, 1)


def _sublanes(dtype: np.dtype) -> int:
    return _TILE_BYTES // (_LANES * dtype.itemsize)
