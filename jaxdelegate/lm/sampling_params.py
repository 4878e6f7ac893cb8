"""How the tokens of each sequence are chosen, as records and arrays of numpy."""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxdelegate.lm.configs import (
    NoRepeatNgramConfig,
    RepetitionPenaltyConfig,
    SamplerConfig,
    SuppressTokensConfig,
)
from jaxdelegate.lm.constraints import words
from jaxdelegate.lm.scores import MOST_TOP

_DEFAULT_P = 0.95
_ALL = 0xFFFFFFFF
_MOST_SORTED = 256
_USUAL_K = 64
_NO_WORDS = np.zeros(0, np.uint32)
LARGE = np.float32(1e9)  # subtracted from the logits of forbidden tokens


@dataclasses.dataclass(frozen=True)
class Variant:
    """What a program is compiled for.

    Attributes:
        k: the most tokens among which one is chosen; 1: the largest logit. More than some hundred
            are all.
        has_logits_processors: whether penalties, suppressed tokens or n-grams change logits.
        ngram: the size of n-grams that must not repeat; 0: none.
        has_scores: whether the logarithms of probabilities are computed.
        is_masked: whether only some tokens may come next.
        has_hidden_state: whether the last hidden state is returned.
        top: how many of the most likely tokens are returned with their log probabilities.
    """

    k: int = 1
    has_logits_processors: bool = False
    ngram: int = 0
    has_scores: bool = False
    is_masked: bool = False
    has_hidden_state: bool = False
    top: int = 0

    def __str__(self) -> str:
        parts = {
            "the largest logit": self.k == 1,
            f"top {self.k}": self.k > 1,
            "logits processors": self.has_logits_processors,
            f"{self.ngram}-grams": self.ngram,
            "scores": self.has_scores,
            "masked": self.is_masked,
            "hidden state": self.has_hidden_state,
            f"scores of the top {self.top}": self.top,
        }
        return ", ".join(part for part, is_there in parts.items() if is_there)


class SamplingArrays(NamedTuple):
    """How to choose a sequence's tokens, as arrays; of several sequences with a leading axis.

    Attributes:
        k: int32.
        p: float32.
        min_p: float32.
        temperature: float32.
        seed: uint32.
        suppressed: float32 [vocabulary], added to logits; [0]: none.
        late: uint32 [words]: a bit for each token that does not come early; [0]: none.
        min_tokens: int32: how many tokens come before those.
        penalties: float32 [3]: repetition, presence, frequency.
        window: int32: of the last tokens, for penalties; 0: all.
        ngram_window: int32: the same for n-grams.
        allowed: uint32 [words]: a bit for each token that may come next; [0]: all may.
    """

    k: Any
    p: Any
    min_p: Any
    temperature: Any
    seed: Any
    suppressed: Any
    late: Any
    min_tokens: Any
    penalties: Any
    window: Any
    ngram_window: Any
    allowed: Any


@dataclasses.dataclass(frozen=True)
class SamplingParams:
    """All that decides how the tokens of a sequence are chosen: a sampler and logits processors.

    Attributes:
        bias: numbers that are added to the logits of tokens.
        min_p: less likely tokens are not chosen; a part of the most likely one's probability.
        late: tokens that are not chosen before `min_tokens` others.
    """

    sampler: SamplerConfig = dataclasses.field(default_factory=SamplerConfig)
    penalties: RepetitionPenaltyConfig = dataclasses.field(default_factory=RepetitionPenaltyConfig)
    ngrams: NoRepeatNgramConfig = dataclasses.field(default_factory=NoRepeatNgramConfig)
    suppressed: SuppressTokensConfig = dataclasses.field(default_factory=SuppressTokensConfig)
    bias: tuple[tuple[int, float], ...] = ()
    min_p: float = 0.0
    late: tuple[int, ...] = ()
    min_tokens: int = 0

    def variant(
        self,
        vocabulary: int,
        has_scores: bool = False,
        is_masked: bool = False,
        has_hidden_state: bool = False,
        has_top: bool = False,
    ) -> Variant:
        """The program that these need; `k` is a power of two or all: few are compiled."""
        greedy = self.sampler.temperature == 0
        k = 1 if greedy else min(self.sampler.top_k or 1, vocabulary)
        adds = self.suppressed.suppress_tokens or self.bias or self.late
        has_penalties = self.penalties != RepetitionPenaltyConfig()
        ngram = self.ngrams.no_repeat_ngram_size or 0
        return Variant(
            min(1 << (k - 1).bit_length(), vocabulary) if k <= _MOST_SORTED else vocabulary,
            has_penalties or bool(ngram or adds),
            ngram,
            has_scores,
            is_masked,
            has_hidden_state,
            top=min(MOST_TOP, vocabulary) if has_top else 0,
        )

    def arrays(self, variant: Variant, vocabulary: int) -> SamplingArrays:
        s, penalties = self.sampler, self.penalties
        suppressed = np.zeros(vocabulary if variant.has_logits_processors else 0, np.float32)
        if variant.has_logits_processors:
            for token, bias in self.bias:
                suppressed[token] = bias
            suppressed[
                [t for t in self.suppressed.suppress_tokens or () if t < vocabulary]
            ] = -LARGE
        return SamplingArrays(
            k=np.int32(s.top_k or 1),
            p=np.float32(_DEFAULT_P if s.top_p is None else s.top_p),
            min_p=np.float32(self.min_p),
            temperature=np.float32(1 if s.temperature is None else s.temperature),
            seed=np.uint32((s.seed or 0) & 0xFFFFFFFF),
            suppressed=suppressed,
            late=bits(self.late, vocabulary) if variant.has_logits_processors else _NO_WORDS,
            min_tokens=np.int32(self.min_tokens),
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
            allowed=np.full(words(vocabulary) if variant.is_masked else 0, _ALL, np.uint32),
        )


def bits(tokens: Sequence[int], vocabulary: int) -> np.ndarray:
    """A bit for each token, uint32 [words]: 1 for these; a bundle may declare others."""
    array = np.zeros(words(vocabulary), np.uint32)
    for token in tokens:
        if 0 <= token < vocabulary:
            array[token // 32] |= np.uint32(1 << token % 32)
    return array


def common_variant(variants: list[Variant]) -> Variant:
    """A program for sequences of several variants. A ValueError: their n-grams differ in size."""
    if len({v.ngram for v in variants}) > 1:
        raise ValueError("expected sequences with one no_repeat_ngram_size, got several")
    return Variant(
        max(v.k for v in variants),
        any(v.has_logits_processors for v in variants),
        variants[0].ngram,
        any(v.has_scores for v in variants),
        any(v.is_masked for v in variants),
        any(v.has_hidden_state for v in variants),
        top=max(v.top for v in variants),
    )


def general_variants(vocabulary: int, has_hidden_state: bool) -> list[Variant]:
    """Few variants that cover all others without n-grams; those that take less time are first.

    `has_hidden_state`: whether the model has hidden states.
    """
    usual, large = (min(k, vocabulary) for k in (_USUAL_K, _MOST_SORTED))
    plain = [Variant(k) for k in (usual, large)]
    return [
        *plain,
        *(
            Variant(
                k,
                has_logits_processors=True,
                has_scores=True,
                is_masked=True,
                has_hidden_state=has_hidden_state,
                top=min(MOST_TOP, vocabulary),
            )
            for k in (usual, vocabulary)
        ),
    ]
