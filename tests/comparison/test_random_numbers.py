"""Outputs that differ from run to run because operators draw random numbers."""

import numpy as np

from jaxdelegate.comparison.random_numbers import drawing_operators, random_outputs
from jaxdelegate.model.records import read_model
from jaxdelegate.op_lowering.options import RandomOptions
from jaxdelegate.testing import ModelBuilder


def drawing(seed: int) -> ModelBuilder:
    """Two outputs: one of drawn numbers, one of the input."""
    builder = ModelBuilder()
    x = builder.input((2,), np.float32, "x")
    shape = builder.constant(np.array([2], np.int32), "shape")
    drawn, y, z = (builder.tensor((2,), name=name) for name in ("drawn", "y", "z"))
    builder.operator("RANDOM_UNIFORM", [shape], [drawn], RandomOptions(seed=seed))
    builder.operator("ADD", [drawn, x], [y])
    builder.operator("NEG", [x], [z])
    builder.outputs(y, z)
    return builder


def test_what_follows_drawn_numbers_is_random() -> None:
    record = read_model(drawing(0).build())
    main = record.subgraphs[0]
    assert random_outputs(record) == {main.outputs[0]}
    assert drawing_operators(record) == {0}


def test_a_seed_makes_numbers_reproducible() -> None:
    record = read_model(drawing(7).build())
    assert random_outputs(record) == frozenset()
    assert drawing_operators(record) == frozenset()
