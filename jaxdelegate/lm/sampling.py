"""The next token of each sequence, chosen on the device from its logits."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdelegate.lm.choices import LARGE, Choice, Variant


def next_token(
    variant: Variant, choice: Choice, logits: jax.Array, answer: jax.Array, count: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Choose a token.

    Args:
        variant: what may be needed.
        choice: how.
        logits: float32 [vocabulary].
        answer: int32 [capacity]: the tokens of the answer so far, then anything.
        count: int32: how many these are.

    Returns:
        The token, int32, and the logarithm of its probability by the model's own logits (0 without
        `has_scores`).
    """
    own = logits
    if variant.has_rules:
        logits = _ruled(variant, choice, logits, answer, count)
    if variant.is_masked:
        logits = _masked(choice.allowed, logits)
    token = largest(logits) if variant.k == 1 else _sampled(variant, choice, logits, count)
    score = jax.nn.log_softmax(own)[token] if variant.has_scores else jnp.zeros((), np.float32)
    return token, score


def largest(logits: jax.Array) -> jax.Array:
    """The place of the first largest logit, by two reductions, which XLA:CPU vectorizes."""
    places = lax.iota(np.int32, len(logits))
    is_largest = ~(logits < logits.max())  # NaN: all are
    return jnp.where(is_largest, places, np.int32(len(logits) - 1)).min()


def _sampled(variant: Variant, choice: Choice, logits: jax.Array, count: jax.Array) -> jax.Array:
    values, tokens = lax.top_k(logits, variant.k)
    ranks = lax.iota(np.int32, variant.k)
    values = jnp.where(ranks < choice.k, values, -jnp.inf)
    is_greedy = (choice.temperature <= 0) | (choice.k <= 1)
    scaled = (values - values[0]) / jnp.where(is_greedy, np.float32(1), choice.temperature)
    chances = jax.nn.softmax(scaled)
    before = jnp.cumsum(chances) - chances
    kept = jnp.where((before < choice.p) | (ranks == 0), scaled, -jnp.inf)
    key = jax.random.fold_in(jax.random.key(choice.seed), count)
    drawn = jnp.argmax(kept + jax.random.gumbel(key, kept.shape, np.float32))
    return jnp.asarray(tokens[jnp.where(is_greedy, 0, drawn)], np.int32)


def _ruled(
    variant: Variant, choice: Choice, logits: jax.Array, answer: jax.Array, count: jax.Array
) -> jax.Array:
    places = lax.iota(np.int32, len(answer))
    times = _times(answer, _recent(places, count, choice.window), len(logits))
    repetition, presence, frequency = choice.penalties
    lowered = jnp.where(logits > 0, logits / repetition, logits * repetition)
    logits = jnp.where(times > 0, lowered - presence, logits) - frequency * times
    if variant.ngram:
        repeats = _ends_ngram(variant.ngram, answer, count, choice.ngram_window)
        logits = jnp.where(_times(answer, repeats, len(logits)) > 0, -LARGE, logits)
    ruled: jax.Array = logits + choice.suppressed
    return ruled


def _masked(allowed: jax.Array, logits: jax.Array) -> jax.Array:
    bits = allowed[:, None] >> lax.iota(np.uint32, 32)[None] & np.uint32(1)
    return jnp.where(bits.ravel()[: len(logits)] == 1, logits, -jnp.inf)


def _recent(places: jax.Array, count: jax.Array, window: jax.Array) -> jax.Array:
    """Whether each place of the answer is among its last tokens."""
    return (places < count) & ((window == 0) | (places >= count - window))


def _times(answer: jax.Array, counted: jax.Array, vocabulary: int) -> jax.Array:
    """How many times each token appears at the counted places."""
    places = jnp.where(counted, answer, vocabulary)  # those beyond are dropped
    return jnp.zeros(vocabulary, np.float32).at[places].add(np.float32(1), mode="drop")


def _ends_ngram(size: int, answer: jax.Array, count: jax.Array, window: jax.Array) -> jax.Array:
    """Whether a token at each place, after the last `size` - 1 tokens, would repeat an n-gram."""
    places = lax.iota(np.int32, len(answer))
    found = (places < count) & (places >= size - 1)
    found &= (window == 0) | (places - (size - 1) >= count - window)
    for back in range(1, size):
        last = answer[jnp.maximum(count - back, 0)]
        found &= (jnp.roll(answer, back) == last) & (count >= back)
    return found
