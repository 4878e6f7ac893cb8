"""Compares the answers of a bundle's language model with a reference's.

Answers differ where two logits are nearly equal, and everything after that token with them. So the
engine also gets the reference's tokens, and each of its next tokens is compared.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from jaxdelegate.bundles.bundle import Bundle
from jaxdelegate.comparison.answers import AnswerDiff, LanguageModelDiff, Step
from jaxdelegate.comparison.litert_lm import LITERT_LM, litert_lm_texts
from jaxdelegate.comparison.reference_decoder import Choose, ReferenceDecoder
from jaxdelegate.comparison.sides import REFERENCES
from jaxdelegate.errors import OptionError
from jaxdelegate.lm.completions import Completion
from jaxdelegate.lm.configs import SamplerConfig
from jaxdelegate.lm.engine import Engine
from jaxdelegate.model.sections import BEGINNING_BYTES, LLM_METADATA, is_bundle
from jaxdelegate.model.source import open_file

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
    file, part = open_file(path)
    if part is not None or not is_bundle(file.content[:BEGINNING_BYTES]):
        return False
    return any(s.type == LLM_METADATA for s in Bundle(file).sections)


def language_model_diff(
    model: str | os.PathLike[str],
    *,
    reference: str = LITERT_LM,
    against: str | os.PathLike[str] | None = None,
    prompts: Sequence[str] = PROMPTS,
    max_output_tokens: int = 32,
    options: Mapping[str, Any] | None = None,
    cache_dir: str | None = None,
    timeout_s: float = 600,
    python: str | None = None,
) -> LanguageModelDiff:
    """Let `jaxdelegate.lm` and a reference continue prompts greedily, and compare.

    Args:
        model: the path of a bundle.
        reference: "litert_lm", or one of `sides.REFERENCES`, which computes a token at a time.
        against: another bundle with the same vocabulary, which the reference runs instead.
        prompts: texts; the bundle's start token is added, a chat template is not applied.
        max_output_tokens: of each answer.
        options: of JaxDelegate, for the engine.
        cache_dir: of the engine, see `jaxdelegate.lm.Engine`.
        timeout_s: the most seconds that LiteRT-LM may take.
        python: the Python that has litert_lm; None: this one.

    Raises:
        ModelError: a bundle is damaged, or has no language model.
        OptionError: an argument is wrong, or litert_lm is not installed.
        InterpreterError: the reference failed, crashed, or took too long.
    """
    if reference not in LANGUAGE_MODEL_REFERENCES:
        known = ", ".join(LANGUAGE_MODEL_REFERENCES)
        raise OptionError(f"reference: expected one of {known}, got {reference!r}")
    if not prompts:
        raise OptionError("prompts: expected at least one text, got none")
    with Engine(model, max_batch=1, options=options, cache_dir=cache_dir) as engine:
        other = engine if against is None else Engine(against, max_batch=1)
        _check_vocabularies(engine, other)
        ids = [_checked_ids(engine, prompt, max_output_tokens) for prompt in prompts]
        texts = None
        if reference == LITERT_LM:
            texts = litert_lm_texts(
                other.model_path, prompts, max_output_tokens, python=python, timeout_s=timeout_s
            )
        decoder = ReferenceDecoder(_LOGITS if texts else reference, other)
        own = engine.generate(
            ids,
            sampler_config=_GREEDY,
            max_output_tokens=max_output_tokens,
            log_probabilities=True,
        )
        answers = []
        for n, (prompt, completion) in enumerate(zip(ids, own, strict=True)):
            text = texts.texts[n] if texts else None
            choose = _greedy(other) if text is None else _following(other, text)
            expected, rows = decoder.answer(prompt, max_output_tokens, choose)
            steps = tuple(_steps(engine, prompt, expected, rows))
            answers.append(_answer(other, prompts[n], text, completion, expected, steps))
        return LanguageModelDiff(
            model=engine.model_path,
            platform=engine.platform,
            reference=reference,
            reference_version=texts.version if texts else None,
            against=None if against is None else os.fspath(against),
            answers=tuple(answers),
        )


def _answer(
    other: Engine,
    prompt: str,
    text: str | None,
    completion: Completion,
    expected: Sequence[int],
    steps: tuple[Step, ...],
) -> AnswerDiff:
    """The record of a prompt; `text` is LiteRT-LM's, None: of the expected tokens."""
    stop = other.stop_in(expected, 0)
    tokens = expected if stop is None else expected[: stop.start]
    return AnswerDiff(
        prompt=prompt,
        text=completion.text,
        expected_text=other.detokenize(tokens) if text is None else text,
        tokens=tuple(completion.token_ids),
        expected_tokens=tuple(tokens),
        steps=steps,
    )


def _check_vocabularies(engine: Engine, other: Engine) -> None:
    ours, theirs = engine.graph.vocabulary, other.graph.vocabulary
    if ours != theirs:
        raise OptionError(
            f"against: expected a bundle with the same vocabulary of {ours} tokens, got {theirs}"
        )


def _checked_ids(engine: Engine, prompt: str, max_output_tokens: int) -> list[int]:
    ids = engine.prompt_ids(prompt)
    if not ids:
        raise OptionError("prompt: expected a text with at least one token, got none")
    room = engine.max_num_tokens - len(ids) + 1  # the last token of an answer is not read
    if max_output_tokens > room:
        raise OptionError(
            f"max_output_tokens: the model's caches hold {engine.max_num_tokens} tokens: expected "
            f"at most {room} after a prompt of {len(ids)}, got {max_output_tokens}"
        )
    return ids


# ---- the reference's tokens


def _greedy(engine: Engine) -> Choose:
    """The most likely tokens, up to a stop."""
    suppressed = [*engine.metadata.suppressed_tokens]

    def choose(row: np.ndarray, answer: Sequence[int]) -> int | None:
        if engine.stop_in(answer, max(len(answer) - 1, 0)) is not None:
            return None
        allowed = row.copy()
        allowed[suppressed] = -np.inf
        return int(allowed.argmax())

    return choose


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
    decoder, rules = engine.new_decoder(1), engine.rules(_GREEDY)
    for n, (expected, row) in enumerate(zip(answer, rows, strict=True)):
        before = [*prompt, *answer[:n]]
        decoder.read(0, before)
        decoder.begin(0, 1, rules, has_scores=True)
        piece = decoder.run(1)[0]
        token, score = piece.tokens[0], piece.scores[0]
        expected_score = score
        if token != expected:
            decoder.read(0, before)
            expected_score = decoder.score(0, [expected])[0]
        yield Step(
            token=token,
            expected=expected,
            best=int(row.argmax()),
            margin=score - expected_score,
            expected_margin=float(row[expected] - row[token]),
            difference=abs(float(row[token]) - score),
        )
