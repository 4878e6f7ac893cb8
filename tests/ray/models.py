"""Small models for the tests of Ray."""

import numpy as np

from jaxdelegate.op_lowering.options import (
    FullyConnectedOptions,
    GatherOptions,
    ReshapeOptions,
)
from jaxdelegate.testing.builder import ModelBuilder

WEIGHTS = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)


def dense(*, signature: bool = True) -> bytes:
    """[n, 3] times WEIGHTS: [n, 4]; the input is x, the output scores."""
    builder = ModelBuilder()
    x = builder.input((1, 3), np.float32, "x", shape_signature=(-1, 3))
    y = builder.tensor((1, 4), np.float32, "scores")
    weights = builder.constant(WEIGHTS, "weights")
    builder.operator("FULLY_CONNECTED", [x, weights, -1], [y], FullyConnectedOptions())
    builder.outputs(y)
    if signature:
        builder.signature("serving_default", {"x": x}, {"scores": y})
    return builder.build()


def flattened() -> bytes:
    """[1, 2, 3], flattened to [6] whatever the batch: a batch must be single runs."""
    builder = ModelBuilder()
    x = builder.input((1, 2, 3), np.float32, "x")
    shape = builder.constant(np.array([6], np.int32))
    y = builder.tensor((6,), np.float32, "flat")
    builder.operator("RESHAPE", [x, shape], [y], ReshapeOptions(new_shape=(6,)))
    builder.outputs(y)
    return builder.build()


def lookup() -> bytes:
    """Rows of a table of 5 by index [n]: [n, 2]. On the host an index out of range is an error."""
    builder = ModelBuilder()
    table = builder.constant(np.arange(10, dtype=np.float32).reshape(5, 2))
    index = builder.input((1,), np.int32, "index", shape_signature=(-1,))
    y = builder.tensor((1, 2), np.float32, "found")
    builder.operator("GATHER", [table, index], [y], GatherOptions())
    builder.outputs(y)
    return builder.build()


def texts(count: int) -> bytes:
    """`count` of `count` strings by index; on the host."""
    builder = ModelBuilder()
    text = builder.input((count,), object, "text")
    index = builder.input((count,), np.int32, "index")
    y = builder.tensor((count,), object, "chosen")
    builder.operator("GATHER", [text, index], [y], GatherOptions())
    builder.outputs(y)
    return builder.build()


def vector() -> bytes:
    """A model without a batch: [3] plus [3]."""
    builder = ModelBuilder()
    x = builder.input((3,), np.float32, "x")
    y = builder.tensor((3,), np.float32, "sum")
    builder.operator("ADD", [x, x], [y])
    builder.outputs(y)
    return builder.build()
