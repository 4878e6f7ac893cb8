"""Reductions in one order: their bits do not depend on how many rows there are.

XLA's CPU compiler splits a reduction into partial ones, or computes it in the loop that uses its
result, where exponentials are other approximations: which, depends on the number of rows. It does
neither to a reduction with two results, as long as both are used. Seen with XLA of jaxlib 0.10.2,
on AVX2.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdelegate.op_lowering.rule import LoweringContext
from jaxdelegate.op_lowering.spec import TensorSpec

# A step that generates a token has a row for each head. Prompts have more rows, and are read one at
# a time.
_MOST_ROWS = 64

_Axes = tuple[int, ...]
_Combine = Callable[[jax.Array, jax.Array], jax.Array]


def has_few_rows(context: LoweringContext, x: TensorSpec) -> bool:
    """Whether a CPU reduces the last axis of `x` in order.

    A sequence of a language model is then the same alone and with others in a batch.
    """
    rows = math.prod(x.shape[:-1])
    return context.kernels.cpu and x.dtype == np.float32 and 0 < rows <= _MOST_ROWS


def sum_in_order(x: jax.Array, axes: _Axes) -> jax.Array:
    """A float sum in the kernels' order: value after value, as stored. It drops the axes."""
    return _first(x, axes, (0, -jnp.inf), jnp.add, jnp.maximum)


def largest(x: jax.Array, axes: _Axes) -> jax.Array:
    """The largest float; NaN if one is NaN. It drops the axes."""
    return _first(x, axes, (-jnp.inf, jnp.inf), jnp.maximum, jnp.minimum)


def _first(
    x: jax.Array, axes: _Axes, starts: tuple[float, float], one: _Combine, other: _Combine
) -> jax.Array:
    def both(a: tuple[jax.Array, ...], b: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
        return one(a[0], b[0]), other(a[1], b[1])

    start = tuple(jnp.full((), value, x.dtype) for value in starts)
    result, _ = lax.optimization_barrier(lax.reduce((x, x), start, both, axes))  # type: ignore[no-untyped-call]
    return jnp.asarray(result)
