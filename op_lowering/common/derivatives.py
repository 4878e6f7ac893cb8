"""Custom derivatives where JAX cannot differentiate, or only uselessly; values do not change."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from jaxdelegate.errors import GradientError

Unary = Callable[[jax.Array], Any]


def with_64_bits(rule: Callable[..., Any]) -> Callable[..., Any]:
    """A rule of JAX's (for a derivative, a lowering) with 64-bit types, like the function itself.

    JAX may call it under any setting, for instance late, when a caller differentiates a function
    under `jax.checkpoint` or `jax.jit`.
    """

    @functools.wraps(rule)
    def wide(*arguments: Any) -> Any:
        with jax.enable_x64(True):
            return rule(*arguments)

    return wide


def derived_as(function: Callable[..., Any], like: Callable[..., Any]) -> Callable[..., Any]:
    """The values of `function`, and the derivative of `like`, of the same shapes and dtypes.

    `Model.function` computes with 64-bit types, but JAX may transpose the result without them:
    float64 inside of `function` is float32 in `like`.
    """
    derived = jax.custom_jvp(function)

    @derived.defjvp
    @with_64_bits
    def _rule(primals: tuple[jax.Array, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
        return derived(*primals), jax.jvp(like, primals, tangents)[1]

    derive: Callable[..., Any] = derived
    return derive


def straight_through(function: Unary, low: float, high: float) -> Unary:
    """`function`, which rounds or clips, with the slope one from `low` to `high`, and zero beyond.

    Rounding itself has the slope zero everywhere, so nothing could be trained through it (Bengio
    et al. 2013; tf.quantization.fake_quant_with_min_max_args does the same). tf.clip_by_value and
    torch.clamp have the slope one at their bounds too.
    """

    def inside(x: jax.Array) -> jax.Array:
        first, last = (np.asarray(bound, x.dtype) for bound in (low, high))
        return jnp.where((x >= first) & (x <= last), x, jnp.zeros_like(x))

    return derived_as(function, inside)


FLOAT_VIEW = (
    "from there on the program computes in integers. Derive the float view, which computes with "
    "the floats that they stand for: load the model with quant_mode='float_view', the default"
)


def underivable(function: Unary, step: str, remedy: str = FLOAT_VIEW) -> Unary:
    """`function`, which returns integers; differentiating through it raises a GradientError.

    JAX would return zeros. The error names the step and a remedy.
    """

    def like(_x: jax.Array) -> NoReturn:
        raise GradientError(f"{step}: integers have no derivative, and {remedy}")

    return derived_as(function, like)


def _flat_root(x: jax.Array) -> jax.Array:
    return jnp.where(x == 0, x, jnp.sqrt(jnp.where(x == 0, jnp.ones_like(x), x)))


# The square root of a norm: its slope at zero is zero, not infinite.
root: Callable[[jax.Array], jax.Array] = derived_as(jnp.sqrt, _flat_root)


def padded(x: jax.Array, fill: jax.Array, widths: Sequence[tuple[int, int, int]]) -> jax.Array:
    """`lax.pad` by one value; JAX cannot differentiate it with respect to that value alone."""

    def chosen(x: jax.Array, fill: jax.Array) -> jax.Array:
        is_inside = lax.pad(jnp.ones(x.shape, bool), jnp.zeros((), bool), widths)
        return jnp.where(is_inside, lax.pad(x, jnp.zeros_like(fill), widths), fill)

    pad = derived_as(lambda x, fill: lax.pad(x, fill, widths), chosen)
    result: jax.Array = pad(jnp.asarray(x), jnp.asarray(fill).reshape(()))
    return result


# ---- an identity that can be differentiated in forward mode only

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
