"""Answers of language models, compared with a reference's token by token."""

import dataclasses
import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jaxdelegate as jd
from jaxdelegate.comparison.answers import AnswerDiff, LanguageModelDiff, Step
from jaxdelegate.comparison.bounds import precision
from jaxdelegate.comparison.language_models import language_model_diff
from jaxdelegate.comparison.litert_lm import Process, litert_lm_texts
from jaxdelegate.comparison.text import language_model_summary
from jaxdelegate.errors import InterpreterError, OptionError
from jaxdelegate.model.records import read_model
from jaxdelegate.quant.params import Quantization
from jaxdelegate.testing import ModelBuilder
from tests.support.language_models import embedders, language_bundle, language_model

PROMPTS = ("Hello", "What is 2 + 3?")
EOS = 2
IS_ABSENT = importlib.util.find_spec("litert_lm") is None
Script = Callable[[str], str]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bundles")
    (folder / "model.litertlm").write_bytes(language_bundle())
    (folder / "other.litertlm").write_bytes(language_bundle(model=language_model(seed=3)))
    return folder


@pytest.fixture
def python(tmp_path: Path) -> Script:
    """The path of a Python that has a `litert_lm` of our own: it runs a shell script."""

    def written(script: str) -> str:
        path = tmp_path / "python"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return str(path)

    return written


def compared(path: Path, **more: Any) -> LanguageModelDiff:
    arguments = {"prompts": PROMPTS, "reference": "numpy", "max_output_tokens": 10, **more}
    return language_model_diff(path, cache_dir=":nocache", **arguments)


def test_the_numpy_reference_agrees(folder: Path) -> None:
    found = compared(folder / "model.litertlm")
    assert found.agrees
    assert found.is_healthy
    assert [len(answer.tokens) for answer in found.answers] == [10, 10]
    assert [len(answer.steps) for answer in found.answers] == [10, 10]
    assert all(answer.text == answer.expected_text for answer in found.answers)
    assert all(step.best == step.expected for step in found.steps)
    assert 0 < found.difference < found.rounding == 1e-4
    assert found.precision == "float"
    assert language_model_summary(found).startswith("All answers agree with numpy.\n")


@pytest.mark.slow
def test_embedders_are_models_of_their_own(folder: Path, tmp_path: Path) -> None:
    names = ("tf_lite_embedder", "tf_lite_per_layer_embedder")
    others = dict(zip(names, embedders(), strict=True))
    model = language_model(has_embedders=True)
    (tmp_path / "b.litertlm").write_bytes(language_bundle(model=model, others=others))
    found = compared(tmp_path / "b.litertlm", against=folder / "model.litertlm")
    assert found.agrees  # the same weights, elsewhere
    reference = compared(tmp_path / "b.litertlm", prompts=PROMPTS[:1])
    assert reference.answers[0].expected_tokens == found.answers[0].expected_tokens


def one_row(weights: np.ndarray) -> None:
    weights[0] *= 1.5


def one_layer(weights: np.ndarray) -> None:
    weights *= 1.02


def float16(weights: np.ndarray) -> None:
    weights[:] = weights.astype(np.float16)


@pytest.mark.parametrize("change", [one_row, one_layer, float16])
def test_small_changes_of_float32_weights_are_found(
    folder: Path, tmp_path: Path, change: Callable[[np.ndarray], None]
) -> None:
    """Probabilities differ by more than float32 rounds, though the answers are equal."""
    model = jd.load(language_model())
    params = {name: np.array(array) for name, array in model.params.items()}
    for array in params.values():
        if array.shape == (16, 16):
            change(array)
    path = tmp_path / "changed.litertlm"
    path.write_bytes(language_bundle(model=model.to_bytes(params)))
    found = compared(path, against=folder / "model.litertlm", reference="litert_builtin")
    assert (found.agrees, found.is_healthy) == (False, False)
    assert 1e-4 < found.difference < 0.5
    assert "more than rounding" in language_model_summary(found)
    assert "all answers agree" not in language_model_summary(found).lower()


