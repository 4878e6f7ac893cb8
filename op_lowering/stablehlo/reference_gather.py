"""StableHLO's GATHER and SCATTER.

Sources: the StableHLO specification, kernels/stablehlo_{gather,scatter}.cc.
"""

import numpy as np

from jaxdelegate.op_lowering.spec import Shape, Specs
from jaxdelegate.op_lowering.stablehlo.options import (
    StablehloGatherOptions,
    StablehloScatterOptions,
)
from jaxdelegate.op_lowering.stablehlo.reference_shape import check, check_dims
from jaxdelegate.op_lowering.stablehlo.reference_window import Call, elementwise
from jaxdelegate.reference.kernel import Array, Kernel, ResultShapes
from jaxdelegate.reference.pointwise import reject_quantized


def _index_vectors(indices: Array, axis: int) -> Array:
    """[*batch, depth]; where `axis` is after the last dimension, each index is a vector."""
    return indices[..., None] if axis == indices.ndim else np.moveaxis(indices, axis, -1)


def _vectors_shape(shape: Shape, axis: int) -> tuple[Shape, int]:
    check(0 <= axis <= len(shape), f"index_vector_dim {axis} is outside of {list(shape)}")
    return (*shape[:axis], *shape[axis + 1 :]), (*shape, 1)[axis]


# ---- GATHER


def gathered_shape(o: StablehloGatherOptions, inputs: Specs) -> ResultShapes:
    """The batch of indices, with the slices' dimensions at offset_dims."""
    shape = inputs[0].shape
    batch, depth = _vectors_shape(inputs[1].shape, o.index_vector_dim)
    window = [m for d, m in enumerate(o.slice_sizes) if d not in o.collapsed_slice_dims]
    rank = len(batch) + len(window)
    check(len(o.start_index_map) == depth, f"{depth} indices for {o.start_index_map}")
    check(len(o.slice_sizes) == len(shape), f"slices {o.slice_sizes} of {shape}")
    fits = all(0 <= m <= n for m, n in zip(o.slice_sizes, shape, strict=True))
    check(fits, f"slices of {o.slice_sizes} do not fit into {shape}")
    check_dims("start_index_map", o.start_index_map, len(shape))
    check_dims("collapsed_slice_dims", o.collapsed_slice_dims, len(shape), ordered=True)
    check(all(o.slice_sizes[d] <= 1 for d in o.collapsed_slice_dims), f"{o} collapses slices")
    check_dims("offset_dims", o.offset_dims, rank, ordered=True)
    check(len(o.offset_dims) == len(window), f"{o.offset_dims} for slices {o.slice_sizes}")
    sizes, batches = iter(window), iter(batch)
    return (tuple(next(sizes) if d in o.offset_dims else next(batches) for d in range(rank)),)


def gather(
    o: StablehloGatherOptions, _inputs: Specs, outputs: Specs, x: Array, indices: Array
) -> tuple[Array]:
    """Slices are clamped to be inside."""
    vectors = _index_vectors(indices, o.index_vector_dim)
    batch = vectors.shape[:-1]
    window = [m for d, m in enumerate(o.slice_sizes) if d not in o.collapsed_slice_dims]
    y = np.zeros((*batch, *window), x.dtype)
    for place in np.ndindex(*batch):
        start = [0] * x.ndim
        for d, i in zip(o.start_index_map, vectors[place].tolist(), strict=True):
            start[d] = min(max(i, 0), x.shape[d] - o.slice_sizes[d])
        reads = tuple(slice(i, i + m) for i, m in zip(start, o.slice_sizes, strict=True))
        y[place] = x[reads].reshape(window)
    batch_dims = [d for d in range(y.ndim) if d not in o.offset_dims]
    order = np.argsort([*batch_dims, *o.offset_dims])
    return (np.ascontiguousarray(y.transpose(order)).reshape(outputs[0].shape),)


# ---- SCATTER


