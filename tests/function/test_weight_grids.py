"""A weight on its grid is the float of the integer that is saved for it."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdelegate.function.training.weight_grids import WeightGrid
from jaxdelegate.quant import affine
from jaxdelegate.quant.params import Quantization

SHAPE = (4, 6)


def quantization(scales: Any, points: Any, axis: int = 0) -> Quantization:
    return Quantization(
        scale=np.array(scales, np.float32),
        zero_point=np.array(points, np.int64),
        quantized_dimension=axis,
    )


PER_TENSOR = quantization([0.02], [3])
PER_CHANNEL = quantization([0.01, 0.02, 0.5, 3e-5], [0, 0, 0, 0])
GRIDS = [
    WeightGrid(PER_TENSOR, np.dtype(np.int8), is_narrow=False),
    WeightGrid(PER_CHANNEL, np.dtype(np.int8), is_narrow=True),
    WeightGrid(PER_CHANNEL, np.dtype(np.int16), is_narrow=False),
    WeightGrid(quantization([1e-4], [0]), np.dtype(np.int32), is_narrow=False),
]


def values(spread: float = 1.0) -> np.ndarray:
    return np.random.default_rng(0).normal(0, spread, SHAPE).astype(np.float32)


def saved(grid: WeightGrid, x: np.ndarray) -> np.ndarray:
    """What a file holds of the values, and what it means."""
    q, dtype = grid.quantization, grid.dtype
    return affine.dequantize(affine.quantize_weight(x, q, dtype, narrow=grid.is_narrow), q)


@pytest.mark.parametrize("grid", GRIDS, ids=lambda g: str(g.dtype))
def test_equals_what_is_saved(grid: WeightGrid) -> None:
    with jax.enable_x64(True):
        got = np.asarray(grid.put(values()))
    assert np.array_equal(got, saved(grid, values()))


@pytest.mark.parametrize("grid", GRIDS[:2], ids=lambda g: str(g.is_narrow))
def test_a_scale_replaces_that_of_the_file(grid: WeightGrid) -> None:
    new = 2 * grid.quantization.scale
    doubled = quantization(new, grid.quantization.zero_point)
    with jax.enable_x64(True):
        got = np.asarray(grid.put(values(), jnp.asarray(new)))
    want = saved(WeightGrid(doubled, grid.dtype, grid.is_narrow), values())
    np.testing.assert_allclose(got, want, rtol=1e-6)


def test_gradients_pass_inside_the_range_and_end_outside() -> None:
    x = jnp.array([[0.5, -0.5, 100.0, -100.0, 0.0, 2.0]], jnp.float32)
    with jax.enable_x64(True):
        (slopes,) = jax.grad(lambda x: jnp.sum(GRIDS[0].put(x)))(x)
    assert slopes.tolist() == [1, 1, 0, 0, 1, 1]
