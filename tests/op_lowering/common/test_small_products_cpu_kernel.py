"""Small float32 products of several rows by the CPU kernel."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdelegate.kernels.library import BATCH_MATMUL
from jaxdelegate.op_lowering.common.products import Arithmetic
from jaxdelegate.op_lowering.common.small_products_cpu_kernel import product, takes
from jaxdelegate.op_lowering.precision import BFLOAT16, PrecisionPolicy
from jaxdelegate.op_lowering.rule import KernelSet, LoweringContext
from jaxdelegate.op_lowering.spec import TensorSpec
from tests.support.combinations import covering

pytestmark = pytest.mark.usefixtures("built")
CONTEXT = LoweringContext(kernels=KernelSet(cpu=True))


def array(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize(
    ("rows", "depth", "columns", "is_transposed"),
    covering((2, 3, 16, 17, 60), (1, 3, 20, 64, 100), (1, 5, 16, 33), (True, False)),
)
def test_products(rows: int, depth: int, columns: int, is_transposed: bool) -> None:
    x = array(2, rows, depth)
    w = array(*((columns, depth) if is_transposed else (depth, columns)), seed=1)
    y = jax.jit(lambda x, w: product(x, w, is_transposed=is_transposed))(x, w)
    wanted = x.astype(np.float64) @ (w.T if is_transposed else w)
    assert y.shape == (2, rows, columns)
    np.testing.assert_allclose(y, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("axes", [(0, None), (0, 0), (None, 0)], ids=str)
def test_batches(axes: tuple[int | None, int | None]) -> None:
    x, w = (array(*((4,) if axis == 0 else ()), 3, 5, seed=i) for i, axis in enumerate(axes))
    run = jax.jit(jax.vmap(lambda x, w: product(x, w, is_transposed=True), axes))
    np.testing.assert_allclose(run(x, w), x @ np.swapaxes(w, -1, -2), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("x", "w", "wanted"),
    [
        ((2, 8), (4, 8), True),
        ((1, 8), (4, 8), False),  # XLA's own code
        ((1, 2, 8), (4, 8), True),
        ((8,), (4, 8), False),
        ((2, 0), (4, 0), False),
        ((2, 128), (128, 128), True),
        ((2, 128), (129, 128), False),
        ((129, 128), (4, 128), False),
        ((2, 8), (3, 4, 8), False),
    ],
)
def test_which_are_taken(x: tuple[int, ...], w: tuple[int, ...], wanted: bool) -> None:
    own, other = jnp.zeros(x, jnp.float32), jnp.zeros(w, jnp.float32)
    assert takes(own, other, is_transposed=True) == wanted
    if len(w) == 2:
        assert takes(own, other.T, is_transposed=False) == wanted
    assert not takes(own.astype(jnp.bfloat16), other, is_transposed=True)


@pytest.mark.parametrize(
    ("context", "wanted"),
    [
        (CONTEXT, True),
        (dataclasses.replace(CONTEXT, kernels=KernelSet()), False),
        (dataclasses.replace(CONTEXT, precision=PrecisionPolicy(storage=BFLOAT16)), False),
    ],
)
def test_rules_use_them(context: LoweringContext, wanted: bool) -> None:
    specs = [TensorSpec("t", shape, np.dtype(np.float32)) for shape in ((3, 8), (8, 4))]
    arithmetic = Arithmetic.of_dot(context, 3, 4, *specs)
    x, w = (arithmetic.reduced(array(*spec.shape)) for spec in specs)
    text = jax.jit(lambda x, w: arithmetic.dot(x, w, ((1,), (0,)))).lower(x, w).as_text()
    assert (BATCH_MATMUL in text) == wanted
