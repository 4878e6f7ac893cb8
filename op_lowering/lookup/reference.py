"""Lookups in tables: kernels/{embedding_lookup_sparse,hashtable_lookup,lsh_projection}.cc."""

from typing import Any

import numpy as np

from jaxdelegate.op_lowering.lookup.options import (
    EmbeddingLookupSparseOptions,
    LSHProjectionOptions,
)
from jaxdelegate.op_lowering.lookup.reference_farmhash import fingerprint64
from jaxdelegate.op_lowering.records.enums import CombinerType, LSHProjectionType
from jaxdelegate.op_lowering.records.record import Options
from jaxdelegate.op_lowering.reduction.reference import refuse_quantized
from jaxdelegate.op_lowering.spec import Shape, Specs
from jaxdelegate.reference.kernel import Array, Kernel, without_specs


def embedding_lookup_sparse_shape(_o: Options, inputs: Specs) -> tuple[Shape | None, ...]:
    """The lookup's shape without its last dimension, then a row's shape."""
    lookup_shape, table = inputs[2].const, inputs[4]
    if lookup_shape is None:
        return (None,)
    return ((*(int(n) for n in lookup_shape[:-1]), *table.shape[1:]),)


@np.errstate(all="ignore")
def embedding_lookup_sparse(
    o: EmbeddingLookupSparseOptions, inputs: Specs, _outputs: Specs, *arrays: Array
) -> tuple[Array]:
    """Weighted sums of rows, one for each place of the lookup without its last dimension.

    The arrays are ids [n], indices [n, rank] into the lookup, its shape [rank], weights [n] and a
    table [rows, ...]. Consecutive lookups of one place form a run: a run's rows are added to the
    place's sum, which is then divided by the run's weight.
    """
    ids, indices, lookup_shape, weights, table = arrays
    _check_lookup(inputs, *arrays)
    sizes = [int(n) for n in lookup_shape[:-1]]
    strides = np.array([np.prod(sizes[i + 1 :]) for i in range(len(sizes))], np.int64)
    places = (indices[:, :-1].astype(np.int64) * strides).sum(axis=1)
    y = np.zeros((int(np.prod(sizes)), *table.shape[1:]), np.float32)
    ends = np.flatnonzero(np.diff(places)) + 1
    for run in np.split(np.arange(len(ids)), ends):
        place = places[run[0]] if len(run) else -1
        if 0 <= place < len(y):
            for i in run:
                y[place] += table[ids[i]] * weights[i]
            y[place] /= _total_weight(o.combiner, weights[run])
    return (y.reshape(*sizes, *table.shape[1:]),)


def _total_weight(combiner: CombinerType, weights: Array) -> np.float32:
    if combiner is CombinerType.SUM:
        return np.float32(1)
    mean = combiner is CombinerType.MEAN
    return np.float32(weights.sum() if mean else np.sqrt((weights * weights).sum()))


def _check_lookup(
    inputs: Specs, ids: Array, indices: Array, lookup_shape: Array, weights: Array, table: Array
) -> None:
    refuse_quantized("EMBEDDING_LOOKUP_SPARSE", *inputs)
    wanted = {1: (len(ids), len(lookup_shape)), 3: ids.shape}
    matching = ids.ndim == lookup_shape.ndim == 1 and table.ndim >= 2
    if not matching or indices.shape != wanted[1] or weights.shape != wanted[3]:
        shapes = [list(array.shape) for array in (ids, indices, lookup_shape, weights, table)]
        raise ValueError(f"EMBEDDING_LOOKUP_SPARSE: shapes {shapes} do not match")
    if table.dtype != np.float32 or weights.dtype != np.float32:
        raise TypeError(f"EMBEDDING_LOOKUP_SPARSE: rows are {table.dtype}, not float32")
    if ids.size and not (ids.min() >= 0 and ids.max() < len(table)):
        raise IndexError(f"EMBEDDING_LOOKUP_SPARSE: ids must be in [0, {len(table)})")


def hashtable_lookup_shapes(_o: Options, inputs: Specs) -> tuple[Shape | None, ...]:
    """A row for each query; whether there is one."""
    queries, _keys, rows = inputs[:3]
    return (*queries.shape, *rows.shape[1:]), queries.shape


