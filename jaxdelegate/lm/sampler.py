"""The next token of each sequence, chosen on the device from its logits."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdelegate.lm.largest import chunk_length, largest, ordered, top_k
from jaxdelegate.lm.sampling_params import LARGE, SamplingArrays, Variant

_TINY = np.float32(1e-30)  # a sum: the most likely token is always kept
_ONE = np.float32(1 << 22)  # the weight of the most likely token
_MOST_ADDED = 256  # such weights, whose sum is an int32
_LOW_BITS = 11  # half of its bits
_LOW = np.int32((1 << _LOW_BITS) - 1)


class Chosen(NamedTuple):
    """A token that comes next.

    Attributes:
        token: int32.
        score: float32: the logarithm of its probability by the model's own logits; 0 without
            `has_scores`.
        top_tokens: int32 [top]: the most likely ones by these.
        top_scores: float32 [top].
    """

    token: jax.Array
    score: jax.Array
    top_tokens: jax.Array
    top_scores: jax.Array


def next_token(
    variant: Variant,
    sampling: SamplingArrays,
    logits: jax.Array,
    answer: jax.Array,
    count: jax.Array,
    platform: str = "cpu",
) -> Chosen:
    """Choose a token.

    Args:
        variant: what may be needed.
        sampling: how.
        logits: float32 [vocabulary].
        answer: int32 [capacity]: the tokens of the answer so far, then anything.
        count: int32: how many these are.
        platform: for which it is fast; the token is the same.
    """
    own = logits
    if variant.has_logits_processors:
        logits = _processed(variant, sampling, logits, answer, count)
    if variant.is_masked:
        logits = _masked(sampling.allowed, logits)
    if variant.k == 1:
        token = largest(logits, platform)
    else:
        token = _sampled(variant, sampling, logits, count, platform)
    score = jax.nn.log_softmax(own)[token] if variant.has_scores else jnp.zeros((), np.float32)
    return Chosen(token, score, *most_likely(own, variant.top, platform))


def most_likely(
    logits: jax.Array, count: int, platform: str = "cpu"
) -> tuple[jax.Array, jax.Array]:
    """Tokens, int32 [count], and the logarithms of their probabilities; the most likely first."""
    if not count:
        return jnp.zeros(0, np.int32), jnp.zeros(0, np.float32)
    chunk = chunk_length(len(logits), count, platform)
    scores, tokens = top_k(jax.nn.log_softmax(logits), count, chunk)
    return jnp.asarray(tokens, np.int32), scores


def _sampled(
    variant: Variant,
    sampling: SamplingArrays,
    logits: jax.Array,
    count: jax.Array,
    platform: str,
) -> jax.Array:
    """Sorting all tokens takes longer than a step of a small model, so only a few are sorted.

    Weights are integers, whose sums do not depend on their order: a token is the same however many
    are sorted.
    """
    is_sorted = variant.k < len(logits)
    values, tokens = logits, _places(logits)
    if is_sorted:
        values, tokens = top_k(logits, variant.k, chunk_length(len(logits), variant.k, platform))
    is_greedy = (sampling.temperature <= 0) | (sampling.k <= 1)
    ranks = _places(values)
    if is_sorted:
        likely = ranks < sampling.k
    else:
        least = jnp.asarray(sampling.k, np.float32)
        likely = _first(logits, jnp.ones(len(logits), np.int32), least, is_greedy)
    scaled = (values - values.max()) / jnp.where(is_greedy, np.float32(1), sampling.temperature)
    scaled = jnp.where(likely & (scaled >= jnp.log(sampling.min_p)), scaled, -jnp.inf)
    chances = jnp.exp(scaled)
    weights = jnp.asarray(jnp.round(chances * _ONE), np.int32)
    least, is_all = jnp.maximum(sampling.p * _total(weights), _TINY), sampling.p >= 1
    if is_sorted:
        before = jnp.cumsum(weights, dtype=np.int32) - weights
        kept = (_rounded(before >> _LOW_BITS, before & _LOW) < least) | is_all
    else:
        kept = _first(logits, weights, least, is_greedy | is_all)
    key = jax.random.fold_in(jax.random.key(sampling.seed), count)
    drawn = jnp.where(kept, chances, 0) / _waits(key, tokens)
    last = np.int32(len(logits) - 1)
    token = jnp.where(drawn < drawn.max(), last, jnp.asarray(tokens, np.int32)).min()
    return jnp.where(is_greedy, largest(logits, platform), token)


def _places(values: jax.Array) -> jax.Array:
    return lax.iota(np.int32, len(values))


def _waits(key: jax.Array, tokens: jax.Array) -> jax.Array:
    """Exponential random numbers, for each token the same whichever others there are.

    They mix numbers as MurmurHash3 does: threefry takes longer for all tokens than a small model.
    """
    mixed = jnp.asarray(tokens, np.uint32)
    for number in jax.random.bits(key, (2,), np.uint32):
        mixed ^= number
        mixed = (mixed ^ mixed >> 16) * np.uint32(0x85EBCA6B)
        mixed = (mixed ^ mixed >> 13) * np.uint32(0xC2B2AE35)
        mixed ^= mixed >> 16
    uniform = ((mixed >> 9).astype(np.float32) + np.float32(0.5)) * np.float32(2**-23)
    return -jnp.log(uniform)


def _first(values: jax.Array, weights: jax.Array, least: jax.Array, is_all: jax.Array) -> jax.Array:
    """Which values are the first, the largest ones first, whose weights sum to `least`; or all."""
    keys, places, end = ordered(values), _places(values), np.int32(len(values) - 1)

    def total(chosen: jax.Array) -> jax.Array:
        return _total(jnp.where(chosen, weights, 0))

    is_all |= total(jnp.ones(len(values), bool)) <= least
    low = keys.min()
    key = _most(lambda k: total(keys >= k) >= least, low, jnp.where(is_all, low, keys.max()))
    above, same = keys > key, keys == key
    needs_places = ~is_all & (same.sum() > 1)
    last = -_most(
        lambda n: total(above | (same & (places <= -n))) >= least,
        -end,
        jnp.where(needs_places, np.int32(0), -end),
    )
    return above | (same & (places <= last))


def _total(weights: jax.Array) -> jax.Array:
    """The sum of many weights, float32; an int32 would not hold it."""
    parts = weights.reshape(math.gcd(len(weights), _MOST_ADDED), -1).sum(0, np.int32)
    high, low = (half.sum(dtype=np.int32) for half in (parts >> _LOW_BITS, parts & _LOW))
    return _rounded(high, low)


def _rounded(high: jax.Array, low: jax.Array) -> jax.Array:
    """The float32 nearest to a sum that is in halves."""
    high, low = high + (low >> _LOW_BITS), low & _LOW
    return high.astype(np.float32) * np.float32(1 << _LOW_BITS) + low.astype(np.float32)


def _most(is_enough: Callable[[jax.Array], jax.Array], low: Any, high: jax.Array) -> jax.Array:
    """The largest number up to `high` that is enough; `low` is."""

    def step(bounds: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        low, high = bounds
        middle = (low | high) - ((low ^ high) >> 1)  # rounded up; a sum might overflow
        enough = is_enough(middle)
        return jnp.where(enough, middle, low), jnp.where(enough, high, middle - 1)

    bounds = jnp.asarray(low, np.int32), jnp.asarray(high, np.int32)
    return jnp.asarray(lax.while_loop(lambda b: b[0] < b[1], step, bounds)[0])


def _processed(
    variant: Variant,
    sampling: SamplingArrays,
    logits: jax.Array,
    answer: jax.Array,
    count: jax.Array,
) -> jax.Array:
    places = lax.iota(np.int32, len(answer))
    times = _times(answer, _recent(places, count, sampling.window), len(logits))
    repetition, presence, frequency = sampling.penalties
    lowered = jnp.where(logits > 0, logits / repetition, logits * repetition)
    logits = jnp.where(times > 0, lowered - presence, logits) - frequency * times
    if variant.ngram:
        repeats = _ends_ngram(variant.ngram, answer, count, sampling.ngram_window)
        logits = jnp.where(_times(answer, repeats, len(logits)) > 0, -LARGE, logits)
    is_early = _has_bit(sampling.late, len(logits)) & (count < sampling.min_tokens)
    processed: jax.Array = logits + sampling.suppressed
    return jnp.where(is_early, -LARGE, processed)


def _masked(allowed: jax.Array, logits: jax.Array) -> jax.Array:
    return jnp.where(_has_bit(allowed, len(logits)), logits, -jnp.inf)


def _has_bit(words: jax.Array, count: int) -> jax.Array:
    """Whether each of the first bits is set, the least significant of the first word first."""
    bits = words[:, None] >> lax.iota(np.uint32, 32)[None] & np.uint32(1)
    return bits.ravel()[:count] == 1


def _recent(places: jax.Array, count: jax.Array, window: jax.Array) -> jax.Array:
    return (places < count) & ((window == 0) | (places >= count - window))


def _times(answer: jax.Array, counted: jax.Array, vocabulary: int) -> jax.Array:
    places = jnp.where(counted, answer, vocabulary)  # places beyond are dropped
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
