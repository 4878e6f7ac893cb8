"""The results of comparing a language model with a reference: tokens, margins, the verdict."""

import dataclasses
import os

import numpy as np

from jaxdelegate.comparison.bounds import LOG_PROBABILITIES, MOST, Precision, allowed


@dataclasses.dataclass(frozen=True)
class Step:
    """The next token of both, after the same tokens."""

    token: int  # the engine's
    expected: int  # the reference's
    best: int  # the most likely one by the reference's logits
    # The logarithms of the probabilities of `token` and of `expected`: the engine's, the
    # reference's.
    own: tuple[float, float]
    reference: tuple[float, float]

    @property
    def agrees(self) -> bool:
        return self.token == self.expected

    @property
    def margin(self) -> float:
        """By how much the engine prefers its token, as a difference of logarithms."""
        return self.own[0] - self.own[1]

    @property
    def expected_margin(self) -> float:
        """By how much the reference prefers its own."""
        return self.reference[1] - self.reference[0]

    def distance(self, scores: tuple[float, float]) -> float:
        """The largest difference of such logarithms from the reference's."""
        return max(abs(a - b) for a, b in zip(scores, self.reference, strict=True))


@dataclasses.dataclass(frozen=True)
class AnswerDiff:
    """The greedy answers to a prompt: the engine's, and the expected one of the reference."""

    prompt: str
    text: str
    expected_text: str
    tokens: tuple[int, ...]  # without a stop token, like the expected ones
    expected_tokens: tuple[int, ...]
    steps: tuple[Step, ...]  # for each expected token; if it is known, also for the stop token

    @property
    def divergence(self) -> int | None:
        """The number of tokens before the first different one; None: the answers are equal."""
        if self.tokens == self.expected_tokens:
            return None
        pairs = zip(self.tokens, self.expected_tokens, strict=False)
        shorter = min(len(self.tokens), len(self.expected_tokens))
        return next((n for n, (a, b) in enumerate(pairs) if a != b), shorter)


@dataclasses.dataclass(frozen=True)
class LanguageModelDiff:
    model: str  # the bundle
    platform: str  # where the engine ran
    reference: str  # what it was compared with
    reference_version: str | None  # LiteRT-LM's, if that is the reference
    against: str | None  # the bundle that the reference ran instead of the model; None: none
    precision: Precision  # what both compute in; the less precise one of two bundles
    answers: tuple[AnswerDiff, ...]  # one for each prompt
    # The largest difference between LiteRT's other kernels and the reference, as `difference`;
    # None: not measured, because rounding explains everything.
    noise: float | None = None

    @property
    def expected(self) -> str:
        name = " ".join(filter(None, (self.reference, self.reference_version)))
        return f"{os.path.basename(self.against)} ({name})" if self.against else name

    @property
    def steps(self) -> tuple[Step, ...]:
        return tuple(step for answer in self.answers for step in answer.steps)

    @property
    def top_1(self) -> float:
        """The share of steps in which both prefer the same token."""
        return float(np.mean([step.agrees for step in self.steps])) if self.steps else 1.0

    @property
    def difference(self) -> float:
        """The largest difference of logarithms of probabilities where both prefer one token."""
        return max((step.distance(step.own) for step in self.steps if step.agrees), default=0.0)

    @property
    def rounding(self) -> float:
        """The largest difference that rounding explains: a small one, or twice LiteRT's noise."""
        return allowed(LOG_PROBABILITIES[self.precision], self.noise or 0.0)

    @property
    def limit(self) -> float:
        """The largest margin that rounding explains, by what was measured."""
        measured = max(min(self.difference, self.rounding), self.noise or 0.0)
        return allowed(0.0, measured, MOST)

    def is_close(self, step: Step) -> bool:
        return step.agrees or max(step.margin, step.expected_margin) <= self.limit

    @property
    def differing(self) -> tuple[AnswerDiff, ...]:
        return tuple(answer for answer in self.answers if answer.divergence is not None)

    @property
    def has_right_probabilities(self) -> bool:
        """Whether rounding explains how they differ where both prefer one token."""
        return self.difference <= self.rounding

    @property
    def agrees(self) -> bool:
        are_equal = not self.differing and all(step.agrees for step in self.steps)
        return are_equal and self.has_right_probabilities

    @property
    def is_healthy(self) -> bool:
        ends = ((a.divergence, len(a.steps)) for a in self.differing)
        has_unknown = any(n is not None and n >= count for n, count in ends)
        are_close = not has_unknown and all(map(self.is_close, self.steps))
        return are_close and self.has_right_probabilities
