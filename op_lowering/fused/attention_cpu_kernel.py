"""Attention of float32 by this package's CPU kernel.

Logits never leave the cache. Keys that the mask hides (-1e9 or less) from all queries of a block
are not read: at the start of a cache, most of them. For few queries the kernel reads keys and
values once, where they are.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np

from jaxdelegate.kernels.library import ATTENTION
from jaxdelegate.op_lowering.common.native_call import native_call
from jaxdelegate.op_lowering.common.row_batches import by_matrices
from jaxdelegate.op_lowering.fused.options import AttentionOptions
from jaxdelegate.op_lowering.rule import Function, LoweringContext
from jaxdelegate.op_lowering.spec import Specs


def takes(context: LoweringContext, options: AttentionOptions, arrays: Specs) -> bool:
    """Whether it multiplies q, k and v, which `arrays` are, perhaps with a mask."""
    policy, specs = context.precision, [spec for spec in arrays if spec is not None]
    *_, queries, keys = options.logits
    return (
        context.kernels.cpu
        and all(spec.dtype == np.float32 and not spec.is_quantized for spec in specs)
        and policy.storage == np.float32
        and policy.operand_dtype(specs[0].dtype, rows=queries, output_channels=keys) == np.float32
        and math.prod(options.logits) > 0
    )


def attention(options: AttentionOptions, otherwise: Function) -> Function:
    """The function of q, k and v, [B, N, T, H] or as the options say, and a mask [B, N, T, S].

    Args:
        options: the layouts.
        otherwise: computes the same where `jax.vmap` adds a dimension to some of the arrays only.
    """
    attributes = {
        "are_last": np.array([options.keys_last, options.values_last], np.int64),
        "scale": np.array([options.scale], np.float32),
    }

    def by_operators(*arrays: jax.Array) -> jax.Array:
        y: jax.Array = otherwise(*arrays)[0]
        return y

    @by_matrices(by_operators)
    def call(q: jax.Array, k: jax.Array, v: jax.Array, *mask: jax.Array) -> jax.Array:
        return native_call(ATTENTION, q.shape, **attributes)(q, k, v, *mask)

    def run(q: jax.Array, k: jax.Array, v: jax.Array, *mask: jax.Array) -> tuple[jax.Array]:
        masks = [jnp.broadcast_to(m, (*m.shape[:-1], options.logits[-1])) for m in mask]
        return (call(q, k, v, *masks),)

    return run
