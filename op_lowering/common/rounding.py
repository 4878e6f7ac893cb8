"""Float arithmetic in the steps of a kernel, where compilers would merge two into one."""

import jax
import jax.numpy as jnp

_BEYOND = 2.0**127


def rounded(product: jax.Array) -> jax.Array:
    """A float32 product that is rounded before it is added to something, or multiplied again.

    XLA lets LLVM fuse a product and a sum into one rounding, on CPU and GPU, and neither
    `lax.optimization_barrier` nor a detour over float64 keeps it from that; a minimum with
    something beyond all products does.
    """
    return jnp.minimum(product, jnp.asarray(_BEYOND, product.dtype))
