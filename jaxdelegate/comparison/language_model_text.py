"""Comparisons of language models as text."""

from collections.abc import Iterator

from jaxdelegate.comparison.answers import AnswerDiff, LanguageModelDiff
from jaxdelegate.text import plural, printable


def language_model_summary(result: LanguageModelDiff) -> str:
    """The verdict, both answers to each prompt, and how often the next tokens are equal."""
    lines = [line for answer in result.answers for line in _answer_lines(result, answer)]
    return "\n".join([language_model_verdict(result), *lines, *_step_lines(result)])


def language_model_verdict(result: LanguageModelDiff) -> str:
    """One sentence."""
    if result.agrees:
        return f"All answers agree with {result.expected}."
    wrong = "" if result.has_right_probabilities else "; probabilities differ by more than rounding"
    if not result.differing:
        how = "rounding decides" if result.is_healthy else "other tokens are preferred"
        how = wrong or f"; {how} after the same tokens"
        return f"All answers have the same tokens as {result.expected}{how}."
    count = f"{len(result.differing)} of {plural(len(result.answers), 'answer')}"
    differ = "differs" if len(result.differing) == 1 else "differ"
    how = " by rounding" if result.is_healthy else wrong
    return f"{count} {differ} from {result.expected}{how}."


def _answer_lines(result: LanguageModelDiff, answer: AnswerDiff) -> Iterator[str]:
    yield f"prompt {_quoted(answer.prompt)}"
    number = answer.divergence
    if number is None:
        yield f"  {plural(len(answer.tokens), 'token')}, equal: {_quoted(answer.text)}"
        return
    yield f"  jaxdelegate: {_quoted(answer.text)}"
    yield f"  {result.reference}: {_quoted(answer.expected_text)}"
    if number >= len(answer.steps):
        yield f"  {plural(number, 'token')} equal; the next one of {result.reference} is not known"
        return
    step = answer.steps[number]
    verdict = "rounding decides" if result.is_close(step) else "more than rounding"
    yield (
        f"  {plural(number, 'token')} equal, then {step.token} instead of {step.expected}: "
        f"preferred by {step.margin:.3g}, the other one by {step.expected_margin:.3g}: {verdict}"
    )


def _step_lines(result: LanguageModelDiff) -> Iterator[str]:
    steps = result.steps
    same = sum(step.agrees for step in steps)
    yield (
        f"After the same tokens the most likely one is equal in {same} of "
        f"{plural(len(steps), 'step')} ({result.top_1:.1%})."
    )
    far = [step for step in steps if not result.is_close(step)]
    if far:
        margin = max(max(step.margin, step.expected_margin) for step in far)
        yield f"In {len(far)} of them it is not rounding: preferred by up to {margin:.3g}."
    if same:
        is_right = result.has_right_probabilities
        verdict = "rounding" if is_right else f"more than rounding, at most {result.rounding:.3g}"
        yield (
            f"Where it is equal, logarithms of probabilities differ by up to "
            f"{result.difference:.3g}: {verdict}."
        )
    if result.noise is not None:
        yield f"LiteRT's other kernels differ from {result.reference} by up to {result.noise:.3g}."
    odd = sum(step.best != step.expected for step in steps)
    if result.reference_version and odd:
        yield (
            f"LiteRT-LM returns no logits; those of LiteRT's XNNPACK prefer another token than its "
            f"own in {plural(odd, 'step')}."
        )


def _quoted(text: str) -> str:
    return f"'{printable(text)}'"
