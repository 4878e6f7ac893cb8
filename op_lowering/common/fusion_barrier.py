"""Functions that JAX traces once, and values that XLA:CPU computes once, into memory.

XLA:CPU fuses the computation of a value into each of its readers and repeats it there, even a sum
of many taps; it removes `optimization_barrier` before that. A call that must not be inlined stays,
and its argument is in memory. The call itself does nothing and costs less than a microsecond.
"""

from collections.abc import Callable
from typing import Any

import jax
from jax import lax
from jax.experimental.xla_metadata import set_xla_metadata

# Since JAX 0.12 `inline=True` is at the end of lowering: xla/call_batching.py looks earlier.
_INLINE: Any = jax.Inline.JAX_EARLY if hasattr(jax, "Inline") else True


def traced_once(f: Any) -> Any:
    """`f`, which JAX traces once for each set of shapes, and inlines where it is called.

    Use it for a function that exists once, not for one of each operator. Layers of language models
    are alike, and tracing them takes most of the time before a first token.
    """
    return jax.jit(f, inline=_INLINE)


def fusion_barrier(x: jax.Array) -> jax.Array:
    """`x`, of any shape and dtype, which no later fusion on a CPU computes again.

    It has no effect on other platforms. Derivatives, batches and exports pass through.
    """
    result: jax.Array = _by_platform(x)
    return result


@traced_once
def _by_platform(x: jax.Array) -> jax.Array:
    result: jax.Array = lax.platform_dependent(x, cpu=_called, default=lambda v: v)
    return result


def fused_alone(f: Callable[..., Any]) -> Callable[..., Any]:
    """`f` as a call that XLA:CPU fuses with nothing outside of it."""
    call = jax.jit(f, inline=False)

    def called(*arrays: Any) -> Any:
        with set_xla_metadata(inlineable="false"):  # type: ignore[no-untyped-call]
            return call(*arrays)

    return called


_called = fused_alone(lax.optimization_barrier)  # JAX would drop a bare identity
