"""Attention of few queries in float32 by this package's CPU kernel.

It reads keys and values where they are, for example in a cache, as the products of few rows do
(`matmul.cpu_kernel_batch_matmul`), and is one call of XLA instead of nine.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np

from jaxdelegate.kernels.library import FEW_QUERIES
from jaxdelegate.op_lowering.common.row_batches import by_matrices
from jaxdelegate.op_lowering.fused.attention_cpu_kernel import is_in_float32
from jaxdelegate.op_lowering.fused.options import AttentionOptions
from jaxdelegate.op_lowering.matmul.cpu_kernel_batch_matmul import MOST_ROWS
from jaxdelegate.op_lowering.rule import Function, LoweringContext
from jaxdelegate.op_lowering.spec import Shape, Specs


def takes(context: LoweringContext, options: AttentionOptions, arrays: Specs) -> bool:
    """Whether it multiplies q, k and v, which `arrays` are, perhaps with a mask."""
    most = min(MOST_ROWS[not options.keys_last], MOST_ROWS[options.values_last])
    return is_in_float32(context, options.logits, arrays) and options.logits[-2] <= most


def attention(options: AttentionOptions, shape: Shape, otherwise: Function) -> Function:
    """The function of q, k, v, as the options describe them, and perhaps a mask.

    Args:
        options: the layouts.
        shape: of the result.
        otherwise: computes the same where `jax.vmap` adds a dimension to some of the arrays only.
    """
    *batch, _, keys = options.logits
    heads = math.prod(batch)
    attributes = {
        "are_last": np.array([options.keys_last, options.values_last], np.int64),
        "scale": np.array([options.scale], np.float32),
    }

    def by_operators(*arrays: jax.Array) -> jax.Array:
        q, k, v, *mask = arrays
        shapes = ((*batch, *a.shape[-2:]) for a in (q, k, v))
        arrays = tuple(a.reshape(s) for a, s in zip((q, k, v), shapes, strict=True))
        (y,) = otherwise(*arrays, *mask)
        found: jax.Array = y.reshape(q.shape)
        return found

    @by_matrices(by_operators)
    def call(q: jax.Array, k: jax.Array, v: jax.Array, *mask: jax.Array) -> jax.Array:
        y_type = jax.ShapeDtypeStruct(q.shape, jnp.float32)  # type: ignore[no-untyped-call]
        kernel = jax.ffi.ffi_call(FEW_QUERIES, y_type, vmap_method="sequential")
        y: jax.Array = kernel(q, k, v, *mask, **attributes)
        return y

    def run(q: jax.Array, k: jax.Array, v: jax.Array, *mask: jax.Array) -> tuple[jax.Array]:
        arrays = (a.reshape(heads, *a.shape[-2:]) for a in (q, k, v))
        masks = (_by_head(m, tuple(batch), keys) for m in mask)
        return (call(*arrays, *masks).reshape(shape),)

    return run


def _by_head(mask: jax.Array, batch: tuple[int, ...], keys: int) -> jax.Array:
    """[heads or fewer, queries or 1, keys]: each row serves as many adjacent heads."""
    mask = mask.reshape((1,) * (len(batch) + 2 - mask.ndim) + mask.shape)
    shared = len(batch)
    while shared and mask.shape[shared - 1] == 1:
        shared -= 1
    whole = jnp.broadcast_to(mask, (*batch[:shared], *mask.shape[shared:-1], keys))
    return whole.reshape(-1, *whole.shape[-2:])
