"""Elementwise functions that JAX lowers with 64-bit types only.

JAX lowers some of its functions of float64 when the caller compiles, by the caller's settings. If
these have 64-bit types off, JAX takes float32 for a constant and then refuses the two dtypes.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from jaxdelegate.op_lowering.common.derivatives import with_64_bits
from jaxdelegate.op_lowering.common.pointwise import Elementwise


def lowered_wide(function: Elementwise, arity: int) -> Elementwise:
    """The function, which JAX lowers with 64-bit types whatever the caller's settings are.

    Its derivatives are the function's own.
    """
    primitive = Primitive(f"wide_{function.__name__}")
    primitive.def_impl(function)  # type: ignore[no-untyped-call]
    primitive.def_abstract_eval(lambda x, *_: x)  # type: ignore[no-untyped-call]
    with_batches = batching.defvectorized if arity == 1 else batching.defbroadcasting
    with_batches(primitive)  # type: ignore[no-untyped-call]

    def derived(primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        moving = [i for i, t in enumerate(tangents) if not isinstance(t, ad.Zero)]

        def of_moving(*x: Any) -> Any:
            values = dict(zip(moving, x, strict=True))
            return function(*(values.get(i, fixed) for i, fixed in enumerate(primals)))

        at, along = ([some[i] for i in moving] for some in (primals, tangents))
        return bind(*primals), jax.jvp(of_moving, at, along)[1]

    mlir.register_lowering(
        primitive, with_64_bits(mlir.lower_fun(function, multiple_results=False))
    )
    ad.primitive_jvps[primitive] = derived

    def bind(*x: Any) -> jax.Array:
        result: jax.Array = primitive.bind(*x)  # type: ignore[no-untyped-call]
        return result

    return lambda *x: bind(*jnp.broadcast_arrays(*x))
