"""An identity that can be differentiated in forward mode only; reverse mode raises our error."""

import functools
from collections.abc import Sequence
from typing import Any, NoReturn

import jax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from jaxdelegate.errors import GradientError

_IDENTITY = Primitive("forward_only")


def forward_only(x: jax.Array, message: str) -> jax.Array:
    """`x`, of any shape and dtype; derivatives and batches pass through.

    A GradientError has the message when JAX transposes it for a gradient.
    """
    result: jax.Array = _identity(message, x)
    return result


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _identity(_message: str, x: jax.Array) -> jax.Array:
    return x


@_identity.defjvp
def _tangent(
    message: str, primals: Sequence[jax.Array], tangents: Sequence[Any]
) -> tuple[jax.Array, Any]:
    (x,), (t,) = primals, tangents
    is_float0 = t.dtype == jax.dtypes.float0
    return x, t if is_float0 else _IDENTITY.bind(t, message=message)  # type: ignore[no-untyped-call]


def _refuse(*_: Any, message: str) -> NoReturn:
    raise GradientError(message)


def _same(x: Any, **_message: str) -> Any:
    return x


def _lowered(_context: Any, x: Any, **_message: str) -> list[Any]:
    return [x]


_IDENTITY.def_impl(_same)  # type: ignore[no-untyped-call]
_IDENTITY.def_abstract_eval(_same)  # type: ignore[no-untyped-call]
ad.deflinear2(_IDENTITY, _refuse)  # type: ignore[no-untyped-call]
batching.defvectorized(_IDENTITY)  # type: ignore[no-untyped-call]
mlir.register_lowering(_IDENTITY, _lowered)
