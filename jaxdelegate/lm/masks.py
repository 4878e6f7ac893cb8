"""The values of the inputs that say where a step's tokens are. Imports jax.

Source: InitializeAttentionMask, FillAttentionMask and FillSingleBufferCacheParamTensor in
runtime/executor/litert_compiled_model_executor_utils.cc of LiteRT-LM, as its CPU executor calls
them (llm_litert_compiled_model_executor.cc).
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdelegate.function.records import TensorInfo
from jaxdelegate.lm.places import MASKED, Attention, Places


def place_inputs(
    places: Places,
    inputs: Mapping[str, TensorInfo],
    start: Any,
    count: Any,
    attention: Attention = Attention(),  # noqa: B008 (immutable)
    ring: int = 0,
) -> dict[str, jax.Array]:
    """The inputs for `count` tokens from the place `start` on, by name.

    Args:
        places: which inputs.
        inputs: all inputs of the signature.
        start: an integer, as an array or not.
        count: the same; at most as many as the signature processes.
        attention: what masks show.
        ring: how many entries the caches have that local masks show.
    """
    assert places.positions is not None
    info = inputs[places.positions]
    numbers = lax.iota(np.int32, int(np.prod(info.shape)))
    is_token = numbers < count
    positions = jnp.where(is_token, start + numbers, np.int32(0))
    found = {places.positions: positions.astype(info.dtype).reshape(info.shape)}

    def add(name: str, sees: jax.Array) -> None:
        found[name] = _encoded(sees & is_token[:, None], inputs[name].dtype)

    queries = (start + numbers)[:, None]
    if places.mask is not None:
        width = inputs[places.mask].shape[-1]
        add(places.mask, _sees(queries, start + count, width, attention.is_causal))
    if places.local_mask is not None:
        width = inputs[places.local_mask].shape[-1]
        add(places.local_mask, _sees_locally(queries, start, count, width, attention, ring))
    if places.params is not None:
        info = inputs[places.params]
        ends = jnp.stack([jnp.asarray(n, info.dtype) for n in (start, *[start + count] * 2)])
        rest = jnp.zeros(int(np.prod(info.shape)) - len(ends), info.dtype)
        found[places.params] = jnp.concatenate([ends, rest]).reshape(info.shape)
    return found


def _encoded(sees: jax.Array, dtype: np.dtype) -> jax.Array:
    """[1, 1, tokens, width]: True and False, or 0 and a negative number."""
    if dtype != np.bool_:
        sees = jnp.where(sees, np.zeros((), dtype), np.asarray(MASKED[dtype], dtype))
    return sees[None, None]


def _sees(queries: jax.Array, end: Any, width: int, is_causal: bool) -> jax.Array:
    """[tokens, width]: which places each token sees."""
    places = lax.iota(np.int32, width)[None]
    sees: jax.Array = places <= (queries if is_causal else jnp.full_like(queries, end - 1))
    return sees


def _sees_locally(
    queries: jax.Array, start: Any, count: Any, width: int, attention: Attention, ring: int
) -> jax.Array:
    """[tokens, width]: which of the last tokens each token sees.

    Their caches have `ring` entries: that of a place is its remainder. A step's own entries are in
    the caches already; or, if the mask is wider, they follow those of the tokens before.
    """
    window = attention.window
    if window is None:
        return _sees(queries, start + count, width, attention.is_locally_causal)
    entries = lax.iota(np.int32, ring)[None]
    if width == ring:
        back = (queries - entries) % ring
        sees: jax.Array = (back < window) & (back <= queries) & (back <= ring - count)
        return sees
    before = start - 1 - (start - 1 - entries) % ring
    old = (before >= 0) & (before > queries - window)
    own = start + lax.iota(np.int32, width - ring)[None]
    near = jnp.abs(queries - own) < window
    new = near & ((own <= queries) if attention.is_locally_causal else (own < start + count))
    return jnp.concatenate([old, new], 1)
