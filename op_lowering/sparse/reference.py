"""Sparse tensors: DENSIFY, and any constant that a file stores sparse.

Source: kernels/densify.cc, kernels/internal/utils/sparsity_format_converter.cc. The format: levels
nest, the outermost first. A dense level has an entry for each index; a compressed one lists the
stored indices for each entry above it. Levels are the tensor's dimensions in some order, then the
blocks that some of them are divided into.
"""

import dataclasses

import numpy as np

from jaxdelegate.op_lowering.records.record import Options
from jaxdelegate.op_lowering.spec import DimensionSparsity, Specs, TensorSpec
from jaxdelegate.reference.kernel import Array, Kernel, same_shape


def densify(_o: Options, inputs: Specs, _outputs: Specs, stored: Array) -> tuple[Array]:
    return (densified(dataclasses.replace(inputs[0], const=stored)),)


def densified(spec: TensorSpec) -> Array:
    """A constant tensor in full, [*spec.shape], as a kernel of sparse weights reads it.

    With `sparsity`, the spec's `const` is the flat array of stored values, else the tensor.
    """
    if spec.const is None:
        raise ValueError(f"{spec.name!r} is not constant")
    if spec.sparsity is None:
        return spec.const.reshape(spec.shape)
    rank, blocks = len(spec.shape), spec.sparsity.block_map
    coordinates = [np.zeros(1, int)] * rank  # a level's entries, by dimension
    count = 1
    for dimension, level in zip(
        spec.sparsity.traversal_order, spec.sparsity.dimensions, strict=True
    ):
        parents, indices = _entries(level, count)
        count = indices.size
        coordinates = [c[parents] for c in coordinates]
        if dimension < rank:
            coordinates[dimension] = indices
        else:
            blocked = blocks[dimension - rank]
            coordinates[blocked] = coordinates[blocked] * level.dense_size + indices
    y = np.zeros(spec.shape, spec.dtype)
    y[tuple(coordinates)] = spec.const.reshape(-1)
    return y


def _entries(level: DimensionSparsity, count: int) -> tuple[Array, Array]:
    """A level's entries in order: the parent among `count` entries above, and the index."""
    if level.segments is None or level.indices is None:
        n = level.dense_size
        return np.repeat(np.arange(count), n), np.tile(np.arange(n), count)
    return np.repeat(np.arange(count), np.diff(level.segments)), level.indices


KERNELS = {"DENSIFY": Kernel(densify, same_shape)}
