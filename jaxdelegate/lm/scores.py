"""How likely tokens are by the model's own logits, before temperature and penalties."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

MOST_TOP = 20  # OpenAI's and vLLM's limit of `top_logprobs`

Top = Sequence[tuple[int, float]]  # tokens and log probabilities, the most likely one first


class TokenScore(NamedTuple):
    """How likely a token is after those before it.

    Attributes:
        score: the logarithm of its probability.
        rank: how many tokens are at least as likely; 1: it is the most likely one.
        top: the most likely tokens.
    """

    score: float
    rank: int
    top: Top


def tops(tokens: np.ndarray, scores: np.ndarray, count: int) -> list[Top]:
    """The `count` most likely tokens of each row, of int32 and float32 [rows, at least `count`]."""
    rows = zip(tokens[:, :count].tolist(), scores[:, :count].tolist(), strict=True)
    return [list(zip(*row, strict=True)) for row in rows]


def agreeing(token: int, score: float, top: Top) -> float:
    """The score of a token as `top` has it: two roundings would make a most likely one less so."""
    return next((other for index, other in top if index == token), score)
