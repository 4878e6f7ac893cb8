"""Lookups in tables: EMBEDDING_LOOKUP_SPARSE and HASHTABLE_LOOKUP; and LSH_PROJECTION.

LiteRT's kernel fails on an id that names no row. Compiled code cannot: it takes the nearest row.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdelegate.op_lowering.common.movement import integers, why_not_moved
from jaxdelegate.op_lowering.common.pointwise import BOOLS, INTEGERS
from jaxdelegate.op_lowering.common.products import nothing
from jaxdelegate.op_lowering.common.signature import (
    ANY,
    CONSTANTS32,
    FLOAT32,
    INT32,
    Input,
    typed_rule,
)
from jaxdelegate.op_lowering.dtypes import FLOATS
from jaxdelegate.op_lowering.lookup.farmhash import fingerprint64
from jaxdelegate.op_lowering.lookup.options import (
    EmbeddingLookupSparseOptions,
    LSHProjectionOptions,
)
from jaxdelegate.op_lowering.records.enums import CombinerType, LSHProjectionType
from jaxdelegate.op_lowering.records.record import NoOptions
from jaxdelegate.op_lowering.rule import Function, Op, first_reason, optional, table, why_not_dtype

_Run = tuple[jax.Array, jax.Array, jax.Array]  # whether it begins a place, factor, mean


def _why_not_embedding_lookup_sparse(op: Op[EmbeddingLookupSparseOptions]) -> str | None:
    if len(op.inputs) != 5:
        return f"has {len(op.inputs)} inputs, not 5"
    ids, indices, lookup_shape, weights, table = (spec.shape for spec in op.inputs)
    vectors = len(ids) == len(lookup_shape) == 1 and weights == ids
    if not vectors or indices != (*ids, *lookup_shape) or len(table) < 2:
        return f"shapes {[list(spec.shape) for spec in op.inputs]} do not match"
    return "the table has no rows" if table[0] == 0 < ids[0] else None


def _lower_embedding_lookup_sparse(op: Op[EmbeddingLookupSparseOptions]) -> Function:
    y, combiner, sizes = op.outputs[0], op.options.combiner, integers(op.inputs[2])[:-1]
    n, row = math.prod(op.inputs[0].shape), op.inputs[4].shape[1:]
    if n == 0 or math.prod(y.shape) == 0:
        return nothing(op.outputs)
    strides = np.array([math.prod(sizes[i + 1 :]) for i in range(len(sizes))], np.int64)
    n_places = math.prod(sizes)

    def embedding_lookup_sparse(
        ids: jax.Array, indices: jax.Array, _shape: jax.Array, weights: jax.Array, table: jax.Array
    ) -> tuple[jax.Array]:
        places = (indices[:, :-1].astype(np.int64) * strides[None]).sum(axis=1)
        rows = jnp.take(table, ids, axis=0, mode="clip").reshape(n, -1) * weights[:, None]
        if combiner is CombinerType.SUM:
            combined = jax.ops.segment_sum(rows, places, n_places)
        else:
            combined = _means(combiner, rows, weights, places, n_places)
        return (combined.reshape(*sizes, *row),)

    return embedding_lookup_sparse


def _means(
    combiner: CombinerType, rows: jax.Array, weights: jax.Array, places: jax.Array, n_places: int
) -> jax.Array:
    """Weighted rows [n, row] -> [n_places, row], as kernels/embedding_lookup_sparse.cc.

    Consecutive lookups of one place form a run: the kernel adds a run's rows to the place's sum and
    divides it by the run's weight. A place usually has one run, but can have several.
    """
    n = len(rows)
    begins = jnp.concatenate([jnp.zeros(1, bool), places[1:] != places[:-1]])
    run = jnp.cumsum(begins)
    sums = weights * weights if combiner is CombinerType.SQRTN else weights
    total = jax.ops.segment_sum(sums, run, n)
    is_used = jnp.arange(n) <= run[-1]
    total = jnp.where(is_used, total, jnp.ones_like(total))
    if combiner is CombinerType.SQRTN:
        total = jnp.sqrt(total)
    mean = jax.ops.segment_sum(rows, run, n) / total[:, None]
    place = jnp.full(n, -1, places.dtype).at[run].set(places)  # -1: an unused run number
    order = jnp.argsort(place, stable=True)
    place = place[order]
    new = jnp.concatenate([jnp.ones(1, bool), place[1:] != place[:-1]])
    runs = new[:, None], (1 / total[order])[:, None], mean[order]
    _, _, y = lax.associative_scan(_composed, runs)
    last = jnp.concatenate([new[1:], jnp.ones(1, bool)]) & (place >= 0)
    target = jnp.where(last, place, n_places)
    return jnp.zeros((n_places, rows.shape[1]), rows.dtype).at[target].set(y, mode="drop")


def _composed(first: _Run, then: _Run) -> _Run:
    """Two runs as one: each maps its place's sum y, 0 at first, to scale * y + mean."""
    (begins, scale, mean), (new, next_scale, next_mean) = first, then
    return (
        begins | new,
        jnp.where(new, next_scale, scale * next_scale),
        jnp.where(new, next_mean, mean * next_scale + next_mean),
    )


