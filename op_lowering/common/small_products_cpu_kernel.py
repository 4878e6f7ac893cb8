"""Small float32 matrix products of several rows by this package's CPU kernel.

XLA leaves them to a library, which only its runtime can call: a program with such a product could
not be called directly (jaxdelegate/thunks).
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np

from jaxdelegate.kernels.library import BATCH_MATMUL
from jaxdelegate.op_lowering.common.basics import SMALL
from jaxdelegate.op_lowering.common.native_call import native_call
from jaxdelegate.op_lowering.common.row_batches import OfRows, by_matrices
from jaxdelegate.op_lowering.precision import FLOAT32
from jaxdelegate.op_lowering.rule import LoweringContext


def may_multiply(context: LoweringContext, operand: np.dtype) -> bool:
    """Whether the kernel computes products with operands of this dtype."""
    return context.kernels.cpu and context.precision.storage == operand == FLOAT32


def takes(x: jax.Array, w: jax.Array, *, is_transposed: bool) -> bool:
    """Whether x [..., K] and w are small, and more than one row, for which XLA has its own code."""
    if not x.dtype == w.dtype == FLOAT32 or w.ndim != 2 or x.ndim < 1:
        return False
    rows, columns = math.prod(x.shape[:-1]), w.shape[0 if is_transposed else 1]
    sizes = (x.size, w.size, rows * columns)
    return rows > 1 and min(sizes) > 0 and max(sizes) <= SMALL


def product(x: jax.Array, w: jax.Array, *, is_transposed: bool) -> jax.Array:
    """float32 x [..., K] times w [K, N], or [N, K] if transposed -> [..., N]."""
    y = _product(is_transposed)(x.reshape(1, -1, x.shape[-1]), w[None])
    return y.reshape(*x.shape[:-1], y.shape[-1])


@functools.cache
def _product(is_transposed: bool) -> OfRows:
    def by_xla(x: jax.Array, w: jax.Array) -> jax.Array:
        return jnp.matmul(x, w.mT if is_transposed else w, precision=jax.lax.Precision.HIGHEST)

    return batch_product(by_xla, is_transposed=is_transposed)


def batch_product(otherwise: OfRows, *, is_transposed: bool) -> OfRows:
    """The kernel's function of x [batch, M, K] and w [batch, K, N], or [batch, N, K] if transposed.

    `otherwise` computes the same where `jax.vmap` adds a dimension to one of them only.
    """

    @by_matrices(otherwise)
    def multiply(x: jax.Array, w: jax.Array) -> jax.Array:
        shape = (*x.shape[:-1], w.shape[-2 if is_transposed else -1])
        flag = np.array([is_transposed], np.int64)
        return native_call(BATCH_MATMUL, shape, is_transposed=flag)(x, w)

    return multiply