def scattered_shapes(o: StablehloScatterOptions, inputs: Specs) -> ResultShapes:
    n = len(inputs) // 2
    check(len(inputs) == 2 * n + 1 and n > 0, f"{len(inputs)} inputs: operands, indices, updates")
    shape, updates = inputs[0].shape, inputs[n + 1].shape
    check(all(spec.shape == shape for spec in inputs[:n]), "the operands differ in shape")
    check(all(spec.shape == updates for spec in inputs[n + 1 :]), "the updates differ in shape")
    batch, depth = _vectors_shape(inputs[n].shape, o.index_vector_dim)
    targets = o.scatter_dims_to_operand_dims
    check(len(targets) == depth, f"{depth} indices for {targets}")
    check_dims("scatter_dims_to_operand_dims", targets, len(shape))
    check_dims("inserted_window_dims", o.inserted_window_dims, len(shape), ordered=True)
    check_dims("update_window_dims", o.update_window_dims, len(updates), ordered=True)
    rank = len(o.update_window_dims) + len(o.inserted_window_dims)
    check(rank == len(shape), f"windows {o.update_window_dims} in {shape}")
    update_batch = tuple(m for d, m in enumerate(updates) if d not in o.update_window_dims)
    check(update_batch == batch, f"updates {updates} for indices {inputs[n].shape}")
    return (shape,) * n


def scatter(
    call: Call, o: StablehloScatterOptions, inputs: Specs, outputs: Specs, *arrays: Array
) -> tuple[Array, ...]:
    """Updates outside are ignored.

    The updates of an element are applied in row-major order: the first round applies each
    element's first update, and so on, so that no element has two updates in one round.
    """
    reject_quantized(inputs)
    n, dtypes = len(outputs), [spec.dtype for spec in outputs]
    body = elementwise(call, o.update_computation_subgraph_index, (*dtypes, *dtypes), dtypes)
    shape = arrays[0].shape
    targets = _targets(o, shape, arrays[n], arrays[n + 1].shape)
    flat = [u.reshape(-1) for u in arrays[n + 1 :]]
    kept = targets >= 0
    targets, flat = targets[kept], [u[kept] for u in flat]
    results = [x.reshape(-1).copy() for x in arrays[:n]]
    rounds = _occurrence(targets)
    for i in range(rounds.max(initial=-1) + 1):
        now = rounds == i
        new = body(*(y[targets[now]] for y in results), *(u[now] for u in flat))
        for y, values in zip(results, new, strict=True):
            y[targets[now]] = values
    return tuple(y.reshape(shape) for y in results)


def _targets(o: StablehloScatterOptions, shape: Shape, indices: Array, updates: Shape) -> Array:
    """The element of each update, both in row-major order; -1 for updates outside."""
    vectors = _index_vectors(indices, o.index_vector_dim)
    at = np.indices(updates).reshape(len(updates), -1)
    batch = tuple(at[d] for d in range(len(updates)) if d not in o.update_window_dims)
    place = np.zeros((len(shape), at.shape[1]), object)  # no index is too large for an object
    for i, d in enumerate(o.scatter_dims_to_operand_dims):
        place[d] = vectors[(*batch, i)].astype(object)
    window = (d for d in range(len(shape)) if d not in o.inserted_window_dims)
    for d, source in zip(window, o.update_window_dims, strict=True):
        place[d] = place[d] + at[source]
    inside = np.ones(at.shape[1], bool)
    flat = np.zeros(at.shape[1], object)
    for d, n in enumerate(shape):
        inside &= (place[d] >= 0).astype(bool) & (place[d] < n).astype(bool)
        flat = flat * n + place[d]
    return np.where(inside, flat, -1).astype(np.int64)


def _occurrence(targets: Array) -> Array:
    """The number of equal earlier entries, for each entry."""
    order = np.argsort(targets, kind="stable")
    grouped = targets[order]
    first = np.searchsorted(grouped, grouped, "left")
    counts = np.empty(len(targets), np.int64)
    counts[order] = np.arange(len(targets)) - first
    return counts


KERNELS = {
    "STABLEHLO_GATHER": Kernel(gather, gathered_shape),
    "STABLEHLO_SCATTER": Kernel(scatter, scattered_shapes, calls=True),
}