def _why_not_hashtable_lookup(op: Op[NoOptions]) -> str | None:
    queries, keys, rows = op.inputs[:3]
    return first_reason(
        why_not_moved(op.context, rows, op.outputs[0]),
        None if len(queries.shape) == len(keys.shape) == 1 else "queries and keys must be vectors",
        None if rows.shape[:1] == keys.shape else "there must be one row for each key",
        None if rows.shape[:1] != (0,) else f"the table {rows.name!r} has no rows",
    )


def _lower_hashtable_lookup(op: Op[NoOptions]) -> Function:
    n, rank = op.inputs[1].shape[0], len(op.inputs[2].shape)

    def hashtable_lookup(
        queries: jax.Array, keys: jax.Array, rows: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        at, hit = _search(queries, keys, n)
        y = jnp.take(rows, at, axis=0, mode="clip")
        shown = hit.reshape(-1, *[1] * (rank - 1))
        return jnp.where(shown, y, jnp.zeros((), y.dtype)), hit.astype(np.uint8)

    return hashtable_lookup


def _search(queries: jax.Array, keys: jax.Array, n: int) -> tuple[jax.Array, jax.Array]:
    """C's bsearch, whose comparison subtracts and wraps: positions, and whether they match."""
    low, high = jnp.zeros_like(queries), jnp.full_like(queries, n)
    for _ in range(n.bit_length()):  # each step halves the range; a match stays in it
        middle = (low + high) >> 1
        difference = queries - jnp.take(keys, middle, mode="clip")
        low = jnp.where(difference > 0, middle + 1, low)
        high = jnp.where(difference < 0, middle, high)
    middle = (low + high) >> 1
    return middle, (low < high) & (queries == jnp.take(keys, middle, mode="clip"))


def _why_not_lsh_projection(op: Op[LSHProjectionOptions]) -> str | None:
    seeds, x, weights = *op.inputs[:2], optional(op.inputs, 2)
    known = op.options.type in (LSHProjectionType.SPARSE, LSHProjectionType.DENSE)
    weighed = weights is None or weights.shape == x.shape[:1]
    return first_reason(
        None if known else f"the projection's type is {op.options.type.name}",
        None if weights is None else why_not_dtype(weights, np.float32),
        None if len(seeds.shape) == 2 and seeds.shape[1] <= 32 else "seeds must be [n, 32] at most",
        None if x.shape[:1] not in ((), (0,)) else f"{x.name!r} has no items",
        None if weighed else "there must be one weight for each item",
    )


def _lower_lsh_projection(op: Op[LSHProjectionOptions]) -> Function:
    n_hashes, n_bits = op.inputs[0].shape
    is_dense = op.options.type is LSHProjectionType.DENSE
    if n_hashes * n_bits == 0:
        return nothing(op.outputs)
    # The bits form a number, the first one highest; an offset separates the hashes. Both wrap.
    places = (np.int64(1) << np.arange(n_bits)[::-1]).astype(np.int32)
    offsets = (np.arange(n_hashes, dtype=np.int64) << n_bits).astype(np.int32)

    def lsh_projection(
        seeds: jax.Array, x: jax.Array, weights: jax.Array | None = None
    ) -> tuple[jax.Array]:
        bits = (_scores(seeds, x, weights) > 0).astype(np.int32)
        if is_dense:
            return (bits.reshape(-1),)
        return (jnp.sum(bits * places[None], axis=1, dtype=np.int32) + offsets,)

    return lsh_projection


def _scores(seeds: jax.Array, x: jax.Array, weights: jax.Array | None) -> jax.Array:
    """Sums of the items' hashes after each seed, signed: float64 [hashes, bits]."""
    items = _bytes(x.reshape(len(x), -1))
    shape = (*seeds.shape, len(x))
    keys = jnp.concatenate(
        [
            jnp.broadcast_to(_bytes(seeds[..., None])[:, :, None], (*shape, 4)),
            jnp.broadcast_to(items, (*shape, items.shape[-1])),
        ],
        axis=-1,
    )
    hashes = fingerprint64(keys).astype(np.int64).astype(np.float64)
    if weights is not None:
        hashes = hashes * weights.astype(np.float64)[None, None]
    return jnp.sum(hashes, axis=-1)


def _bytes(x: jax.Array) -> jax.Array:
    """[..., n] -> uint8 [..., n * itemsize], each value's lowest byte first."""
    x = x.astype(np.uint8) if x.dtype == np.bool_ else x
    return lax.bitcast_convert_type(x, np.dtype(np.uint8)).reshape(*x.shape[:-1], -1)


RULES = table(
    typed_rule(
        "EMBEDDING_LOOKUP_SPARSE",
        [INT32, INT32, CONSTANTS32, FLOAT32, FLOAT32],
        _lower_embedding_lookup_sparse,
        _why_not_embedding_lookup_sparse,
        results=[np.float32],
    ),
    typed_rule(
        "HASHTABLE_LOOKUP",
        [INT32, INT32, ANY],
        _lower_hashtable_lookup,
        _why_not_hashtable_lookup,
        results=[2, np.uint8],
    ),
    typed_rule(
        "LSH_PROJECTION",
        [FLOAT32, Input(FLOATS | INTEGERS | BOOLS)],
        _lower_lsh_projection,
        _why_not_lsh_projection,
        results=[np.int32],
    ),
)
