"""A batch of rows is one call with more rows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdelegate.op_lowering.common.row_batches import by_matrices, by_rows

RNG = np.random.default_rng(0)
X, W = (RNG.normal(size=shape).astype(np.float32) for shape in ((3, 2, 5), (4, 5)))


def test_rows_of_a_batch_are_one_call() -> None:
    seen: list[tuple[int, ...]] = []

    @by_rows
    def product(x: jax.Array, w: jax.Array) -> jax.Array:
        seen.append(x.shape)
        return x @ w.T

    got = jax.jit(jax.vmap(product, (0, None)))(X, W)
    np.testing.assert_allclose(got, X @ W.T, rtol=0, atol=1e-6)  # sums of numbers of about 1
    nested = jax.vmap(jax.vmap(product, (0, None)), (0, None))(X[None], W)
    np.testing.assert_allclose(nested[0], X @ W.T, rtol=0, atol=1e-6)
    assert {shape for shape in seen if shape != (2, 5)} == {(6, 5)}


@pytest.mark.parametrize("axes", [(0, 0), (None, 0)])
def test_other_filters_for_each_element(axes: tuple[int | None, int]) -> None:
    product = by_rows(lambda x, w: x @ w.T)
    x, w = X if axes[0] == 0 else X[0], jnp.stack([W, 2 * W, 3 * W])
    got = jax.vmap(product, axes)(x, w)
    np.testing.assert_allclose(got, x @ np.swapaxes(w, 1, 2), rtol=1e-6)


def test_matrices_of_a_batch_are_one_call() -> None:
    seen: list[tuple[int, ...]] = []

    @by_matrices(lambda x, w: 2 * (x @ w))
    def product(x: jax.Array, w: jax.Array) -> jax.Array:
        seen.append(x.shape)
        return x @ w

    x, w = (RNG.normal(size=shape).astype(np.float32) for shape in ((3, 2, 4, 5), (3, 2, 5, 6)))
    got = jax.jit(jax.vmap(product))(x, w)
    np.testing.assert_allclose(got, x @ w, rtol=0, atol=1e-5)  # sums of numbers of about 1
    nested = jax.vmap(jax.vmap(product))(x[None], w[None])
    np.testing.assert_allclose(nested[0], x @ w, rtol=0, atol=1e-5)
    assert {shape for shape in seen if shape != (2, 4, 5)} == {(6, 4, 5)}
    otherwise = jax.vmap(product, (0, None))(x, w[0])
    np.testing.assert_allclose(otherwise, 2 * (x @ w[0]), rtol=0, atol=1e-5)
