"""What the kernels in Pallas for Triton have in common."""

import warnings

import jax


def expect_deprecation() -> None:
    """Ignore that jax 0.11 calls this backend deprecated: the caller cannot change it.

    Where warnings are errors, as in many test suites, every program with such a kernel would fail.
    """
    warnings.filterwarnings("ignore", "The Pallas Triton backend is deprecated", DeprecationWarning)


def both(a: jax.Array, b: jax.Array) -> jax.Array:
    """Masks of rows [M] and of columns [N] -> [M, N]."""
    return a[:, None] & b[None, :]