def test_the_less_precise_bundle_decides() -> None:
    quantized, half = ModelBuilder(), ModelBuilder()
    scale = Quantization(np.array([0.5], np.float32), np.zeros(1, np.int64))
    for builder, dtype, given in ((quantized, np.int8, scale), (half, np.float16, None)):
        weights = builder.constant(np.ones(4, dtype), quantization=given)
        y = builder.tensor((4,), np.float32)
        builder.operator("DEQUANTIZE", [weights], [y])
        builder.outputs(y)
    floats, short, integers = map(read_model, (language_model(), half.build(), quantized.build()))
    assert precision(floats, is_reduced=False) == "float"
    assert precision(floats, is_reduced=True) == "reduced"
    assert precision(short, is_reduced=False) == "float"  # both sides read them
    assert precision(floats, short, is_reduced=False) == "reduced"
    assert precision(floats, integers, is_reduced=True) == "quantized"


@pytest.mark.slow
def test_other_weights_are_found(folder: Path) -> None:
    found = compared(folder / "model.litertlm", against=folder / "other.litertlm")
    assert not found.is_healthy
    assert found.noise is not None
    assert 0 < found.noise < 1e-3  # of LiteRT's kernels with these weights
    assert found.top_1 < 0.5
    assert [answer.divergence for answer in found.answers] == [0, 0]
    text = language_model_summary(found)
    assert "  numpy: " in text
    assert text.startswith("2 of 2 answers differ from other.litertlm (numpy).\n")


def test_a_stop_token_is_compared(folder: Path, tmp_path: Path) -> None:
    """The most likely first token ends the answer."""
    (first,) = compared(folder / "model.litertlm", prompts=["x"], max_output_tokens=1).answers

    def edit(metadata: Any) -> None:
        metadata.stop_tokens.add().token_ids.ids.append(first.tokens[0])

    path = tmp_path / "stops.litertlm"
    path.write_bytes(language_bundle(edit=edit))
    (answer,) = compared(path, prompts=["x"]).answers
    assert (answer.tokens, answer.expected_tokens, answer.text) == ((), (), "")
    assert [(s.token, s.expected) for s in answer.steps] == [(first.tokens[0],) * 2]
    (unstopped,) = compared(folder / "model.litertlm", against=path, prompts=["x"]).answers
    assert (unstopped.divergence, unstopped.steps[0].agrees) == (0, True)


def test_texts_of_litert_lm(folder: Path, python: Script) -> None:
    """A text is that of the most likely tokens, however a tokenizer would divide it."""
    path = folder / "model.litertlm"
    own = compared(path)
    for texts, healthy in (
        ([answer.text for answer in own.answers], True),
        ([own.answers[0].text, own.answers[0].text], False),
        (["", ""], False),
    ):
        response = json.dumps({"version": "0.0", "texts": texts})
        shell = f"cat > /dev/null; cat <<'END'\n{response}\nEND"
        found = compared(path, reference="litert_lm", litert_lm=Process(python(shell)))
        assert (found.agrees, found.is_healthy) == (healthy, healthy)
    assert "the next one of litert_lm is not known" in language_model_summary(found)
    assert language_model_summary(found).startswith("2 of 2 answers differ from litert_lm 0.0.\n")


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        ("kill -SEGV $$", "the process crashed with SIGSEGV: it printed nothing"),
        ("echo 'RuntimeError: no such file' >&2; exit 1", "RuntimeError: no such file$"),
        ("(echo '└ no part'; echo 'RuntimeError: no') >&2; exit 1", "RuntimeError: no: no part$"),
        ("exec sleep 60", "no answers after 0.2 s; allow more seconds"),
    ],
)
def test_failures_of_litert_lm(python: Script, script: str, problem: str) -> None:
    with pytest.raises(InterpreterError, match=rf"^reference \(litert_lm\): {problem}"):
        litert_lm_texts("b.litertlm", ["a"], 1, Process(python(script), timeout_s=0.2))


def test_litert_lm_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(OptionError, match=r"is not installed: pip install .*litert-lm"):
        litert_lm_texts("b.litertlm", ["a"], 1)


