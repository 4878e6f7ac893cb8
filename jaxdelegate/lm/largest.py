"""The largest of many logits: the first one, and the first k, each in a few kernels."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

_LEAST = np.iinfo(np.int32).min


def largest(logits: jax.Array, platform: str = "cpu") -> jax.Array:
    """The place of the first largest logit, int32; if one is NaN, any place.

    Two reductions, which XLA:CPU vectorizes; on a GPU one, which reads the logits once.
    """
    places = lax.iota(np.int32, len(logits))
    last = np.int32(len(logits) - 1)
    if platform == "gpu":
        least = np.float32(-np.inf), last
        return jnp.asarray(lax.reduce((logits, places), least, _first_largest, (0,))[1])
    is_largest = ~(logits < logits.max())
    return jnp.where(is_largest, places, last).min()


def _first_largest(
    a: tuple[jax.Array, jax.Array], b: tuple[jax.Array, jax.Array]
) -> tuple[jax.Array, jax.Array]:
    takes_a = (a[0] > b[0]) | ((a[0] == b[0]) & (a[1] < b[1]))
    return jnp.where(takes_a, a[0], b[0]), jnp.where(takes_a, a[1], b[1])


def chunk_length(count: int, k: int, platform: str) -> int:
    """How many values have one maximum when the largest k of `count` are looked for; 0: none.

    On a GPU `lax.top_k` sorts all values, in 28 kernels for 151,936. Maxima of chunks leave k
    chunks, and two short sorts. The two are about equally long where chunks have the square root
    of count / k values. XLA:CPU looks for the largest ones without a sort.
    """
    chunk = 1 << round(math.log2(max(count / k, 1)) / 2)
    return chunk if platform == "gpu" and 8 * k * chunk <= count else 0


def top_k(values: jax.Array, k: int, chunk: int) -> tuple[jax.Array, jax.Array]:
    """The largest values and their places, as `lax.top_k`: the first ones of equal ones.

    The k chunks whose maxima are the largest, the first ones of equal ones, have all of them: each
    other chunk has k chunks before it, each with a value that comes before all of its own.

    Args:
        values: float32 [n].
        k: how many.
        chunk: from `chunk_length`.

    Returns:
        float32 [k], descending, by the total order of floats: NaN is above infinity, zero above
        minus zero; int32 [k].
    """
    if not chunk:
        return lax.top_k(values, k)
    padding = (0, -len(values) % chunk)
    keys = jnp.pad(ordered(values), padding, constant_values=_LEAST)
    chosen = jnp.sort(lax.top_k(keys.reshape(-1, chunk).max(1), k)[1])
    places = (chosen[:, None] * chunk + lax.iota(np.int32, chunk)[None]).ravel()
    # The values again, not the keys, which would be written to memory for that.
    keys = jnp.where(places < len(values), ordered(values[places]), _LEAST)
    places = places[lax.top_k(keys, k)[1]]
    return values[places], places


def ordered(values: jax.Array) -> jax.Array:
    """int32 in the total order of float32."""
    bits = lax.bitcast_convert_type(values, np.int32)
    return jnp.where(bits < 0, bits ^ np.int32(0x7FFFFFFF), bits)
