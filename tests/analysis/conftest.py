"""Small models for the tests of the analysis."""

from collections.abc import Callable

import numpy as np
import pytest

from jaxdelegate.testing.builder import ModelBuilder

SIDE = 4


def chain(*names: str) -> bytes:
    """float32 [1, 4, 4, 8] through unary operators, and ADD with itself; others are custom."""
    builder = ModelBuilder("chain")
    x = builder.input((1, SIDE, SIDE, 8), name="x")
    for i, name in enumerate(names):
        y = builder.tensor((1, SIDE, SIDE, 8), name=f"y{i}")
        builder.operator(name, [x, x] if name == "ADD" else [x], [y])
        x = y
    builder.outputs(x)
    return builder.build()


def fully_connected(rows: int, depth: int, units: int) -> ModelBuilder:
    """One product, float32."""
    builder = ModelBuilder()
    x, y = builder.input((rows, depth), name="x"), builder.tensor((rows, units), name="y")
    w = builder.constant(np.ones((units, depth), np.float32), "w")
    builder.operator("FULLY_CONNECTED", [x, w], [y])
    builder.outputs(y)
    return builder


@pytest.fixture(name="chain")
def _chain() -> Callable[..., bytes]:
    return chain


@pytest.fixture(name="fully_connected")
def _fully_connected() -> Callable[[int, int, int], ModelBuilder]:
    return fully_connected
