"""STABLEHLO_GATHER and STABLEHLO_SCATTER.

Semantics: the StableHLO specification and kernels/stablehlo_{gather,scatter}.cc. A gather clamps
its windows to the operand; a scatter ignores elements outside.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdelegate.op_lowering.common.basics import int32_indices
from jaxdelegate.op_lowering.common.movement import why_not_indices, why_not_present, with_last
from jaxdelegate.op_lowering.common.pointwise import why_not_one_dtype
from jaxdelegate.op_lowering.common.products import nothing
from jaxdelegate.op_lowering.common.signature import ANY, MOVED, WHOLE, typed_rule
from jaxdelegate.op_lowering.rule import Function, Op, first_reason, table, why_not_dtype
from jaxdelegate.op_lowering.spec import Shape
from jaxdelegate.op_lowering.stablehlo.body import Body, why_not_body
from jaxdelegate.op_lowering.stablehlo.elementwise import ELEMENTS
from jaxdelegate.op_lowering.stablehlo.options import (
    StablehloGatherOptions,
    StablehloScatterOptions,
)
from jaxdelegate.op_lowering.stablehlo.shape import signed

_Scatter = Callable[..., jax.Array]  # lax.scatter, or a variant that combines values


def _index_vectors(indices: jax.Array, axis: int) -> jax.Array:
    """Signed vectors [*batch, depth]."""
    vectors = signed(jnp.asarray(indices))
    if axis == vectors.ndim:
        return lax.expand_dims(vectors, [axis])
    return jnp.moveaxis(vectors, axis, -1)


# ---- GATHER


def _lower_gather(op: Op[StablehloGatherOptions]) -> Function:
    if 0 in (*op.outputs[0].shape, *op.inputs[0].shape):
        return nothing(op.outputs)
    o = op.options
    dims = lax.GatherDimensionNumbers(o.offset_dims, o.collapsed_slice_dims, o.start_index_map)

    def gather(x: jax.Array, indices: jax.Array) -> tuple[jax.Array]:
        starts = int32_indices(_index_vectors(indices, o.index_vector_dim))
        return (lax.gather(x, starts, dims, o.slice_sizes, mode=lax.GatherScatterMode.CLIP),)

    return gather


# ---- SCATTER


def _why_not_scatter(op: Op[StablehloScatterOptions]) -> str | None:
    reason = why_not_present(*op.inputs)
    if reason is not None:
        return reason
    n, o = len(op.outputs), op.options
    operands, indices, updates = op.inputs[:n], op.inputs[n], op.inputs[n + 1 :]
    dtypes = [spec.dtype for spec in op.outputs]
    return (
        first_reason(
            *(why_not_dtype(spec, ELEMENTS) for spec in (*operands, *updates)),
            *(why_not_one_dtype(a, b) for a, b in zip(operands, op.outputs, strict=True)),
            *(why_not_one_dtype(a, b) for a, b in zip(operands, updates, strict=True)),
            why_not_indices(indices),
        )
        or _why_not_windows(o, operands[0].shape, updates[0].shape)
        or why_not_body(op.context, o.update_computation_subgraph_index, (*dtypes, *dtypes), dtypes)
    )


def _why_not_windows(o: StablehloScatterOptions, x: Shape, updates: Shape) -> str | None:
    window = _Places.of(o, updates).window
    fits = all(m <= n for m, n in zip(window, x, strict=True))
    return None if fits else f"updates of {list(window)} do not fit into {list(x)}"


@dataclasses.dataclass(frozen=True)
class _Places:
    """Where updates go in the operand."""

    batch_dims: tuple[int, ...]  # the updates' dimensions outside of the windows
    window: tuple[int, ...]  # a window's size in the operand
    starts: tuple[int, ...]  # operand dimensions that an index vector moves

    @classmethod
    def of(cls, o: StablehloScatterOptions, updates: Shape) -> Self:
        batch = tuple(d for d in range(len(updates)) if d not in o.update_window_dims)
        sizes = iter(updates[d] for d in o.update_window_dims)
        rank = len(o.update_window_dims) + len(o.inserted_window_dims)
        window = tuple(1 if d in o.inserted_window_dims else next(sizes) for d in range(rank))
        return cls(batch, window, o.scatter_dims_to_operand_dims)

    @property
    def margins(self) -> tuple[int, ...]:
        """How far a window may reach beyond the operand's start and still overlap it.

        lax drops a window that is not completely inside; with these margins it drops elements.
        """
        return tuple(m - 1 if d in self.starts else 0 for d, m in enumerate(self.window))

    def shifted(self, vectors: jax.Array) -> jax.Array:
        """Index vectors [*batch, depth] for an operand with margins."""
        margins = [self.margins[d] for d in self.starts]
        return vectors + jnp.broadcast_to(jnp.asarray(margins, vectors.dtype), vectors.shape)


def _with_margins(x: jax.Array, margins: Sequence[int], sign: int) -> jax.Array:
    return lax.pad(x, jnp.zeros((), x.dtype), [(sign * m, sign * m, 0) for m in margins])


def _lower_scatter(op: Op[StablehloScatterOptions]) -> Function:
    n, dtypes, o = len(op.outputs), [spec.dtype for spec in op.outputs], op.options
    places = _Places.of(o, op.inputs[n + 1].shape)
    if 0 in (*op.inputs[0].shape, *op.inputs[n + 1].shape):
        return lambda *arrays: tuple(map(jnp.asarray, arrays[:n]))
    body = Body.of(op.context, o.update_computation_subgraph_index, (*dtypes, *dtypes))
    wide = map(op.context.precision.accumulator, dtypes)
    batch = math.prod(op.inputs[n + 1].shape[d] for d in places.batch_dims)
    overwrite = lax.scatter if o.unique_indices or batch == 1 else _overwrite
    scatters = (_scatter_of(body, i, dtype, overwrite) for i, dtype in enumerate(wide))
    known = [function for function in scatters if function is not None]

    def scatter(*arrays: jax.Array) -> tuple[jax.Array, ...]:
        vectors = places.shifted(_index_vectors(arrays[n], o.index_vector_dim))
        operands = [_with_margins(jnp.asarray(x), places.margins, 1) for x in arrays[:n]]
        updates = [jnp.asarray(u) for u in arrays[n + 1 :]]
        if len(known) < n:
            results = _one_by_one(body, places, operands, vectors, updates)
        else:
            triples = zip(known, operands, updates, strict=True)
            results = [_at_once(o, f, x, vectors, u) for f, x, u in triples]
        return tuple(_with_margins(y, places.margins, -1) for y in results)

    return scatter


def _overwrite(
    x: jax.Array, vectors: jax.Array, updates: jax.Array, *dims: Any, **mode: Any
) -> jax.Array:
    """lax.scatter that keeps the last of several updates."""
    return with_last(
        x, updates, lambda none, order: lax.scatter_max(none, vectors, order, *dims, **mode)
    )


def _scatter_of(body: Body, i: int, wide: np.dtype, overwrite: _Scatter) -> _Scatter | None:
    """The scatter for one result of the body; None if lax has none.

    Half precision is summed in `wide`, so that the updates of one element are rounded once.
    """
    n = len(body.closed.out_avals)
    if body.passes_on(i, n + i):
        return overwrite
    fold = body.fold(i, wide)
    if fold is None or fold.scatter is None:
        return None
    combine = fold.scatter

    def scatter(
        x: jax.Array, vectors: jax.Array, updates: jax.Array, *dims: Any, **mode: Any
    ) -> jax.Array:
        return combine(x.astype(wide), vectors, updates.astype(wide), *dims, **mode).astype(x.dtype)

    return scatter


def _at_once(
    o: StablehloScatterOptions,
    function: _Scatter,
    x: jax.Array,
    vectors: jax.Array,
    updates: jax.Array,
) -> jax.Array:
    dims = lax.ScatterDimensionNumbers(
        o.update_window_dims, o.inserted_window_dims, o.scatter_dims_to_operand_dims
    )
    y: jax.Array = function(x, vectors, updates, dims, mode=lax.GatherScatterMode.FILL_OR_DROP)
    return y


def _one_by_one(
    body: Body,
    places: _Places,
    operands: list[jax.Array],
    vectors: jax.Array,
    updates: list[jax.Array],
) -> list[jax.Array]:
    """Any body is applied to one window at a time: two windows may overlap."""
    depth, window = vectors.shape[-1], places.window
    rest = [d for d in range(updates[0].ndim) if d not in places.batch_dims]
    order = (*places.batch_dims, *rest)
    vectors = vectors.reshape(-1, depth)
    rows = [lax.transpose(u, order).reshape(-1, *window) for u in updates]
    room = np.subtract(operands[0].shape, window)

    def step(i: jax.Array, results: list[jax.Array]) -> list[jax.Array]:
        start = (
            jnp.zeros(len(window), vectors.dtype).at[np.asarray(places.starts, int)].set(vectors[i])
        )
        inside = jnp.all((start >= 0) & (start <= jnp.asarray(room, start.dtype)))
        start = jnp.where(inside, start, jnp.zeros_like(start))
        at = list(start)
        before = [lax.dynamic_slice(y, at, window) for y in results]
        after = body.elements(*before, *(u[i] for u in rows))
        kept = [jnp.where(inside, a, b) for a, b in zip(after, before, strict=True)]
        return [lax.dynamic_update_slice(y, a, at) for y, a in zip(results, kept, strict=True)]

    results: list[jax.Array] = lax.fori_loop(0, vectors.shape[0], step, operands)
    return results


RULES = table(
    typed_rule("STABLEHLO_GATHER", [MOVED, WHOLE], _lower_gather),
    typed_rule("STABLEHLO_SCATTER", [ANY, ANY, ANY], _lower_scatter, _why_not_scatter),
)
