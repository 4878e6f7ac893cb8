"""Sparse constants: DENSIFY. The graph passes fold it where the result is not too large."""

import math

import jax
import jax.numpy as jnp
import numpy as np

from jaxdelegate.op_lowering.common.signature import Input, moving_rule
from jaxdelegate.op_lowering.records.record import NoOptions
from jaxdelegate.op_lowering.rule import Function, Op, table
from jaxdelegate.op_lowering.spec import Shape, Sparsity


def _strides(sparsity: Sparsity, shape: Shape) -> list[int]:
    """The distance, in the dense tensor, between neighbors on each level."""
    of_dimension = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
    of_level = (*range(len(shape)), *sparsity.block_map)  # the dimension that each belongs to
    strides = []
    levels = zip(sparsity.traversal_order, sparsity.dimensions, strict=True)
    for axis, level in reversed(list(levels)):  # the inside of a block before the blocks
        strides.append(of_dimension[of_level[axis]])
        if axis >= len(shape):
            of_dimension[of_level[axis]] *= level.dense_size
    return strides[::-1]


def _positions(sparsity: Sparsity, shape: Shape) -> np.ndarray:
    """The position of each stored value in the flat dense tensor (sparsity_format_converter.cc)."""
    positions = np.zeros(1, np.int64)
    for level, stride in zip(sparsity.dimensions, _strides(sparsity, shape), strict=True):
        if level.segments is None or level.indices is None:
            positions = np.add.outer(positions, np.arange(level.dense_size) * stride).reshape(-1)
        else:
            within = level.indices.astype(np.int64) * stride
            positions = np.repeat(positions, np.diff(level.segments)) + within
    return positions


def _lower_densify(op: Op[NoOptions]) -> Function:
    shape, sparsity = op.outputs[0].shape, op.inputs[0].sparsity
    if sparsity is None:  # densified already
        return lambda x: (x.reshape(shape),)
    positions = _positions(sparsity, shape)

    def densify(stored: jax.Array) -> tuple[jax.Array]:
        zeros = jnp.zeros(math.prod(shape), stored.dtype)
        return (zeros.at[positions].set(stored, unique_indices=True).reshape(shape),)

    return densify


_STORED = Input(is_constant=True, is_moved=True)
RULES = table(moving_rule("DENSIFY", 1, [_STORED], _lower_densify))
