"""States that cannot go back to an earlier token, as those of LFM2's convolutions."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jaxdelegate import lm
from jaxdelegate.lm.model_runner import ModelRunner
from jaxdelegate.lm.request import Request
from tests.support.language_models import (
    language_bundle,
    language_model,
    most_likely,
    until_stop,
)

COUNT = 12
PROMPTS = [[7, 8, 9], [100], [*range(20, 50)], [9, 9, 9, 9, 9, 9, 9, 9, 9], [60, 61]]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("lm") / "model.litertlm"
    path.write_bytes(language_bundle(model=language_model(is_recurrent=True)))
    return path


@pytest.fixture(scope="module")
def engine(path: Path) -> Iterator[lm.Engine]:
    with lm.Engine(path, lm.Backend.CPU(), max_batch=2) as engine:
        yield engine


def greedy(ids: list[int], count: int = COUNT) -> list[int]:
    return most_likely(language_model(is_recurrent=True), ids, count)


def test_sequences_in_slots(engine: lm.Engine) -> None:
    """Other sequences, and those before in the slot, do not change an answer."""
    found = engine.generate(PROMPTS, max_output_tokens=COUNT)
    assert [completion.token_ids for completion in found] == [
        until_stop(greedy(prompt)) for prompt in PROMPTS
    ]


def test_a_sequence_that_forgets_tokens_is_read_again(engine: lm.Engine) -> None:
    runner, params = engine.new_runner(1, has_stops=False), engine.text.sampling_params()
    assert runner.prefill(0, PROMPTS[2]) == 0
    first = runner.score(0, [5, 6, 7])
    runner.truncate(0, len(PROMPTS[2]))
    assert runner.score(0, [5, 6, 7]) == pytest.approx(first, abs=1e-4)
    runner.truncate(0, len(PROMPTS[2]))
    runner.begin(0, Request((), COUNT, params))
    answer = runner.decode()[0].tokens
    assert answer == greedy(PROMPTS[2])
    longer = [*PROMPTS[2], *answer, 70, 71]
    assert runner.prefill(0, longer) == len(PROMPTS[2]) + COUNT - 1  # nothing is read twice
    runner.begin(0, Request((), COUNT, params))
    assert runner.decode()[0].tokens == greedy(longer)
    assert runner.prefill(0, PROMPTS[2][:4]) == 0
    runner.begin(0, Request((), COUNT, params))
    assert runner.decode()[0].tokens == greedy(PROMPTS[2][:4])


def test_sessions_score_and_go_on(engine: lm.Engine) -> None:
    with engine.create_session(max_output_tokens=COUNT) as session:
        session.run_prefill(["Hello"])
        scores = session.run_text_scoring([" you", " world"]).scores
        answer = session.run_decode().texts[0]
    with engine.create_session(max_output_tokens=COUNT) as session:
        session.run_prefill(["Hello"])
        assert session.run_decode().texts[0] == answer
    with engine.create_session() as session:
        session.run_prefill(["Hello"])
        assert session.run_text_scoring([" world"]).scores == pytest.approx(scores[1:], abs=1e-4)


def test_the_declared_token_fills_a_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Models whose states have no positions may recognize it, and LiteRT-LM does the same."""

    def edit(m: Any) -> None:
        m.pad_token.token_str = "<eos>"

    ran = list[Any]()
    monkeypatch.setattr(ModelRunner, "_run", lambda _, chosen, needed: ran.append(chosen(needed)))
    path = tmp_path / "model.litertlm"
    for edited, pad in ((None, 0), (edit, 2)):
        path.write_bytes(language_bundle(model=language_model(is_recurrent=True), edit=edited))
        lm.Engine(path).new_runner(1).prefill(0, PROMPTS[0])
        spec, (_, *arrays) = ran.pop()
        tokens, start, count = (array.ravel().tolist() for array in arrays)
        assert (spec.kind, spec.steps, tokens) == ("prefill", 1, [7, 8, *[pad] * 6])
        assert (start, count) == ([0], [2])