def hashtable_lookup(_o: Options, queries: Array, keys: Array, rows: Array) -> tuple[Array, Array]:
    """Rows by ascending int32 keys; zeros, or empty strings, for queries without a key."""
    if queries.ndim != 1 or keys.ndim != 1 or rows.shape[:1] != keys.shape or not len(keys):
        shapes = [list(array.shape) for array in (queries, keys, rows)]
        raise ValueError(f"HASHTABLE_LOOKUP: queries, keys and rows are {shapes}")
    places = np.array([_search(int(query), keys.tolist()) for query in queries], int)
    y = rows[places]  # the last row for queries without a key, which become zeros
    y[places < 0] = b"" if rows.dtype == object else np.zeros((), rows.dtype)
    return y, (places >= 0).astype(np.uint8)


def _search(query: int, keys: list[int]) -> int:
    """C's bsearch, whose comparison subtracts and wraps; -1 if the query is not a key."""
    low, high = 0, len(keys)
    while low < high:
        middle = (low + high) // 2
        difference = (query - keys[middle] + 2**31) % 2**32 - 2**31
        if difference == 0:
            return middle
        low, high = (low, middle) if difference < 0 else (middle + 1, high)
    return -1


def lsh_projection_shape(o: LSHProjectionOptions, inputs: Specs) -> tuple[Shape | None, ...]:
    """A number for each hash function (SPARSE), or each of their bits (DENSE)."""
    n_hashes, n_bits = inputs[0].shape
    if o.type not in (LSHProjectionType.SPARSE, LSHProjectionType.DENSE):
        raise ValueError(f"LSH_PROJECTION: type must be SPARSE or DENSE, got {o.type.name}")
    return ((n_hashes if o.type is LSHProjectionType.SPARSE else n_hashes * n_bits,),)


def lsh_projection(
    o: LSHProjectionOptions, seeds: Array, x: Array, weights: Array | None = None
) -> Any:
    """Signs of sums of hashes of the items of x, [items, ...], one for each seed [hashes, bits]."""
    if x.dtype == object:
        raise TypeError("LSH_PROJECTION: string tensors are not supported")
    bad_weights = weights is not None and weights.shape != x.shape[:1]
    if seeds.ndim != 2 or seeds.shape[1] > 32 or x.shape[:1] in ((), (0,)) or bad_weights:
        raise ValueError(f"LSH_PROJECTION: seeds are {seeds.shape}, items {x.shape}")
    bits = (_scores(seeds, x, weights) > 0).astype(np.int32)
    if o.type is LSHProjectionType.DENSE:
        return bits.reshape(-1)
    n_hashes, n_bits = bits.shape
    numbers = (bits.astype(np.int64) << np.arange(n_bits)[::-1]).sum(axis=1)
    return (numbers + (np.arange(n_hashes) << n_bits)).astype(np.int32)  # wraps


def _scores(seeds: Array, x: Array, weights: Array | None) -> Array:
    """Sums of hashes as signed numbers: float64 [hashes, bits]."""
    items = np.ascontiguousarray(x).reshape(len(x), -1).view(np.uint8)
    seed_bytes = np.ascontiguousarray(seeds, "<f4")[..., None].view(np.uint8)
    shape = (*seeds.shape, len(x))
    keys = np.concatenate(
        [
            np.broadcast_to(seed_bytes[:, :, None], (*shape, 4)),
            np.broadcast_to(items, (*shape, items.shape[1])),
        ],
        axis=-1,
    )
    hashes = fingerprint64(keys).view(np.int64).astype(np.float64)
    weighted = hashes if weights is None else hashes * weights.astype(np.float64)
    return np.cumsum(weighted, axis=-1)[..., -1]  # added one by one, unlike sum()


KERNELS = {
    "EMBEDDING_LOOKUP_SPARSE": Kernel(embedding_lookup_sparse, embedding_lookup_sparse_shape),
    "HASHTABLE_LOOKUP": Kernel(without_specs(hashtable_lookup), hashtable_lookup_shapes),
    "LSH_PROJECTION": Kernel(without_specs(lsh_projection), lsh_projection_shape),
}
