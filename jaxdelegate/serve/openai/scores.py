"""Log probabilities in the form of OpenAI's API, and vLLM's of prompts."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from jaxdelegate.bundles.tokenizers import Tokenizer
from jaxdelegate.lm.scores import TokenScore
from jaxdelegate.lm.text_stream import Part, TextStream

_UNLIKELY = -9999.0
_NO_CHARACTER = "\ufffd"


class TokenTexts:
    """The texts that tokens add after another one, for those that were not chosen."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._known: dict[int, str] = {}
        self._before = [i for i in tokenizer.encode("a") if tokenizer.decode([i])][-1:]

    def of(self, token: int) -> str:
        """The text; of a token without one its name, or `token_id:` and its number as in vLLM."""
        if token not in self._known:
            self._known[token] = self._read(token)
        return self._known[token]

    def _read(self, token: int) -> str:
        tokenizer = self.tokenizer
        if not tokenizer.has(token):
            return f"token_id:{token}"
        before, text = tokenizer.decode(self._before), tokenizer.decode([*self._before, token])
        added = text.removeprefix(before) if text.startswith(before) else tokenizer.decode([token])
        return added or tokenizer.token(token) or f"token_id:{token}"


class ScoreForm:
    def __init__(self, texts: TokenTexts, top: int) -> None:
        self.texts, self._top = texts, top

    def chat(self, parts: Sequence[Part]) -> dict[str, Any]:
        return {"content": [self._token(part) for part in parts], "refusal": None}

    def _token(self, part: Part) -> dict[str, Any]:
        return {
            **_entry(part.text, part.score),
            "top_logprobs": [
                _entry(part.text or text if token == part.token else text, score)
                for token, text, score in self._alternatives(part)
            ],
        }

    def completion(self, parts: Sequence[Part], offset: int) -> dict[str, Any]:
        """The object `logprobs` of parts after `offset` characters; a first token has no score."""
        offsets = []
        for part in parts:
            offsets.append(offset)
            offset += len(part.text)
        scores = [None if part.score is None else _finite(part.score) for part in parts]
        return {
            "tokens": [part.text for part in parts],
            "token_logprobs": scores,
            "top_logprobs": [self._named(part) for part in parts] if self._top else None,
            "text_offset": offsets,
        }

    def _named(self, part: Part) -> dict[str, float] | None:
        """The scores of the most likely tokens and of the chosen one, by different texts."""
        if part.score is None:
            return None
        own = part.text or self.texts.of(part.token)
        scores = {own: _finite(part.score)}
        for token, text, score in self._alternatives(part):
            if token != part.token:
                taken = text in scores or _NO_CHARACTER in text
                scores[f"token_id:{token}" if taken else text] = _finite(score)
        return scores

    def _alternatives(self, part: Part) -> Iterator[tuple[int, str, float]]:
        for token, score in part.top[: self._top]:
            yield token, self.texts.of(token), score


@dataclasses.dataclass(frozen=True)
class PromptForm:
    """What a response has of a prompt."""

    ids: Sequence[int]  # its tokens
    texts: TokenTexts
    text: str | None  # what is before the answer; None: nothing
    has_start: bool  # the first token is not a part of the text
    skips_special: bool  # special tokens have no text
    top: int | None  # `prompt_logprobs`

    def parts(self, scores: Sequence[TokenScore]) -> list[Part]:
        """The tokens, whose text is before the answer, with the scores of all but the first."""
        start, rest = self.ids[: self.has_start], self.ids[self.has_start :]
        stream = TextStream(self.texts.tokenizer, start, skips_special=self.skips_special)
        texts = ["" for _ in start] + [stream.add([token]) for token in rest]
        texts[-1] += stream.end()
        none: list[TokenScore | None] = [None]
        return [
            Part(text, token, None) if found is None else Part(text, token, found.score, found.top)
            for text, token, found in zip(texts, self.ids, [*none, *scores], strict=True)
        ]

    def logprobs(self, scores: Sequence[TokenScore]) -> list[dict[str, Any] | None] | None:
        """The field of that name, as in vLLM: of each token but the first; None: not requested."""
        if self.top is None:
            return None
        pairs = zip(self.ids[1:], scores, strict=True)
        return [None, *(self._ranked(token, found, self.top) for token, found in pairs)]

    def _ranked(self, token: int, found: TokenScore, top: int) -> dict[str, Any]:
        ranks = {token: (found.rank, found.score)}
        for rank, (other, score) in enumerate(found.top[:top], 1):
            ranks.setdefault(other, (rank, score))
        return {
            str(index): {
                "logprob": _finite(score),
                "rank": rank,
                "decoded_token": self.texts.of(index),
            }
            for index, (rank, score) in ranks.items()
        }


def _entry(text: str, score: float | None) -> dict[str, Any]:
    encoded = None if _NO_CHARACTER in text else list(text.encode())
    return {"token": text, "logprob": _finite(score), "bytes": encoded}


def _finite(score: float | None) -> float:
    """JSON has no infinity; OpenAI's and vLLM's number for very unlikely tokens instead."""
    return _UNLIKELY if score is None or not score > _UNLIKELY else score
