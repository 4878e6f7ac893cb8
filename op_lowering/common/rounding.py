"""Float products that are rounded before a sum, which compilers would fuse into one step."""

import jax
import jax.numpy as jnp

_BEYOND = 2.0**127


def rounded(product: jax.Array) -> jax.Array:
    """A float32 product, rounded before it is added to another value or multiplied again.

    XLA lets LLVM fuse a product and a sum into one rounding, on CPU and GPU, and neither
    `lax.optimization_barrier` nor a conversion to float64 and back prevents that; a minimum with a
    number beyond all products does.
    """
    return jnp.minimum(product, jnp.asarray(_BEYOND, product.dtype))
