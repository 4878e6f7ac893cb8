"""Gather, scatter and index operators, each as LiteRT's kernels/<operator>.cc computes it.

For an index outside the tensor, where those kernels fail, these raise IndexError.
"""

import math
from typing import Any

import ml_dtypes
import numpy as np

from jaxdelegate.op_lowering.indexing.options import (
    GatherOptions,
    OneHotOptions,
    ReverseSequenceOptions,
)
from jaxdelegate.op_lowering.layout.reference import dequantized_rows
from jaxdelegate.op_lowering.records.record import Options
from jaxdelegate.op_lowering.spec import Shape, Specs
from jaxdelegate.reference.kernel import Array, Kernel, same_shape, without_specs
from jaxdelegate.reference.movement import ints, resolved_axis


def _check(operator: str, indices: Array, size: int) -> None:
    if indices.size and not (indices.min() >= 0 and indices.max() < size):
        raise IndexError(f"{operator}: indices must be in [0, {size}), got {ints(indices)[:8]}")


def gathered_shape(o: GatherOptions, inputs: Specs) -> tuple[Shape | None, ...]:
    """The positions' shape in place of the axis, without the batch dimensions they share."""
    x, positions = inputs[:2]
    axis, batch = _axis_and_batch(o, x.shape, positions.shape)
    return ((*x.shape[:axis], *positions.shape[batch:], *x.shape[axis + 1 :]),)


def _axis_and_batch(o: GatherOptions, x: Shape, positions: Shape) -> tuple[int, int]:
    axis = resolved_axis(o.axis, len(x), "GATHER")
    batch = o.batch_dims + (len(positions) if o.batch_dims < 0 else 0)
    if not 0 <= batch <= min(axis, len(positions)) or x[:batch] != positions[:batch]:
        raise ValueError(f"GATHER: batch_dims {o.batch_dims} does not fit {x} and {positions}")
    return axis, batch


def gather(o: GatherOptions, x: Array, positions: Array) -> Any:
    """Each batch has its own positions."""
    axis, batch = _axis_and_batch(o, x.shape, positions.shape)
    _check("GATHER", positions, x.shape[axis])
    if axis == 0:  # rows, of which a packed table reads only these
        return x[positions.reshape(-1)].reshape((*positions.shape, *x.shape[1:]))
    n_batch, n_picked = math.prod(x.shape[:batch]), math.prod(positions.shape[batch:])
    outer, inner = math.prod(x.shape[batch:axis]), math.prod(x.shape[axis + 1 :])
    flat = x.reshape(n_batch, outer, x.shape[axis], inner)
    every_batch = np.arange(n_batch)[:, np.newaxis]
    # [batch, picked, outer, inner]
    picked = flat[every_batch, :, positions.reshape(n_batch, n_picked)]
    shape = (*x.shape[:axis], *positions.shape[batch:], *x.shape[axis + 1 :])
    return np.moveaxis(picked, 1, 2).reshape(shape)


def gathered_nd_shape(_o: Options, inputs: Specs) -> tuple[Shape | None, ...]:
    """The indices' shape, its last dimension replaced by those that have no coordinate."""
    x, indices = inputs[:2]
    return ((*indices.shape[:-1], *x.shape[indices.shape[-1] :]),)


def gather_nd(_o: Options, x: Array, indices: Array) -> Any:
    depth = indices.shape[-1]
    for i in range(depth):
        _check("GATHER_ND", indices[..., i], x.shape[i])
    if depth == 0:
        return np.broadcast_to(x, (*indices.shape[:-1], *x.shape)).copy()
    return x[tuple(np.moveaxis(indices, -1, 0))]


def scattered_shape(_o: Options, inputs: Specs) -> tuple[Shape | None, ...]:
    shape = inputs[2].const
    return (None if shape is None else _sizes("SCATTER_ND", shape),)


def _sizes(operator: str, shape: Array) -> Shape:
    if min(ints(shape), default=0) < 0:
        raise ValueError(f"{operator}: sizes must not be negative, got {ints(shape)}")
    return tuple(ints(shape))


def scatter_nd(
    _o: Options, _inputs: Specs, outputs: Specs, indices: Array, updates: Array, shape: Array
) -> tuple[Array]:
    """Add the update at every vector of coordinates to zeros; true + true is true."""
    dtype = outputs[0].dtype
    is_half = dtype in (np.float16, ml_dtypes.bfloat16)
    y = np.zeros(_sizes("SCATTER_ND", shape), np.float32 if is_half else dtype)
    for i in range(indices.shape[-1]):
        _check("SCATTER_ND", indices[..., i], y.shape[i])
    add = np.logical_or if dtype == np.bool_ else np.add
    # without coordinates every update goes onto the whole
    everywhere = np.zeros((*indices.shape[:-1], 1), np.int32)
    places = indices if indices.shape[-1] else everywhere
    target = y if indices.shape[-1] else y[np.newaxis]
    add.at(target, tuple(np.moveaxis(places, -1, 0)), updates.astype(y.dtype))
    return (y.astype(dtype),)


def dense_shape(_o: Options, inputs: Specs) -> tuple[Shape | None, ...]:
    shape = inputs[1].const
    return (None if shape is None else _sizes("SPARSE_TO_DENSE", shape),)


def sparse_to_dense(
    _o: Options, indices: Array, shape: Array, values: Array, default: Array
) -> Array:
    """Values at coordinates, the last for equal ones, and a default elsewhere."""
    y = np.full(_sizes("SPARSE_TO_DENSE", shape), default.reshape(()), values.dtype)
    coordinates = indices.reshape(-1, y.ndim)
    for i in range(y.ndim):
        _check("SPARSE_TO_DENSE", coordinates[:, i], y.shape[i])
    y[tuple(coordinates.T)] = values
    return y


