"""Functions that many operators of a model share."""

from typing import Any

import jax

# Since JAX 0.12 `inline=True` is at the end of lowering: xla/call_batching.py looks earlier.
_INLINE: Any = jax.Inline.JAX_EARLY if hasattr(jax, "Inline") else True


def traced_once(f: Any) -> Any:
    """`f`, which JAX traces once for each set of shapes, and inlines where it is called.

    Use it for a function that exists once, not for one of each operator. Layers of language models
    are alike, and tracing them takes most of the time before a first token.
    """
    return jax.jit(f, inline=_INLINE)
