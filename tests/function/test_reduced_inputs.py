"""Inputs in reduced precision of functions for the engine: caches, changed in part."""

import ml_dtypes
import numpy as np
import pytest

import jaxdelegate as jd
from jaxdelegate.errors import OptionError, TensorError
from jaxdelegate.function.apply import Apply
from jaxdelegate.function.mode import Mode
from jaxdelegate.function.model import CallableModel
from jaxdelegate.testing import ModelBuilder


@pytest.fixture(scope="module")
def model() -> CallableModel:
    """A cache [4, 8], an update of one row of it, and a product that reads the updated cache."""
    builder = ModelBuilder()
    cache, row = builder.input((4, 8), np.float32), builder.input((1, 8), np.float32)
    new, y = builder.tensor((4, 8)), builder.tensor((4, 8))
    start = builder.constant(np.array([2, 0], np.int32), "start")
    builder.operator("DYNAMIC_UPDATE_SLICE", [cache, row, start], [new])
    builder.operator("MUL", [new, new], [y])
    builder.outputs(new, y)
    return jd.load(builder.build(), platform="cpu")


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32])
def test_a_cache_leaves_as_it_came(model: CallableModel, dtype: type) -> None:
    rng = np.random.default_rng(0)
    cache, row = rng.normal(size=(4, 8)).astype(dtype), np.ones((1, 8), np.float32)
    row[0, :3] = 1e6, -1e6, np.inf
    apply, params = model.function()
    internal = Apply(apply.model, None, Mode(io="reduced"))
    new, y = internal(params, cache, row)
    with np.errstate(over="ignore"):
        want = cache.copy()
        want[2] = row[0] if dtype is not np.float16 else np.clip(row[0], -65504, 65504)
        want[2, 2] = np.inf
    assert new.dtype == dtype
    np.testing.assert_array_equal(np.asarray(new, np.float32), want.astype(np.float32))
    assert y.dtype == np.float32
    finite = np.isfinite(want.astype(np.float32))
    np.testing.assert_allclose(np.asarray(y)[finite], np.square(want.astype(np.float32))[finite])


def test_users_get_an_error(model: CallableModel) -> None:
    apply, params = model.function()
    with pytest.raises(TensorError, match="wants float32"):
        apply(params, np.zeros((4, 8), np.float16), np.zeros((1, 8), np.float32))
    with pytest.raises(OptionError, match="expected 'file' or 'float', got 'reduced'"):
        model.function(io="reduced")  # type: ignore[arg-type]
