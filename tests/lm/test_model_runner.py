"""A runner's sequences: prompts in steps, decode steps, scores; each slot alone."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from jaxdelegate import lm
from jaxdelegate.errors import GenerationError
from jaxdelegate.lm.constraints import words
from jaxdelegate.lm.model_runner import ModelRunner
from jaxdelegate.lm.request import Request
from jaxdelegate.lm.sampling_params import SamplingParams
from tests.support.language_models import language_bundle, language_model

LONG, SHORT = [1, *range(70, 110)], [1, 80, 81]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[lm.Engine]:
    path = tmp_path_factory.mktemp("lm") / "model.litertlm"
    path.write_bytes(language_bundle(model=language_model()))
    with lm.Engine(path, lm.Backend.CPU(), max_batch=2, cache_dir=":nocache") as engine:
        yield engine


@pytest.fixture
def runner(engine: lm.Engine) -> ModelRunner:
    return engine.new_runner(2, has_stops=False)


def request(limit: int | None, **more: bool) -> Request:
    return Request((), limit, SamplingParams(), **more)


def test_another_slot_decodes_between_the_steps_of_a_prompt(
    runner: ModelRunner, engine: lm.Engine
) -> None:
    runner.prefill(0, SHORT)
    runner.begin(0, request(30))
    tokens, ends = list[int](), list[int]()
    for step in runner.prefill_steps(1, LONG):
        ends.append(step.end)
        tokens += runner.decode(2)[0].tokens
        runner.run_prefill([step])
    assert ends == [8, 16, 24, 32, 40]
    alone = engine.new_runner(1, has_stops=False)
    alone.prefill(0, SHORT)
    alone.begin(0, request(30))
    assert tokens == alone.decode(10)[0].tokens
    assert runner.ids(1) == LONG


def test_a_limit_ends_a_slot_alone(runner: ModelRunner) -> None:
    for slot, limit in ((0, 3), (1, None)):
        runner.prefill(slot, SHORT)
        runner.begin(slot, request(limit, has_scores=slot == 0))
    found = runner.decode(5)
    assert [len(found[slot].tokens) for slot in (0, 1)] == [3, 5]
    assert [found[slot].is_resting for slot in (0, 1)] == [True, False]
    assert [len(found[slot].scores) for slot in (0, 1)] == [3, 0]
    assert set(runner.decode(1)) == {1}
    while not runner.is_resting(1):
        runner.decode()
    assert len(runner.ids(1)) == runner.graph.limit  # as many as fit


def test_a_stop_token_is_the_last_one(engine: lm.Engine) -> None:
    free = engine.new_runner(1, has_stops=False)
    free.prefill(0, SHORT)
    free.begin(0, request(6))
    tokens = free.decode()[0].tokens
    end = tokens.index(tokens[3]) + 1
    stopped = ModelRunner(engine._model, 1, frozenset({tokens[3]}))
    stopped.prefill(0, SHORT)
    stopped.begin(0, request(6))
    found = stopped.decode()[0]
    assert (found.tokens, found.is_stopped, found.is_resting) == (tokens[:end], True, True)


def test_only_allowed_tokens_come_next(runner: ModelRunner) -> None:
    runner.prefill(0, SHORT)
    constraint: Any = object()
    runner.begin(0, Request((), 5, SamplingParams(), constraint=constraint))
    only = np.zeros(words(runner.graph.vocabulary), np.uint32)
    only[90 // 32] = 1 << 90 % 32
    found = runner.decode(allowed={0: only})[0]
    assert found.tokens == [90]  # one in each run: the constraint must see it first


def test_scores_are_those_of_the_answer(runner: ModelRunner) -> None:
    runner.prefill(0, SHORT)
    runner.begin(0, request(6, has_scores=True))
    answer = runner.decode()[0]
    assert runner.prefill(0, SHORT) == len(SHORT) - 1
    runner.prefill(1, LONG)
    both = runner.score_each({0: answer.tokens, 1: [5]})
    np.testing.assert_allclose(both[0], answer.scores, atol=1e-5)
    assert len(both[1]) == 1
    assert runner.ids(0) == [*SHORT, *answer.tokens]


def test_a_prompt_that_is_wrong_changes_nothing(runner: ModelRunner) -> None:
    runner.prefill(0, SHORT)
    for ids, said in (([], "empty"), ([1] * 999, "at most"), ([1, 10**6], "below")):
        with pytest.raises(GenerationError, match=said):
            runner.prefill(0, ids)
    assert runner.ids(0) == SHORT
