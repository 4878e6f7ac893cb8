"""Values that XLA:CPU computes once, into memory, however many operations read them.

XLA:CPU fuses the computation of a value into each of its readers and repeats it there, even a sum
of many taps; it removes `optimization_barrier` before that. A call that must not be inlined stays,
and its argument is in memory. The call itself does nothing and costs less than a microsecond.
"""

from collections.abc import Callable
from typing import Any

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


def fused_alone(f: Callable[..., Any]) -> Callable[..., Any]:
    """`f` as a call that XLA:CPU fuses with nothing outside of it."""
    call = jax.jit(f, inline=False)

    def called(*arrays: Any) -> Any:
        with set_xla_metadata(inlineable="false"):  # type: ignore[no-untyped-call]
            return call(*arrays)

    return called


_called = fused_alone(lax.optimization_barrier)  # JAX would drop a bare identity
