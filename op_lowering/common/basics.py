"""Helpers that several families of rules share: fused activations, padding, broadcasting."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax import lax

from jaxdelegate.op_lowering.common.derivatives import derived_as
from jaxdelegate.op_lowering.dtypes import FLOATS
from jaxdelegate.op_lowering.records.enums import ActivationFunctionType as Act
from jaxdelegate.op_lowering.records.enums import Nonlinearity, Padding
from jaxdelegate.op_lowering.spec import Shape

# A value that numpy computes ahead of time or jax at run time; both have the same methods.
Array = np.ndarray | jax.Array

# Elements of each array, at most, of programs that can be called directly (jaxdelegate/thunks).
SMALL = 16 * 1024


def scalar(value: float, like: Array) -> jax.Array:
    """`value` in the dtype of `like`: keeps strict dtype promotion quiet and float16 at float16."""
    return jnp.asarray(value, like.dtype)


def _least_of_largest(x: jax.Array, low: Any, high: Any) -> jax.Array:
    # In jax.numpy they take three times as long to trace.
    return lax.min(lax.max(x, np.asarray(low, x.dtype)), np.asarray(high, x.dtype))


_LARGEST_FLOATS = [float(ml_dtypes.finfo(dtype).max) for dtype in FLOATS]  # type: ignore[no-untyped-call]


@functools.lru_cache
def _derived_clamp(low: float, high: float) -> Callable[[jax.Array], jax.Array]:
    first = -np.inf if -low in _LARGEST_FLOATS else low
    last = np.inf if high in _LARGEST_FLOATS else high

    def like(x: jax.Array) -> jax.Array:
        return lax.clamp(np.asarray(first, x.dtype), x, np.asarray(last, x.dtype))

    return derived_as(lambda x: _least_of_largest(x, low, high), like)


def clamp(x: jax.Array, low: Any, high: Any) -> jax.Array:
    """min(max(x, low), high), in the kernels' order; NaN stays NaN.

    The slope is 0 at both bounds, as jax.nn's, TensorFlow's and PyTorch's activations have it, and
    1 at the largest numbers of a dtype, to which only LiteRT clamps. XLA fuses a minimum of a
    maximum, but not `lax.clamp`, into matrix products.
    """
    return _derived_clamp(low, high)(x) if x.dtype in FLOATS else _least_of_largest(x, low, high)


# max(x, 0), with the slope 0 at 0.
relu = derived_as(
    lambda x: lax.max(x, np.asarray(0, x.dtype)),
    lambda x: jnp.where(x > 0, x, jnp.zeros_like(x)),
)


# The largest value of a fused activation, which infinity becomes (CalculateActivationRange,
# kernels/kernel_util.h).
LARGEST = float(np.finfo(np.float32).max)

_ACTIVATIONS: dict[Act, Callable[[jax.Array], jax.Array]] = {
    Act.NONE: lambda x: x,
    Act.RELU: relu,
    Act.RELU_N1_TO_1: lambda x: clamp(x, -1, 1),
    Act.RELU6: lambda x: clamp(x, 0, 6),
    Act.TANH: jnp.tanh,
}


def finite(x: jax.Array) -> jax.Array:
    """Infinities of float32 become the largest number; others stay."""
    return clamp(x, -LARGEST, LARGEST) if x.dtype == np.float32 else x


def why_not_activation(activation: Act) -> str | None:
    if activation in _ACTIVATIONS:
        return None
    return f"fused activation {activation.name} has no kernel in LiteRT"


def fused_activation(activation: Act) -> Callable[[jax.Array], jax.Array]:
    """The function that a kernel applies to its result (kernels/kernel_util.h)."""
    return _ACTIVATIONS[activation]


def int32_indices(indices: Any) -> jax.Array:
    """Indices as int32 or narrower; larger ones saturate, because no dimension is as long.

    The gradient of a gather that clamps is a scatter that clamps. The caller of `jax.grad` lowers
    it, perhaps without 64-bit types, and then it supports neither int64 nor uint32.
    """
    wide = jnp.asarray(indices)
    if wide.dtype in (np.int64, np.uint32, np.uint64):
        low, high = np.iinfo(np.int32).min, np.iinfo(np.int32).max
        if wide.dtype == np.int64:
            wide = jnp.maximum(wide, scalar(low, wide))
        wide = jnp.minimum(wide, scalar(high, wide)).astype(np.int32)
    return wide


def hard_swish(x: jax.Array) -> jax.Array:
    return x * clamp(x + scalar(3, x), 0, 6) / scalar(6, x)


def final_activation(
    activation: Act, nonlinearity: Nonlinearity
) -> Callable[[jax.Array], jax.Array]:
    """A convolution's nonlinearity if it has one, else its fused activation."""
    if nonlinearity is Nonlinearity.NONE:
        return fused_activation(activation)
    return hard_swish if nonlinearity is Nonlinearity.HARD_SWISH else lambda x: x * lax.logistic(x)


def window_padding(
    padding: Padding, n_in: int, window: int, stride: int, dilation: int = 1
) -> tuple[int, int]:
    """Zeros before and after a dimension (kernels/padding.h): SAME puts the odd one after."""
    if padding is Padding.VALID:
        return 0, 0
    n_out = -(-n_in // stride)
    total = max((n_out - 1) * stride + (window - 1) * dilation + 1 - n_in, 0)
    return total // 2, total - total // 2


def align_ranks(*arrays: Any) -> tuple[Any, ...]:
    """Give every array the highest rank by leading ones: TFLite broadcasts from the right."""
    rank = max(a.ndim for a in arrays)
    return tuple(a.reshape((1,) * (rank - a.ndim) + tuple(a.shape)) for a in arrays)


def pad(x: Array, edges: Sequence[tuple[int, int]]) -> Array:
    """Zeros around `x`, by numpy or jax."""
    return jnp.pad(x, edges) if isinstance(x, jax.Array) else np.pad(x, edges)


def concatenated(parts: Sequence[Array], axis: int) -> Array:
    """Arrays along an axis, by numpy or jax."""
    if any(isinstance(part, jax.Array) for part in parts):
        return jnp.concatenate(parts, axis)
    return np.concatenate(parts, axis)


def why_not_broadcast(*shapes: Shape) -> str | None:
    try:
        np.broadcast_shapes(*shapes)
    except ValueError:
        return f"shapes {' and '.join(str(list(s)) for s in shapes)} do not broadcast"
    return None
