"""One row by a small matrix: a sum, equal to the product that other shapes get."""

import numpy as np
import pytest

from jaxdelegate.op_lowering.common.integer_products import product


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("shape", [(1, 24), (24,)])
@pytest.mark.parametrize("units", [1, 5, 400])
def test_it_equals_the_product(axis: int, shape: tuple[int, ...], units: int) -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(-128, 128, shape).astype(np.int8)
    w = rng.integers(-128, 128, (24, units) if axis == 0 else (units, 24)).astype(np.int8)
    got = product(x, w, ((x.ndim - 1,), (axis,)), ((), ()))
    want = x.astype(np.int64) @ (w if axis == 0 else w.T).astype(np.int64)
    assert got.dtype == np.int32
    np.testing.assert_array_equal(got, want)
