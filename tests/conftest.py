import zlib

import jax
import numpy as np
import pytest

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_default_matmul_precision", "float32")


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    return np.random.default_rng(zlib.crc32(request.node.nodeid.encode()))


def pytest_make_parametrize_id(val: object) -> str | None:
    """Parameters that are functions go by their names: an address differs between processes."""
    return getattr(val, "__name__", None) if callable(val) else None