def looked_up_shape(_o: Options, inputs: Specs) -> tuple[Shape | None, ...]:
    ids, table = inputs[:2]
    return ((ids.shape[0], *table.shape[1:]),)


def embedding_lookup(
    _o: Options, inputs: Specs, outputs: Specs, ids: Array, table: Array
) -> tuple[Array]:
    """Rows of a quantized table become floats if the output is float."""
    _check("EMBEDDING_LOOKUP", ids, table.shape[0])
    if table.dtype != outputs[0].dtype:
        return (dequantized_rows(inputs[1], outputs[0], table, ids),)
    return (table[ids],)


def one_hot_shape(o: OneHotOptions, inputs: Specs) -> tuple[Shape | None, ...]:
    indices, depth = inputs[:2]
    axis = _class_axis(o, len(indices.shape))
    if depth.const is None:
        return (None,)
    return ((*indices.shape[:axis], _depth(depth.const), *indices.shape[axis:]),)


def _class_axis(o: OneHotOptions, rank: int) -> int:
    if not -1 <= o.axis <= rank:
        raise ValueError(f"ONE_HOT: axis must be in [-1, {rank}], got {o.axis}")
    return rank if o.axis == -1 else o.axis


def _depth(depth: Array) -> int:
    if depth.size != 1 or depth.min() < 0:
        raise ValueError(f"ONE_HOT: depth must be one size, got {ints(depth)}")
    return ints(depth)[0]


def one_hot(o: OneHotOptions, indices: Array, depth: Array, on: Array, off: Array) -> Array:
    """`on` where a new dimension's position is the index, in 32 bits, and `off` elsewhere."""
    axis = _class_axis(o, indices.ndim)
    hot = indices.astype(np.int32)[..., np.newaxis] == np.arange(_depth(depth))
    return np.where(np.moveaxis(hot, -1, axis), on.reshape(()), off.reshape(()))


def reverse_sequence(o: ReverseSequenceOptions, x: Array, lengths: Array) -> Array:
    seq, batch = o.seq_dim, o.batch_dim
    if seq == batch or not (0 <= seq < x.ndim and 0 <= batch < x.ndim):
        raise ValueError(f"REVERSE_SEQUENCE: dimensions {seq}, {batch} of a rank of {x.ndim}")
    if lengths.shape != (x.shape[batch],) or lengths.max(initial=0) > x.shape[seq]:
        raise ValueError(f"REVERSE_SEQUENCE: lengths {ints(lengths)} do not fit {x.shape}")
    y = x.copy()
    of_y, of_x = np.moveaxis(y, (batch, seq), (0, 1)), np.moveaxis(x, (batch, seq), (0, 1))
    for b, length in enumerate(ints(lengths)):
        of_y[b, : max(length, 0)] = of_x[b, : max(length, 0)][::-1]
    return y


def diagonal_shape(_o: Options, inputs: Specs) -> tuple[Shape | None, ...]:
    shape = inputs[0].shape
    return ((*shape, shape[-1]),)


def matrix_diag(_o: Options, x: Array) -> Array:
    y = np.zeros((*x.shape, x.shape[-1]), x.dtype)
    every = np.arange(x.shape[-1])
    y[..., every, every] = x
    return y


def matrix_set_diag(_o: Options, x: Array, diagonal: Array) -> Array:
    y = x.copy()
    every = np.arange(min(x.shape[-2:]))
    y[..., every, every] = diagonal
    return y


def where_shape(_o: Options, inputs: Specs) -> tuple[Shape | None, ...]:
    """[true elements, rank]."""
    condition = inputs[0].const
    if condition is None:
        return (None,)
    return ((int(np.count_nonzero(condition)), condition.ndim),)


def where(_o: Options, _inputs: Specs, outputs: Specs, condition: Array) -> tuple[Array]:
    """The coordinates of nonzero elements, row by row."""
    if condition.ndim == 0:
        raise ValueError("WHERE: the condition must be at least a vector, got a scalar")
    return (np.stack(np.nonzero(condition), -1).astype(outputs[0].dtype),)


def unique_shape(_o: Options, inputs: Specs) -> tuple[Shape | None, ...]:
    """A place for each distinct value, and a position for each element."""
    x = inputs[0]
    different = None if x.const is None else (np.unique(x.const).size,)
    return different, x.shape


def unique(_o: Options, _inputs: Specs, outputs: Specs, x: Array) -> tuple[Array, Array]:
    """The values in order of appearance, and for each element its value's position among them."""
    values, first, inverse = np.unique(x, return_index=True, return_inverse=True)
    order = np.argsort(first)  # positions among the sorted values, by first appearance
    position = np.argsort(order)
    return values[order], position[inverse].astype(outputs[1].dtype)


KERNELS = {
    "GATHER": Kernel(without_specs(gather), gathered_shape, takes_packed=True),
    "GATHER_ND": Kernel(without_specs(gather_nd), gathered_nd_shape),
    "SCATTER_ND": Kernel(scatter_nd, scattered_shape, settled=scattered_shape),
    "SPARSE_TO_DENSE": Kernel(without_specs(sparse_to_dense), dense_shape, settled=dense_shape),
    "EMBEDDING_LOOKUP": Kernel(embedding_lookup, looked_up_shape, takes_packed=True),
    "ONE_HOT": Kernel(without_specs(one_hot), one_hot_shape),
    "REVERSE_SEQUENCE": Kernel(without_specs(reverse_sequence), same_shape),
    "MATRIX_DIAG": Kernel(without_specs(matrix_diag), diagonal_shape),
    "MATRIX_SET_DIAG": Kernel(without_specs(matrix_set_diag), same_shape),
    "WHERE": Kernel(where, where_shape),
    "UNIQUE": Kernel(unique, unique_shape),
}
