"""Values that XLA:CPU computes once, into memory, however many read them.

XLA:CPU fuses what computes a value into each of its readers, and computes it again there, even a
sum of many taps; `optimization_barrier` is gone before it does so. A call that must not be inlined
stays, and its argument lies in memory. The call itself does nothing, and costs below a microsecond.
"""

import functools
from typing import Any

import jax
from jax import lax
from jax.experimental.xla_metadata import set_xla_metadata


def fusion_barrier(x: jax.Array) -> jax.Array:
    """`x`, which no fusion after computes again; other platforms than a CPU decide by themselves.

    Args:
        x: of any shape and dtype. Derivatives, batches and exports pass through.
    """
    result: jax.Array = _by_platform(x)
    return result


# From JAX 0.12 on `inline=True` is at the end of lowering: xla/call_batching.py looks earlier.
_INLINE: Any = jax.Inline.JAX_EARLY if hasattr(jax, "Inline") else True


@functools.partial(jax.jit, inline=_INLINE)  # traced once for each shape
def _by_platform(x: jax.Array) -> jax.Array:
    result: jax.Array = lax.platform_dependent(x, cpu=_called, default=lambda v: v)
    return result


def _called(x: jax.Array) -> jax.Array:
    with set_xla_metadata(inlineable="false"):  # type: ignore[no-untyped-call]
        result: jax.Array = _BARRIER(x)
    return result


# A bare identity JAX would drop itself.
_BARRIER = jax.jit(lax.optimization_barrier, inline=False)
