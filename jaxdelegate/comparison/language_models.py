"""Compares the answers of a bundle's language model with a reference's.

Answers differ where two logits are nearly equal, and everything after that token with them. So the
engine also gets the reference's tokens, and each of its next tokens is compared.
"""

import contextlib
import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from jaxdelegate.comparison.answers import AnswerDiff, LanguageModelDiff, Step
from jaxdelegate.comparison.bounds import precision
from jaxdelegate.comparison.litert_lm import LITERT_LM, Process, litert_lm_texts
from jaxdelegate.comparison.reference_decoder import Choose, ReferenceDecoder
from jaxdelegate.comparison.sides import REFERENCES
from jaxdelegate.errors import InterpreterError, ModelError, OptionError
from jaxdelegate.lm.completions import Completion
from jaxdelegate.lm.configs import SamplerConfig
from jaxdelegate.lm.engine import Engine
from jaxdelegate.lm.request import Request
from jaxdelegate.model.open_models import open_model
from jaxdelegate.model.sections import LLM_METADATA
from jaxdelegate.model.source import text_metadata

LANGUAGE_MODEL_REFERENCES = (LITERT_LM, *REFERENCES)
PROMPTS = (
    "The capital of France is",
    "Once upon a time, in a small village by the sea, there was",
    "def mean(values):\n    return",
)
_GREEDY = SamplerConfig(top_k=1)
_LOGITS = "litert_xnnpack"  # LiteRT-LM's kernels; it does not return logits itself
_MOST_LIKELY = 64  # tokens, among which one continues LiteRT-LM's text
_INCOMPLETE = "\ufffd"  # a part of a character, whose bytes several tokens share


def has_language_model(path: str | os.PathLike[str]) -> bool:
    """Whether a path is that of a bundle, not of a part of it, with a language model."""
    return text_metadata(path) == LLM_METADATA


def language_model_diff(
    model: str | os.PathLike[str],
    *,
    reference: str = LITERT_LM,
    against: str | os.PathLike[str] | None = None,
    prompts: Sequence[str] = PROMPTS,
    max_output_tokens: int = 32,
    options: Mapping[str, Any] | None = None,
    cache_dir: str | None = None,
    litert_lm: Process | None = None,
) -> LanguageModelDiff:
    """Let `jaxdelegate.lm` and a reference continue prompts greedily, and compare.

    Args:
        model: the path of a bundle.
        reference: "litert_lm", or one of `sides.REFERENCES`, which computes a token at a time.
        against: another bundle with the same vocabulary, which the reference runs instead.
        prompts: texts, each once; the bundle's start token is added, a chat template is not
            applied.
        max_output_tokens: of each answer.
        options: of JaxDelegate, for the engine.
        cache_dir: of the engine, see `jaxdelegate.lm.Engine`.
        litert_lm: the process of LiteRT-LM.

    Raises:
        ModelError: a bundle is damaged, or has no language model.
        OptionError: an argument is wrong, or litert_lm is not installed.
        InterpreterError: the reference failed, crashed, or took too long.
    """
    if reference not in LANGUAGE_MODEL_REFERENCES:
        known = ", ".join(LANGUAGE_MODEL_REFERENCES)
        raise OptionError(f"reference: expected one of {known}, got {reference!r}")
    prompts = [*dict.fromkeys(prompts)]
    if not prompts:
        raise OptionError("prompts: expected at least one text, got none")
    with Engine(model, max_batch=1, options=options, cache_dir=cache_dir) as engine:
        other = engine if against is None else Engine(against, max_batch=1)
        comparison = _Comparison(engine, other, prompts, max_output_tokens)
        texts = None
        if reference == LITERT_LM:
            texts = litert_lm_texts(other.model_path, prompts, max_output_tokens, litert_lm)
        kind = _LOGITS if texts else reference
        models = [open_model(e.model) for e in dict.fromkeys((engine, other))]
        result = LanguageModelDiff(
            model=engine.model_path,
            platform=engine.platform,
            reference=reference,
            reference_version=texts.version if texts else None,
            against=None if against is None else os.fspath(against),
            precision=precision(*models, is_reduced=engine.is_reduced),
            answers=comparison.answers(kind, texts.texts if texts else None),
        )
        if result.is_healthy:
            return result
        kinds = [k for k, resolver in REFERENCES.items() if resolver and k != kind]
        return dataclasses.replace(result, noise=comparison.noise(kinds, result.answers))


