"""Gather, scatter and index operators: GATHER, SCATTER_ND, ONE_HOT, REVERSE_SEQUENCE and others.

LiteRT's kernels fail on an index that names no element. Compiled code cannot: a gather takes the
nearest element, a scatter drops the update.
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdelegate.op_lowering.common.basics import int32_indices
from jaxdelegate.op_lowering.common.movement import (
    why_not_axis,
    why_not_indices,
    why_not_moved,
    with_last,
)
from jaxdelegate.op_lowering.common.pointwise import BOOLS, NUMBERS
from jaxdelegate.op_lowering.common.products import nothing
from jaxdelegate.op_lowering.common.signature import ANY, MOVED, WHOLE, Input, moving_rule
from jaxdelegate.op_lowering.indexing import options
from jaxdelegate.op_lowering.layout.rule import lower_dequantizing_lookup, why_not_dequantized
from jaxdelegate.op_lowering.records.record import NoOptions
from jaxdelegate.op_lowering.rule import Function, Op, first_reason, rule, table
from jaxdelegate.op_lowering.spec import TensorSpec


def _why_not_gather(op: Op[options.GatherOptions]) -> str | None:
    x, positions = op.inputs[:2]
    reason = why_not_axis(op.options.axis, len(x.shape))
    if reason is not None:
        return reason
    axis, batch = op.options.axis % len(x.shape), _batch_dims(op)
    batched = 0 <= batch <= min(axis, len(positions.shape))
    if not batched or x.shape[:batch] != positions.shape[:batch]:
        shapes = f"{list(x.shape)} and {list(positions.shape)}"
        return f"batch_dims {op.options.batch_dims} does not fit {shapes}"
    return _why_not_picked(x.shape[axis], op.outputs[0])


def _batch_dims(op: Op[options.GatherOptions]) -> int:
    n = op.options.batch_dims
    return n + len(op.inputs[1].shape) if n < 0 else n


def _why_not_picked(n: int, y: TensorSpec) -> str | None:
    return "there is nothing to gather from" if n == 0 < math.prod(y.shape) else None


def _lower_gather(op: Op[options.GatherOptions]) -> Function:
    if math.prod(op.outputs[0].shape) == 0:  # jnp.take gives empty results a wrong shape
        return nothing(op.outputs)
    batch = _batch_dims(op)
    axis = op.options.axis % len(op.inputs[0].shape) - batch
    take = functools.partial(jnp.take, axis=axis, mode="clip")
    for _ in range(batch):
        take = jax.vmap(take)
    return lambda x, positions: (take(x, int32_indices(positions)),)


def _why_not_gather_nd(op: Op[NoOptions]) -> str | None:
    x, indices = op.inputs[:2]
    if not indices.shape:
        return f"{indices.name!r} must be at least a vector"
    depth = indices.shape[-1]
    if depth > len(x.shape):
        return f"{depth} coordinates for {len(x.shape)} dimensions"
    return _why_not_picked(math.prod(x.shape[:depth]), op.outputs[0])


def _lower_gather_nd(op: Op[NoOptions]) -> Function:
    shape, depth = op.outputs[0].shape, op.inputs[1].shape[-1]
    if math.prod(shape) == 0:
        return nothing(op.outputs)

    def gather_nd(x: jax.Array, indices: jax.Array) -> tuple[jax.Array]:
        where = tuple(int32_indices(indices)[..., i] for i in range(depth))
        y = jnp.asarray(x).at[where].get(mode="clip", wrap_negative_indices=False)
        return (jnp.broadcast_to(y, shape),)  # no coordinates: x itself for every index

    return gather_nd


def _why_not_scatter_nd(op: Op[NoOptions]) -> str | None:
    (indices, updates), y = op.inputs[:2], op.outputs[0]
    if not indices.shape:
        return f"{indices.name!r} must be at least a vector"
    outer, depth = indices.shape[:-1], indices.shape[-1]
    fits = 0 < depth <= len(y.shape) and updates.shape == outer + y.shape[depth:]
    return None if fits else f"updates {list(updates.shape)} do not fit {list(y.shape)}"


def _lower_scatter_nd(op: Op[NoOptions]) -> Function:
    shape, dtype, depth = op.outputs[0].shape, op.outputs[0].dtype, op.inputs[0].shape[-1]
    sum_dtype = op.context.precision.accumulator(dtype)

    def scatter_nd(indices: jax.Array, updates: jax.Array, _shape: jax.Array) -> tuple[jax.Array]:
        where = tuple(indices[..., i] for i in range(depth))
        target = jnp.zeros(shape, sum_dtype).at[where]
        add = target.max if dtype == np.bool_ else target.add  # true + true is true
        y = add(updates.astype(sum_dtype), mode="drop", wrap_negative_indices=False)
        return (y.astype(dtype),)

    return scatter_nd


def _why_not_sparse_to_dense(op: Op[options.SparseToDenseOptions]) -> str | None:
    indices, _shape, values, default = op.inputs[:4]
    return first_reason(
        _why_not_coordinates(indices, values, len(op.outputs[0].shape)),
        None if math.prod(default.shape) == 1 else f"{default.name!r} must hold one value",
    )


def _why_not_coordinates(indices: TensorSpec, values: TensorSpec, rank: int) -> str | None:
    shape = indices.shape
    if len(shape) > 2:
        return f"{indices.name!r} must have rank 2 or less"
    count, depth = shape if len(shape) == 2 else (math.prod(shape), 1)
    fits = 0 < depth == rank and values.shape in ((), (count,))
    return None if fits else f"{list(shape)} indices do not place {list(values.shape)} values"


def _lower_sparse_to_dense(op: Op[options.SparseToDenseOptions]) -> Function:
    """The last of several values for one element is kept, as in the kernel, on every platform."""
    shape = op.outputs[0].shape
    count = op.inputs[0].shape[0] if op.inputs[0].shape else 1

    def sparse_to_dense(
        indices: jax.Array, _shape: jax.Array, values: jax.Array, default: jax.Array
    ) -> tuple[jax.Array]:
        where = tuple(jnp.moveaxis(indices.reshape(count, len(shape)), 1, 0))
        y = jnp.broadcast_to(jnp.reshape(default, ()), shape)

        def maximum(none: jax.Array, order: jax.Array) -> jax.Array:
            return none.at[where].max(order, mode="drop", wrap_negative_indices=False)

        return (with_last(y, jnp.broadcast_to(values, (count,)), maximum) if count else y,)

    return sparse_to_dense


def _why_not_embedding_lookup(op: Op[NoOptions]) -> str | None:
    (ids, table), y = op.inputs[:2], op.outputs[0]
    is_dequantized = table.dtype != y.dtype
    return first_reason(
        why_not_dequantized(table, y) if is_dequantized else why_not_moved(op.context, table, y),
        why_not_indices(ids),
        None if len(ids.shape) == 1 and table.shape else "ids must be a vector, the table rows",
    ) or _why_not_picked(table.shape[0], y)


def _lower_embedding_lookup(op: Op[NoOptions]) -> Function:
    table, y = op.inputs[1], op.outputs[0]
    if math.prod(y.shape) == 0:
        return nothing(op.outputs)
    if table.dtype != y.dtype:
        return lower_dequantizing_lookup(op.context, table, y)
    return lambda ids, table: (jnp.take(table, ids, axis=0, mode="clip"),)


def _why_not_one_hot(op: Op[options.OneHotOptions]) -> str | None:
    indices, _depth, on, off = op.inputs[:4]
    axis = op.options.axis
    single = math.prod(on.shape) == math.prod(off.shape) == 1
    return first_reason(
        None if -1 <= axis <= len(indices.shape) else f"axis {axis} is outside the result",
        None if single else "on_value and off_value must be one value each",
    )


def _lower_one_hot(op: Op[options.OneHotOptions]) -> Function:
    shape = op.outputs[0].shape
    axis = op.options.axis % len(shape)

    def one_hot(
        indices: jax.Array, _depth: jax.Array, on: jax.Array, off: jax.Array
    ) -> tuple[jax.Array]:
        classes = lax.broadcasted_iota(np.int32, shape, axis)
        index = jnp.expand_dims(indices.astype(np.int32), axis)  # the kernel narrows them too
        hot = jnp.broadcast_to(index, shape) == classes
        return (jnp.where(hot, jnp.reshape(on, ()), jnp.reshape(off, ())),)

    return one_hot


def _why_not_reverse_sequence(op: Op[options.ReverseSequenceOptions]) -> str | None:
    x, lengths = op.inputs[:2]
    dims = (op.options.seq_dim, op.options.batch_dim)
    valid = len(set(dims)) == 2 and all(0 <= i < len(x.shape) for i in dims)
    if not valid:
        return f"dimensions {dims} do not name a sequence and a batch"
    n = x.shape[op.options.batch_dim]
    return None if lengths.shape == (n,) else f"{list(lengths.shape)} lengths for a batch of {n}"


def _lower_reverse_sequence(op: Op[options.ReverseSequenceOptions]) -> Function:
    shape, seq, batch = op.inputs[0].shape, op.options.seq_dim, op.options.batch_dim
    if math.prod(shape) == 0:
        return nothing(op.outputs)
    thin = [n if i in (seq, batch) else 1 for i, n in enumerate(shape)]
    per_batch = [n if i == batch else 1 for i, n in enumerate(shape)]

    def reverse_sequence(x: jax.Array, lengths: jax.Array) -> tuple[jax.Array]:
        step = lax.broadcasted_iota(lengths.dtype, thin, seq)
        length = jnp.broadcast_to(lengths.reshape(per_batch), thin)
        source = jnp.where(step < length, length - 1 - step, step)
        return (jnp.take_along_axis(x, source, seq, mode="clip"),)

    return reverse_sequence


def _why_not_matrix_diag(op: Op[NoOptions]) -> str | None:
    x = op.inputs[0]
    return None if x.shape else f"{x.name!r} must be at least a vector"


def _lower_matrix_diag(op: Op[NoOptions]) -> Function:
    y = op.outputs[0]
    return lambda diagonal: (_with_diagonal(jnp.zeros(y.shape, y.dtype), diagonal),)


def _with_diagonal(x: jax.Array, diagonal: jax.Array) -> jax.Array:
    """`x` is [..., rows, columns], the diagonal [..., min(rows, columns)]."""
    rows, columns = x.shape[-2:]
    beyond = [(0, 0, 0)] * (x.ndim - 2) + [(0, columns - diagonal.shape[-1], 0)]
    by_column = lax.pad(diagonal, jnp.zeros((), x.dtype), beyond)
    values = jnp.broadcast_to(jnp.expand_dims(by_column, -2), x.shape)
    on_diagonal = jnp.broadcast_to(np.eye(rows, columns, dtype=bool), x.shape)
    return jnp.where(on_diagonal, values, x)


def _why_not_matrix_set_diag(op: Op[NoOptions]) -> str | None:
    x, diagonal = op.inputs[:2]
    matrix = len(x.shape) >= 2
    fits = matrix and diagonal.shape == (*x.shape[:-2], min(x.shape[-2:]))
    return None if fits else f"{list(diagonal.shape)} is not the diagonal of {list(x.shape)}"


def _lower_matrix_set_diag(_op: Op[NoOptions]) -> Function:
    return lambda x, diagonal: (_with_diagonal(x, diagonal),)


def _why_not_where(op: Op[NoOptions]) -> str | None:
    condition = op.inputs[0]
    return None if condition.shape else f"{condition.name!r} must be at least a vector"


def _lower_where(op: Op[NoOptions]) -> Function:
    coordinates = np.argwhere(np.asarray(op.inputs[0].const)).astype(op.outputs[0].dtype)
    return lambda _condition: (jnp.asarray(coordinates),)


def _why_not_unique(op: Op[options.UniqueOptions]) -> str | None:
    x = op.inputs[0]
    return None if len(x.shape) == 1 else f"{x.name!r} must be a vector"


def _lower_unique(op: Op[options.UniqueOptions]) -> Function:
    ranks: dict[object, int] = {}  # value -> its position among the values in order of appearance
    x = np.asarray(op.inputs[0].const).tolist()
    positions = np.asarray(
        [ranks.setdefault(value, len(ranks)) for value in x], op.outputs[1].dtype
    )
    values = np.asarray(list(ranks)).astype(op.outputs[0].dtype)
    return lambda _x: (jnp.asarray(values), jnp.asarray(positions))


_NUMBERS = Input(NUMBERS | BOOLS)
RULES = table(
    moving_rule("GATHER", 8, [MOVED, WHOLE], _lower_gather, _why_not_gather),
    moving_rule("GATHER_ND", 6, [MOVED, WHOLE], _lower_gather_nd, _why_not_gather_nd),
    moving_rule("SCATTER_ND", 1, [WHOLE, _NUMBERS, ANY], _lower_scatter_nd, _why_not_scatter_nd),
    moving_rule(
        "SPARSE_TO_DENSE",
        3,
        [WHOLE, ANY, MOVED, MOVED],
        _lower_sparse_to_dense,
        _why_not_sparse_to_dense,
    ),
    rule("EMBEDDING_LOOKUP", 5, _why_not_embedding_lookup, _lower_embedding_lookup, arity=2),
    moving_rule("ONE_HOT", 1, [WHOLE, ANY, MOVED, MOVED], _lower_one_hot, _why_not_one_hot),
    moving_rule(
        "REVERSE_SEQUENCE", 1, [MOVED, WHOLE], _lower_reverse_sequence, _why_not_reverse_sequence
    ),
    moving_rule("MATRIX_DIAG", 1, [MOVED], _lower_matrix_diag, _why_not_matrix_diag),
    moving_rule(
        "MATRIX_SET_DIAG", 1, [MOVED, MOVED], _lower_matrix_set_diag, _why_not_matrix_set_diag
    ),
    moving_rule("WHERE", 2, [_NUMBERS._replace(is_constant=True)], _lower_where, _why_not_where),
    moving_rule("UNIQUE", 1, [Input(NUMBERS, is_constant=True)], _lower_unique, _why_not_unique),
)
