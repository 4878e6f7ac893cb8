"""Functions of independent rows or matrices, for which a batch is more of them."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import jax
from jax.custom_batching import custom_vmap

OfRows = Callable[..., jax.Array]  # ([rows, K], *rest) -> [rows, N]
RowsT = TypeVar("RowsT", bound=Callable[..., Any])  # the same, or with several results


def by_rows(f: RowsT, count: int = 1) -> RowsT:
    """`f`, which `jax.vmap` over rows alone calls once, with the rows of the whole batch.

    A kernel would otherwise run once for each element of the batch, and read its weights each time.
    The first `count` arguments are rows.
    """
    call = custom_vmap(f)

    @call.def_vmap
    def _(size: int, batched: Sequence[Any], *arrays: Any) -> tuple[Any, Any]:
        if not all(batched[:count]) or any(jax.tree.leaves(batched[count:])):
            axes = jax.tree.map(lambda is_batched: 0 if is_batched else None, tuple(batched))
            y = jax.vmap(f, axes, axis_size=size)(*arrays)
        else:
            rows = (x.reshape(-1, x.shape[-1]) for x in arrays[:count])
            y = call(*rows, *arrays[count:])
            y = jax.tree.map(lambda each: each.reshape(size, -1, each.shape[-1]), y)
        return y, jax.tree.map(lambda _: True, y)

    return cast(RowsT, call)


def by_matrices(otherwise: OfRows) -> Callable[[OfRows], OfRows]:
    """A decorator for functions of arrays [count, ...]: `jax.vmap` over all calls them once.

    Over some of the arrays, `jax.vmap` calls `otherwise`, which must compute the same.
    """

    def decorate(f: OfRows) -> OfRows:
        call = custom_vmap(f)

        @call.def_vmap
        def _(size: int, batched: Sequence[bool], *arrays: jax.Array) -> tuple[jax.Array, bool]:
            if not all(batched):
                axes = [0 if is_batched else None for is_batched in batched]
                return jax.vmap(otherwise, axes, axis_size=size)(*arrays), True
            y = call(*(a.reshape(-1, *a.shape[2:]) for a in arrays))
            return y.reshape(size, -1, *y.shape[1:]), True

        return call

    return decorate
