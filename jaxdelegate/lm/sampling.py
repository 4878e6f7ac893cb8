"""The next token of each sequence, chosen on the device from its logits."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdelegate.lm.configs import (
    NoRepeatNgramConfig,
    RepetitionPenaltyConfig,
    SamplerConfig,
    SuppressTokensConfig,
)

_DEFAULT_P = 0.95
_LARGE = np.float32(1e9)


@dataclasses.dataclass(frozen=True)
class Variant:
    """What a program is compiled for.

    Attributes:
        k: the most tokens among which one is chosen; 1: the largest logit.
        has_rules: whether penalties, suppressed tokens or n-grams change logits.
        ngram: the size of n-grams that must not repeat; 0: none.
        has_scores: whether the logarithms of probabilities are computed.
    """

    k: int = 1
    has_rules: bool = False
    ngram: int = 0
    has_scores: bool = False


class Choice(NamedTuple):
    """How to choose a sequence's tokens, as arrays; of several sequences with a leading axis.

    Attributes:
        k: int32.
        p: float32.
        temperature: float32.
        seed: uint32.
        suppressed: float32 [vocabulary], added to logits; [0]: none.
        penalties: float32 [3]: repetition, presence, frequency.
        window: int32: of the last tokens, for penalties; 0: all.
        ngram_window: int32: the same for n-grams.
    """

    k: Any
    p: Any
    temperature: Any
    seed: Any
    suppressed: Any
    penalties: Any
    window: Any
    ngram_window: Any


@dataclasses.dataclass(frozen=True)
class Rules:
    """All that decides how the tokens of a sequence are chosen."""

    sampler: SamplerConfig = dataclasses.field(default_factory=SamplerConfig)
    penalties: RepetitionPenaltyConfig = dataclasses.field(default_factory=RepetitionPenaltyConfig)
    ngrams: NoRepeatNgramConfig = dataclasses.field(default_factory=NoRepeatNgramConfig)
    suppressed: SuppressTokensConfig = dataclasses.field(default_factory=SuppressTokensConfig)

    def variant(self, vocabulary: int, has_scores: bool = False) -> Variant:
        """The program that these rules need; `k` is a power of two, so that few are compiled."""
        greedy = self.sampler.temperature == 0
        k = 1 if greedy else min(self.sampler.top_k or 1, vocabulary)
        has_penalties = self.penalties != RepetitionPenaltyConfig()
        ngram = self.ngrams.no_repeat_ngram_size or 0
        return Variant(
            min(1 << (k - 1).bit_length(), vocabulary),
            has_penalties or bool(ngram) or bool(self.suppressed.suppress_tokens),
            ngram,
            has_scores,
        )

    def choice(self, variant: Variant, vocabulary: int) -> Choice:
        s, penalties = self.sampler, self.penalties
        suppressed = np.zeros(vocabulary if variant.has_rules else 0, np.float32)
        if variant.has_rules:
            suppressed[
                [t for t in self.suppressed.suppress_tokens or () if t < vocabulary]
            ] = -_LARGE
        return Choice(
            k=np.int32(s.top_k or 1),
            p=np.float32(_DEFAULT_P if s.top_p is None else s.top_p),
            temperature=np.float32(1 if s.temperature is None else s.temperature),
            seed=np.uint32((s.seed or 0) & 0xFFFFFFFF),
            suppressed=suppressed,
            penalties=np.asarray(
                [
                    penalties.repetition_penalty or 1,
                    penalties.presence_penalty or 0,
                    penalties.frequency_penalty or 0,
                ],
                np.float32,
            ),
            window=np.int32(penalties.window_size or 0),
            ngram_window=np.int32(self.ngrams.window_size or 0),
        )


def joined(variants: list[Variant]) -> Variant:
    """A program for sequences of several variants. A ValueError: their n-grams differ in size."""
    if len({v.ngram for v in variants}) > 1:
        raise ValueError("expected sequences with one no_repeat_ngram_size, got several")
    return Variant(
        max(v.k for v in variants),
        any(v.has_rules for v in variants),
        variants[0].ngram,
        any(v.has_scores for v in variants),
    )


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
    token = _largest(logits) if variant.k == 1 else _sampled(variant, choice, logits, count)
    score = jax.nn.log_softmax(own)[token] if variant.has_scores else jnp.zeros((), np.float32)
    return token, score


def _largest(logits: jax.Array) -> jax.Array:
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
        logits = jnp.where(_times(answer, repeats, len(logits)) > 0, -_LARGE, logits)
    ruled: jax.Array = logits + choice.suppressed
    return ruled


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
