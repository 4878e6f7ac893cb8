"""Comparisons as text."""

from collections.abc import Iterable, Iterator

from jaxdelegate.comparison.answers import AnswerDiff, LanguageModelDiff
from jaxdelegate.comparison.bisect import Bisection, Culprit
from jaxdelegate.comparison.diff import InferenceDiff
from jaxdelegate.comparison.figures import Likeness
from jaxdelegate.comparison.layers import LayerReport
from jaxdelegate.comparison.metrics import HISTOGRAM_END, TensorComparison
from jaxdelegate.comparison.operators import OperatorCheck
from jaxdelegate.report.tables import table
from jaxdelegate.text import plural, printable, shortened


def summary(result: InferenceDiff, top: int = 10) -> str:
    lines = [
        verdict(result),
        f"Num evaluation runs: {result.num_runs}",
        f"Reference run latency: {result.reference_latency}",
        f"Test run latency: {result.test_latency}",
        *(_output_diff(i, output) for i, output in enumerate(result.outputs)),
        *([result.delegation] if result.delegation else []),
        *result.remarks,
        *(_details(i, output, result) for i, output in enumerate(result.outputs)),
    ]
    if result.layers is not None:
        lines += layer_lines(result.layers, top)
    return "\n".join(lines)


def verdict(result: InferenceDiff) -> str:
    compared = [output for output in result.outputs if output.name not in result.random]
    off = [repr(shortened(output.name)) for output in compared if not output.agrees]
    sentences = []
    if result.random:
        names = ", ".join(repr(shortened(name)) for name in result.random)
        sentences.append(f"Random numbers decide {names}: not compared.")
    if off:
        differ = "differs" if len(off) == 1 else "differ"
        how = " by rounding" if result.is_healthy else ""
        sentences.append(
            f"{len(off)} of {plural(len(compared), 'output')} {differ} from "
            f"{result.expected}{how}: {', '.join(off)}."
        )
        if result.operators is not None:
            sentences += operator_reasons(result.operators, result.reference)
        sentences += whole_reasons(result.likenesses)
    elif compared:
        text = f"All outputs agree with {result.expected}"
        are_wrong = "" if result.agrees else ", but operators are wrong on their own"
        sentences.append(f"{text}{are_wrong}.")
        sentences += [f"As a whole: {figure}." for figure in result.likenesses]
    return " ".join(sentences)


def operator_reasons(check: OperatorCheck, reference: str) -> Iterable[str]:
    """Why outputs that are out of bounds may be rounding, or are not."""
    if check.problem:
        yield f"Operators cannot be checked one by one: {check.problem}."
    elif check.wrong:
        count = f"{len(check.wrong)} of {plural(check.operators, 'operator')}"
        are = "is" if len(check.wrong) == 1 else "are"
        yield f"Given {reference}'s inputs, {count} {are} wrong, first {check.wrong[0]}."
    else:
        each = (
            "the operator" if check.operators == 1 else f"each of the {check.operators} operators"
        )
        yield f"Given {reference}'s inputs, {each} is right."
        if check.unseen:
            yield f"{check.unseen} of the operators could not be checked."


def whole_reasons(likenesses: Iterable[Likeness]) -> Iterable[str]:
    for figure in likenesses:
        yield f"{'Right' if figure.agrees else 'Wrong'} as a whole: {figure}."


def _output_diff(index: int, output: TensorComparison) -> str:
    if output.mean_abs is None:
        return f"OutputDiff[{index}]: {output.brief()}"
    return f"OutputDiff[{index}]: avg_error={output.mean_abs:g}, std_dev={output.std_dev:g}"


def _agreement(output: TensorComparison, result: InferenceDiff) -> str:
    if output.agrees:
        return "agrees"
    if output.name in result.random:
        return "differs by random numbers"
    if result.is_healthy:
        return f"differs by rounding in {output.exceeding} of {plural(output.elements, 'element')}"
    return f"DIFFERS in {plural(output.exceeding, 'element')}"


