"""A cache of a language model in int8: each entry of a token and head has a scale of its own.

Only the programs of language models have such arrays, in place of float32. Operators that move
entries keep them; all others read reals.
"""

from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdelegate.op_lowering.common.basics import LARGEST

_MOST = np.float32(127)
_LEAST = np.float32(1e-30)  # smaller entries become 0


class QuantizedCache(NamedTuple):
    """A JAX pytree of both arrays.

    Attributes:
        values: int8 [..., entries, elements], or [..., elements, entries].
        scales: float32, of the same shape with 1 in place of the elements.
    """

    values: Any
    scales: Any

    @classmethod
    def of(cls, x: Any, axis: int) -> Self:
        """Floats, whose entries' elements are in a dimension; NaN stays."""
        wide = x.astype(np.float32)
        largest = jnp.max(jnp.abs(wide), axis=axis, keepdims=True)
        return cls(*quantized(wide, largest))

    @property
    def axis(self) -> int:
        """The dimension of an entry's elements."""
        pairs = zip(self.values.shape, self.scales.shape, strict=True)
        return next((i for i, (n, one) in enumerate(pairs) if n != one), -1)

    @property
    def shape(self) -> tuple[int, ...]:
        """That of the values."""
        shape: tuple[int, ...] = self.values.shape
        return shape

    @property
    def dtype(self) -> np.dtype:
        """int8."""
        dtype: np.dtype = self.values.dtype
        return dtype

    def astype(self, dtype: Any) -> jax.Array:
        """The reals."""
        reals: jax.Array = (self.values.astype(np.float32) * self.scales).astype(dtype)
        return reals


def quantized(x: jax.Array, largest: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Values and scales of float32 entries whose largest sizes are known; also in a kernel."""
    largest = jnp.minimum(largest, np.float32(LARGEST))
    steps = lax.floor(x * (_MOST / jnp.maximum(largest, _LEAST)) + np.float32(0.5))
    values = jnp.minimum(jnp.maximum(steps, -_MOST), _MOST).astype(np.int8)
    return values, largest * np.float32(1 / _MOST)
