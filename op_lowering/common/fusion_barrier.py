"""Values that XLA:CPU computes once, into memory, however many operations read them.

XLA:CPU fuses the computation of a value into each of its readers and repeats it there, even a sum
of many taps; it removes `optimization_barrier` before that. A call that must not be inlined stays,
and its argument is in memory. The call itself does nothing and costs less than a microsecond.
"""

import jax
from jax import lax
from jax.experimental.xla_metadata import set_xla_metadata

from jaxdelegate.op_lowering.common.tracing import traced_once


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


def _called(x: jax.Array) -> jax.Array:
    with set_xla_metadata(inlineable="false"):  # type: ignore[no-untyped-call]
        result: jax.Array = _BARRIER(x)
    return result


# JAX would drop a bare identity.
_BARRIER = jax.jit(lax.optimization_barrier, inline=False)