def _details(index: int, output: TensorComparison, result: InferenceDiff) -> str:
    agrees = _agreement(output, result)
    head = (
        f"output {index} {shortened(output.name)!r} {output.dtype} {list(output.shape)}: {agrees}"
    )
    numbers = [
        ("max_abs", output.max_abs),
        ("relative", output.relative),
        ("of_largest", output.relative_to_largest),
        ("cosine", output.cosine),
        ("snr_db", output.snr_db),
        ("limit", output.limit),
    ]
    lines = [head + "".join(f", {name}={x:.6g}" for name, x in numbers if x is not None)]
    if output.shape_mismatch or output.nonfinite_mismatches:
        lines.append(f"  {output.brief()}")
    if not output.agrees and output.worst is not None:
        worst = output.worst
        lines.append(
            f"  worst at {list(worst.position)} of run {worst.run}: "
            f"got {worst.got:.9g}, expected {worst.want:.9g}"
        )
    if output.lsb_histogram is not None:
        lines.append(f"  LSB differences: {histogram(output.lsb_histogram)}")
    return "\n".join(lines)


def histogram(counts: dict[int, int]) -> str:
    """`-1: 3, 0: 995, 1: 2`; the outer bins as `<=-16` and `>=16`."""
    ends = {-HISTOGRAM_END: f"<=-{HISTOGRAM_END}", HISTOGRAM_END: f">={HISTOGRAM_END}"}
    return ", ".join(f"{ends.get(lsb, lsb)}: {count}" for lsb, count in counts.items())


def layer_lines(report: LayerReport, top: int) -> list[str]:
    rows = [("layer", "runs on", "own max_abs", "of largest", "whole max_abs", "of largest")]
    for layer in report.ranked()[:top]:
        where = {True: "delegate", False: "host", None: "?"}[layer.delegated]
        mark = "" if layer.own.agrees else "!"
        local = ("", "") if layer.local is None else _errors(layer.local)
        rows.append((mark + layer.label, where, *local, *_errors(layer.tensor)))
    lines = [
        f"Layers by the error that they add ({min(top, len(report.layers))} of "
        f"{len(report.layers)}; own: on the reference's inputs; whole: in the whole program):",
        *table(rows),
    ]
    if report.skipped:
        lines.append(
            f"{plural(report.skipped, 'tensor')} not compared: one side did not keep the values."
        )
    return [*lines, report.conclusion()]


def _errors(comparison: TensorComparison) -> tuple[str, str]:
    if comparison.max_abs is None:
        return comparison.brief(), ""
    relative = comparison.relative_to_largest
    return f"{comparison.max_abs:.4g}", "" if relative is None else f"{relative:.3g}"


def bisection(result: Bisection, reference: str) -> str:
    tail = f"Ranges that were run: {result.probes}."
    if result.verdict == "agrees":
        return f"Nothing is wrong: fully delegated, all outputs agree with {reference}.\n{tail}"
    if result.verdict == "rounding" and result.operators is not None:
        operators = operator_reasons(result.operators, reference)
        why = " ".join((*operators, *whole_reasons(result.likenesses)))
        return (
            f"Nothing is wrong: the outputs differ from {reference} by rounding, "
            f"{result.full.brief()}. {why}\n{tail}"
        )
    if result.empty is not None and result.verdict == "wrong_without_delegate":
        return (
            f"The outputs differ from {reference} even without a delegate: "
            f"{result.empty.brief()}\n{tail}"
        )
    lines = [f"With all of the range delegated: {result.full.brief()}"]
    for culprit in result.culprits:
        lines += _culprit(culprit)
    return "\n".join([*lines, tail])


def _culprit(culprit: Culprit) -> Iterable[str]:
    flags = f"--first_delegate_node_index={culprit.first} --last_delegate_node_index={culprit.last}"
    if len(culprit.nodes) == 1:
        yield f"Culprit: node {culprit.nodes[0]}"
    else:
        yield f"Culprit: nodes {culprit.first} .. {culprit.last}, wrong together:"
        yield from (f"  {node}" for node in culprit.nodes)
    yield f"  delegated alone: {culprit.probe.brief()}"
    yield f"  to see it: {flags}"


# ---- language models


def language_model_summary(result: LanguageModelDiff) -> str:
    lines = [line for answer in result.answers for line in _answer_lines(result, answer)]
    return "\n".join([language_model_verdict(result), *lines, *_step_lines(result)])


def language_model_verdict(result: LanguageModelDiff) -> str:
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
