"""What an engine returns."""

import dataclasses
from typing import Literal

FinishReason = Literal["stop", "length", "cancelled"]


@dataclasses.dataclass(frozen=True)
class Responses:
    """The texts of a session's run, as `litert_lm.Responses`.

    Attributes:
        texts: one for each candidate, a part of it while streaming; or those that were scored.
        scores: the sum of the logarithms of the tokens' probabilities, one for each text; empty
            while streaming, and 0 for texts that were generated.
        token_lengths: the number of tokens of each text, if requested.
        token_scores: the logarithm of each token's probability, for scored texts.
    """

    texts: list[str] = dataclasses.field(default_factory=list)
    scores: list[float] = dataclasses.field(default_factory=list)
    token_lengths: list[int] = dataclasses.field(default_factory=list)
    token_scores: list[list[float]] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class BenchmarkInfo:
    """How long an answer took, as `litert_lm.BenchmarkInfo`.

    Attributes:
        init_time_in_second: to open the engine; programs are compiled when first needed.
        time_to_first_token_in_second: from the message to the first token of the answer.
        last_prefill_token_count: tokens of the prompt that the caches did not have.
        last_prefill_tokens_per_second: of these.
        last_decode_token_count: tokens that were generated.
        last_decode_tokens_per_second: of these.
    """

    init_time_in_second: float
    time_to_first_token_in_second: float
    last_prefill_token_count: int
    last_prefill_tokens_per_second: float
    last_decode_token_count: int
    last_decode_tokens_per_second: float


@dataclasses.dataclass(frozen=True)
class Timing:
    """When an answer was made, by time.perf_counter.

    Attributes:
        began: the message came.
        reading: its tokens were known.
        read: the caches have them.
        first: the first token was there.
        ended: the last one was.
        prompt: how many tokens were read.
        answer: how many were generated.
    """

    began: float
    reading: float
    read: float
    first: float
    ended: float
    prompt: int
    answer: int

    def info(self, init_time_in_second: float) -> BenchmarkInfo:
        """The record of `litert_lm`."""
        return BenchmarkInfo(
            init_time_in_second=init_time_in_second,
            time_to_first_token_in_second=max(self.first, self.read) - self.began,
            last_prefill_token_count=self.prompt,
            last_prefill_tokens_per_second=_rate(self.prompt, self.read - self.reading),
            last_decode_token_count=self.answer,
            last_decode_tokens_per_second=_rate(self.answer, self.ended - self.read),
        )


def _rate(count: int, seconds: float) -> float:
    return count / seconds if seconds > 0 else 0.0


@dataclasses.dataclass(frozen=True)
class Completion:
    """What `Engine.generate` returns for a prompt.

    Attributes:
        text: the answer, without the stop token.
        token_ids: its tokens, without the stop token.
        log_probabilities: of these tokens by the model's own logits; empty unless they were
            requested.
        finish_reason: "stop": the model ended the answer; "length": a limit of tokens did;
            "cancelled".
        prompt_tokens: how many tokens the prompt has, the start token included.
        reused_tokens: how many of these the caches had already.
    """

    text: str
    token_ids: list[int]
    log_probabilities: list[float]
    finish_reason: FinishReason
    prompt_tokens: int
    reused_tokens: int = 0

    @property
    def completion_tokens(self) -> int:
        """How many tokens the answer has."""
        return len(self.token_ids)
