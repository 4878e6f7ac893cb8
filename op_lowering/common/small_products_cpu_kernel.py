"""Small float32 matrix products of several rows by this package's CPU kernel.

XLA leaves them to a library, which only its runtime can call: a program with such a product could
not be called directly (jaxdelegate/direct).
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np

from jaxdelegate.kernels.library import BATCH_MATMUL
from jaxdelegate.op_lowering.common.row_batches import OfRows, by_matrices
from jaxdelegate.op_lowering.precision import FLOAT32
from jaxdelegate.op_lowering.rule import LoweringContext
from jaxdelegate.op_lowering.spec import Shape

_MOST_VALUES = 16 * 1024  # of each array


def takes(context: LoweringContext, x: Shape, w: Shape, columns: int) -> bool:
    """Whether the kernel multiplies float32 x [..., K] by a matrix w; one row is XLA's own code."""
    policy, rows = context.precision, math.prod(x[:-1])
    factor = policy.operand_dtype(np.dtype(np.float32), rows=rows, output_channels=columns)
    return (
        context.native_kernels
        and policy.storage == factor == FLOAT32
        and rows > 1
        and max(math.prod(x), math.prod(w), rows * columns) <= _MOST_VALUES
        and min(math.prod(x), math.prod(w)) > 0
    )


def product(x: jax.Array, w: jax.Array, *, is_transposed: bool) -> jax.Array:
    """float32 x [..., K] times w [K, N], or [N, K] if transposed -> [..., N]."""
    y = _product(is_transposed)(x.reshape(1, -1, x.shape[-1]), w[None])
    return y.reshape(*x.shape[:-1], y.shape[-1])


@functools.cache
def _product(is_transposed: bool) -> OfRows:
    attributes = {"is_transposed": np.array([is_transposed], np.int64)}

    def by_xla(x: jax.Array, w: jax.Array) -> jax.Array:
        return jnp.matmul(x, w.mT if is_transposed else w, precision=jax.lax.Precision.HIGHEST)

    @by_matrices(by_xla)
    def multiply(x: jax.Array, w: jax.Array) -> jax.Array:
        shape = (*x.shape[:-1], w.shape[-2 if is_transposed else -1])
        y_type = jax.ShapeDtypeStruct(shape, jnp.float32)  # type: ignore[no-untyped-call]
        call = jax.ffi.ffi_call(BATCH_MATMUL, y_type, vmap_method="sequential")
        y: jax.Array = call(x, w, **attributes)
        return y

    return multiply