class _Comparison:
    """An engine, another one whose model references run, and what both continue."""

    def __init__(
        self, engine: Engine, other: Engine, prompts: Sequence[str], max_output_tokens: int
    ) -> None:
        ours, theirs = engine.graph.vocabulary, other.graph.vocabulary
        if ours != theirs:
            raise OptionError(
                f"against: expected a bundle with the same vocabulary of {ours} tokens, got "
                f"{theirs}"
            )
        self._engine, self._other, self._most = engine, other, max_output_tokens
        self._prompts = {prompt: self._checked_ids(prompt) for prompt in prompts}

    def _checked_ids(self, prompt: str) -> list[int]:
        ids = self._engine.prompt_ids(prompt)
        if not ids:
            raise OptionError("prompt: expected a text with at least one token, got none")
        capacity = min(self._engine.max_num_tokens, self._other.max_num_tokens)
        room = capacity - len(ids)
        if self._most > room:
            raise OptionError(
                f"max_output_tokens: max_num_tokens is {capacity}: expected at most "
                f"{room} after a prompt of {len(ids)}, got {self._most}"
            )
        return ids

    def answers(self, kind: str, texts: Sequence[str] | None) -> tuple[AnswerDiff, ...]:
        """The answers to all prompts, by the logits of a reference; `texts` are LiteRT-LM's."""
        decoder = ReferenceDecoder(kind, self._other)
        own = self._engine.generate(
            [*self._prompts.values()],
            sampler_config=_GREEDY,
            max_output_tokens=self._most,
            log_probabilities=True,
        )
        wanted: Sequence[str | None] = texts or [None] * len(own)
        rows = zip(self._prompts, wanted, own, strict=True)
        return tuple(self._answer(prompt, decoder, text, answer) for prompt, text, answer in rows)

    def _answer(
        self, prompt: str, decoder: ReferenceDecoder, text: str | None, completion: Completion
    ) -> AnswerDiff:
        other, ids = self._other, self._prompts[prompt]
        choose = _greedy(other) if text is None else _following(other, text)
        expected, rows = decoder.answer(ids, self._most, choose)
        stop = other.text.stops.find(expected, 0)
        tokens = expected if stop is None else expected[: stop.start]
        return AnswerDiff(
            prompt=prompt,
            text=completion.text,
            expected_text=other.detokenize(tokens) if text is None else text,
            tokens=tuple(completion.token_ids),
            expected_tokens=tuple(tokens),
            steps=tuple(_steps(self._engine, ids, expected, rows)),
        )

    def noise(self, kinds: Sequence[str], answers: Sequence[AnswerDiff]) -> float:
        """How far other references are from the one of the answers, for the tokens of all steps."""
        distances = [0.0]
        for kind in kinds:
            with contextlib.suppress(InterpreterError, ModelError):  # not all run all models
                decoder = ReferenceDecoder(kind, self._other)
                for answer in answers:
                    ids, tokens = self._prompts[answer.prompt], [s.expected for s in answer.steps]
                    _, rows = decoder.answer(ids, len(tokens), _given(tokens))
                    distances += [
                        step.distance(_scores(row, step.token, step.expected))
                        for step, row in zip(answer.steps, rows, strict=True)
                    ]
        return max(distances)


def _scores(row: np.ndarray, token: int, expected: int) -> tuple[float, float]:
    return float(row[token]), float(row[expected])


# ---- the reference's tokens


def _greedy(engine: Engine) -> Choose:
    suppressed = [*engine.text.metadata.suppressed_tokens]

    def choose(row: np.ndarray, answer: Sequence[int]) -> int | None:
        if engine.text.stops.find(answer, max(len(answer) - 1, 0)) is not None:
            return None
        allowed = row.copy()
        allowed[suppressed] = -np.inf
        return int(allowed.argmax())

    return choose


def _given(tokens: Sequence[int]) -> Choose:
    return lambda _, answer: tokens[len(answer)]


def _following(engine: Engine, text: str) -> Choose:
    """The most likely tokens with a text, then a stop token if that is the most likely one."""
    stops = {ids[0] for ids in engine.eos_token_ids if len(ids) == 1}
    wanted = text.replace(_INCOMPLETE, "")

    def text_of(tokens: Sequence[int]) -> str:
        return engine.detokenize(tokens).replace(_INCOMPLETE, "")

    def choose(row: np.ndarray, answer: Sequence[int]) -> int | None:
        if stops.intersection(answer[-1:]):
            return None
        best, is_whole = int(row.argmax()), text_of(answer) == wanted
        if is_whole and best in stops:
            return best
        likely = [best] if is_whole else np.argsort(-row)[:_MOST_LIKELY].tolist()
        fitting = (t for t in likely if t not in stops and wanted.startswith(text_of([*answer, t])))
        return next(fitting, None)

    return choose


# ---- the engine's tokens


def _steps(
    engine: Engine, prompt: Sequence[int], answer: Sequence[int], rows: np.ndarray
) -> Iterator[Step]:
    """The engine's next token after the prompt and each beginning of an answer.

    `rows` are the reference's logarithms of probabilities, [tokens, vocabulary].
    """
    runner, params = engine.new_runner(1), engine.text.sampling_params(_GREEDY)
    for n, (expected, row) in enumerate(zip(answer, rows, strict=True)):
        before = [*prompt, *answer[:n]]
        runner.prefill(0, before)
        runner.begin(0, Request(before, 1, params, has_scores=True))
        piece = runner.decode(1)[0]
        token, score = piece.tokens[0], piece.scores[0]
        expected_score = score
        if token != expected:
            runner.prefill(0, before)
            expected_score = runner.score(0, [expected])[0]
        yield Step(
            token=token,
            expected=expected,
            best=int(row.argmax()),
            own=(score, expected_score),
            reference=_scores(row, token, expected),
        )
