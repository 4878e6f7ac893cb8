"""Attention of float32 by this package's CPU kernel, whose logits never leave the cache."""

import math

import jax
import jax.numpy as jnp
import numpy as np

from jaxdelegate.kernels.library import ATTENTION
from jaxdelegate.op_lowering.rule import Function, LoweringContext
from jaxdelegate.op_lowering.spec import Shape, Specs

# Fewer queries are not worth laying out the keys and values for.
LEAST_QUERIES = 16


def takes(context: LoweringContext, logits: Shape, arrays: Specs) -> bool:
    """`logits` is [..., T, S], `arrays` are q, k, v and perhaps a mask."""
    return is_in_float32(context, logits, arrays) and logits[-2] >= LEAST_QUERIES


def is_in_float32(context: LoweringContext, logits: Shape, arrays: Specs) -> bool:
    """Whether one of this package's CPU kernels may compute it; see `takes`."""
    policy, specs = context.precision, [spec for spec in arrays if spec is not None]
    *_, queries, keys = logits
    return (
        context.native_kernels
        and context.may_fuse_floats
        and all(spec.dtype == np.float32 and not spec.is_quantized for spec in specs)
        and policy.storage == np.float32
        and policy.operand_dtype(specs[0].dtype, rows=queries, output_channels=keys) == np.float32
        and math.prod(logits) > 0
    )


def attention(scale: float) -> Function:
    """The function of q [B, T, N, H], k, v [B, S, N, H] and a mask, broadcast to [B, N, T, S]."""
    factor = np.array([scale], np.float32)

    def run(q: jax.Array, k: jax.Array, v: jax.Array, *mask: jax.Array) -> tuple[jax.Array]:
        y_type = jax.ShapeDtypeStruct(q.shape, jnp.float32)  # type: ignore[no-untyped-call]
        call = jax.ffi.ffi_call(ATTENTION, y_type, vmap_method="sequential")
        masks = [jnp.broadcast_to(m, (*m.shape[:-1], k.shape[1])) for m in mask]
        y: jax.Array = call(q, k, v, *masks, scale=factor)
        return (y,)

    return run