@pytest.mark.skipif(IS_ABSENT, reason="litert_lm is not installed")
def test_litert_lm_agrees(folder: Path) -> None:
    before = sorted(folder.iterdir())
    found = compared(folder / "model.litertlm", reference="litert_lm")
    assert found.is_healthy
    assert found.top_1 == 1
    assert found.reference_version
    assert sorted(folder.iterdir()) == before  # LiteRT-LM stores nothing


def test_errors(folder: Path, tmp_path: Path) -> None:
    path = folder / "model.litertlm"
    with pytest.raises(OptionError, match=r"reference: expected one of litert_lm, numpy, .*'tf'"):
        compared(path, reference="tf")
    with pytest.raises(OptionError, match="prompts: expected at least one text, got none"):
        compared(path, prompts=[])
    with pytest.raises(OptionError, match=r"is 128: expected at most 122 after .* of 6"):
        compared(path, max_output_tokens=124)
    small = tmp_path / "small.litertlm"
    small.write_bytes(language_bundle(model=language_model(vocabulary=300)))
    with pytest.raises(OptionError, match="the same vocabulary of 261 tokens, got 300"):
        compared(path, against=small)


# Rounding is 1/32.
STEP = Step(token=7, expected=7, best=7, own=(-1, -1), reference=(-0.96875, -0.96875))


def result(*steps: Step, tokens: tuple[int, ...] = (7, 8)) -> LanguageModelDiff:
    answer = AnswerDiff("a", "b", "b", tokens, (7, 8), steps)
    return LanguageModelDiff("m", "cpu", "numpy", None, None, "quantized", (answer,))


@pytest.mark.parametrize(
    ("margins", "noise", "tokens", "healthy"),
    [
        ((1 / 32, 1 / 16), None, (7, 9), True),
        ((1 / 32, 1 / 15), None, (7, 9), False),  # more than twice the rounding
        ((1 / 15, 0.0), None, (7, 9), False),
        ((1 / 4, 1 / 4), 1 / 8, (7, 9), True),  # LiteRT's own kernels differ by more
        ((1 / 4, 1 / 3), 1 / 8, (7, 9), False),
        ((1 / 2, 1 / 2), 1.0, (7, 9), True),
        ((1 / 2, 5 / 8), 1.0, (7, 9), False),  # no noise permits more than 0.5
        ((0.0, 0.0), None, (7, 8, 9), False),  # the reference's third token is not known
    ],
)
def test_what_rounding_explains(
    margins: tuple[float, float], noise: float | None, tokens: tuple[int, ...], healthy: bool
) -> None:
    own, reference = (-1.0, -1 - margins[0]), (-1 - margins[1], -1.0)
    other = Step(token=9, expected=8, best=8, own=own, reference=reference)
    found = dataclasses.replace(result(STEP, other, tokens=tokens), noise=noise)
    assert (found.difference, found.top_1) == (1 / 32, 0.5)
    assert found.is_healthy == healthy
    assert not found.agrees
    if noise is not None:
        assert f"kernels differ from numpy by up to {noise:g}." in language_model_summary(found)


def test_wrong_probabilities_of_equal_tokens() -> None:
    """Unless LiteRT's own kernels differ as much."""
    wrong = dataclasses.replace(STEP, own=(-1, -1), reference=(-0.75, -0.75))
    found = result(wrong, wrong)
    assert (found.agrees, found.is_healthy) == (False, False)
    text = language_model_summary(found)
    assert "differ by up to 0.25: more than rounding, at most 0.05." in text
    verdict = text.splitlines()[0]
    assert verdict.endswith("the same tokens as numpy; probabilities differ by more than rounding.")
    noisy = dataclasses.replace(found, noise=0.125)
    assert (noisy.agrees, noisy.is_healthy) == (True, True)


def test_next_tokens_may_differ_in_equal_answers() -> None:
    """A prompt is read in other steps than an answer is generated."""
    other = Step(token=9, expected=8, best=8, own=(-1, -1 - 1 / 32), reference=(-1, -1))
    found = result(STEP, other)
    assert (found.differing, found.is_healthy, found.agrees) == ((), True, False)
    assert language_model_summary(found).startswith(
        "All answers have the same tokens as numpy; rounding decides after the same tokens."
    )
