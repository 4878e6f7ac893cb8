"""Functions of float64 in programs whose caller has 64-bit types off."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.scipy import special

from jaxdelegate.op_lowering.common.wide_lowering import lowered_wide

scipy = pytest.importorskip("scipy.special")
A, X = np.array([0.5, 2, 3, 30], np.float32), np.array([0.25, 3, 40, 20], np.float32)
FUNCTIONS = [
    (special.i0, scipy.i0, (X,)),
    (special.i0e, scipy.i0e, (X,)),
    (lax.igamma, scipy.gammainc, (A, X)),
    (lax.igammac, scipy.gammaincc, (A, X)),
]
each = pytest.mark.parametrize(("function", "reference", "x"), FUNCTIONS)


@each
def test_values_have_the_precision_of_float64(
    function: Callable[..., Any], reference: Callable[..., Any], x: tuple[np.ndarray, ...]
) -> None:
    wanted = reference(*(v.astype(np.float64) for v in x))

    def relative_error(*x: jax.Array) -> jax.Array:
        with jax.enable_x64(True):
            y = lowered_wide(function, len(x))(*(v.astype(np.float64) for v in x))
            return (y / wanted - 1).astype(np.float32)

    with jax.enable_x64(False):
        assert np.abs(jax.jit(relative_error)(*x)).max() < 1e-12


@each
def test_derivatives_and_batches_are_the_function_s(
    function: Callable[..., Any], reference: Callable[..., Any], x: tuple[np.ndarray, ...]
) -> None:
    del reference
    with jax.enable_x64(True):
        given = [jnp.asarray(v, np.float64) for v in x]
        for by in range(len(x)):
            slope, wanted = (
                jax.vmap(jax.value_and_grad(f, by))
                for f in (lowered_wide(function, len(x)), function)
            )
            for got, want in zip(slope(*given), wanted(*given), strict=True):
                np.testing.assert_array_equal(got, want)


def test_the_second_derivative_by_one_input() -> None:
    """JAX has none by the other: it is not asked for."""

    def curvature(function: Callable[..., Any]) -> jax.Array:
        return jax.grad(jax.grad(lambda x: function(np.float64(2), x)))(np.float64(3))

    with jax.enable_x64(True):
        got, want = (float(curvature(f)) for f in (lowered_wide(lax.igamma, 2), lax.igamma))
    assert got == want != 0
