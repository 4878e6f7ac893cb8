"""Requests that join and leave a scheduler get the tokens that each gets alone."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxdelegate import lm
from jaxdelegate.lm.constraints import words
from jaxdelegate.lm.request import Request
from jaxdelegate.lm.scheduler import ActiveRequest, Pace, Scheduler
from jaxdelegate.lm.text_stream import TextStream
from tests.support.language_models import VOCABULARY, language_bundle, language_model

BOS = 1
LONG, SHORT, OTHER = [BOS, *range(70, 110)], [BOS, 80, 81], [BOS, *range(90, 70, -1)]


@pytest.fixture(scope="module", params=["caches", "recurrent"])
def engine(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[lm.Engine]:
    path = tmp_path_factory.mktemp("lm") / "model.litertlm"
    is_recurrent = request.param == "recurrent"
    path.write_bytes(language_bundle(model=language_model(is_recurrent=is_recurrent)))
    with lm.Engine(path, lm.Backend.CPU(), max_batch=2) as engine:
        yield engine


def request_of(engine: lm.Engine, ids: list[int], limit: int = 12) -> Request:
    return Request(ids, limit, engine.text.sampling_params())


def alone(engine: lm.Engine, ids: list[int], limit: int = 12) -> list[int]:
    (found,) = engine.generate([ids], max_output_tokens=limit)
    return found.token_ids


def test_a_long_prompt_is_read_between_the_runs_of_others(engine: lm.Engine) -> None:
    scheduler = engine.new_scheduler(2)
    first = scheduler.join(request_of(engine, SHORT))
    while scheduler.prefill():
        pass
    second = scheduler.join(request_of(engine, LONG))
    assert scheduler.free == 0
    wanted, steps = alone(engine, SHORT), 0
    while scheduler.prefill():
        steps += 1
        scheduler.decode(1)
        assert first.tokens == wanted[:steps]
        assert second.tokens == []
    assert steps == 4  # the last one of 5: 40 tokens by 8
    while scheduler.free < 2:
        scheduler.decode(3)
    assert first.tokens == alone(engine, SHORT)
    assert second.tokens == alone(engine, LONG)
    assert {first.finish_reason, second.finish_reason} <= {"stop", "length"}


def test_a_request_that_leaves_while_it_is_read(engine: lm.Engine) -> None:
    """The caches have what was read, and nothing else."""
    scheduler = engine.new_scheduler(2)
    left = scheduler.join(request_of(engine, LONG))
    assert scheduler.prefill()
    scheduler.leave(left)
    scheduler.leave(left)  # nothing more
    assert (left.finish_reason, scheduler.free) == ("cancelled", 2)
    again = scheduler.join(request_of(engine, LONG))
    assert (again.slot, again.reused) == (left.slot, 8)
    other = scheduler.join(request_of(engine, OTHER))
    while scheduler.free < 2:
        scheduler.prefill()
        scheduler.decode(2)
    assert again.tokens == alone(engine, LONG)
    assert other.tokens == alone(engine, OTHER)


def test_a_short_prompt_does_not_wait_for_a_long_one(engine: lm.Engine) -> None:
    scheduler = engine.new_scheduler(2)
    long, short = (scheduler.join(request_of(engine, ids)) for ids in (LONG, SHORT))
    assert scheduler.prefill()  # for the first one
    assert scheduler.prefill()  # for the shortest one, which is read now
    scheduler.decode(1)
    assert (short.tokens, long.tokens) == (alone(engine, SHORT)[:1], [])
    while scheduler.free < 2:
        scheduler.prefill()
        scheduler.decode(1)
    assert short.tokens == alone(engine, SHORT)
    assert long.tokens == alone(engine, LONG)


def test_the_slot_that_has_most_of_a_prompt(engine: lm.Engine) -> None:
    if engine.graph.max_rewind is not None:
        pytest.skip("its caches cannot go back")
    scheduler = engine.new_scheduler(2)
    slots = {}
    for name, ids in (("long", LONG), ("other", OTHER)):
        slots[name] = scheduler.join(request_of(engine, ids, 2)).slot
    while scheduler.free < 2:
        scheduler.prefill()
        scheduler.decode()
    for name, ids in (("other", [*OTHER, 99]), ("long", LONG[:-3])):
        running = scheduler.join(request_of(engine, ids, 2))
        assert (running.slot, running.reused) == (slots[name], len(ids) - 1)
    while scheduler.free < 2:
        scheduler.prefill()
        scheduler.decode()
    # Nothing in common but the start: the slot that was used least recently.
    unused = scheduler.join(request_of(engine, [50, 51], 2)).slot
    assert unused == slots["other"] or alone(engine, [*OTHER, 99], 2) != []


def test_caches_of_other_owners_count_as_empty(engine: lm.Engine) -> None:
    scheduler = engine.new_scheduler(2)

    def run(owner: str) -> ActiveRequest:
        running = scheduler.join(dataclasses.replace(request_of(engine, LONG), owner=owner))
        while scheduler.free < 2:
            scheduler.prefill()
            scheduler.decode()
        assert running.tokens == alone(engine, LONG)
        return running

    first, other = run("a"), run("b")
    assert (first.reused, other.reused) == (0, 0)
    assert first.slot != other.slot
    again = [run(owner) for owner in ("a", "b", "c", "a", "b")]
    if engine.graph.max_rewind is None:
        assert [r.reused for r in again] == [len(LONG) - 1, len(LONG) - 1, 0, 0, 0]


def test_tokens_that_may_begin_a_stop_are_not_settled(tmp_path: Path, engine: lm.Engine) -> None:
    tokens = alone(engine, SHORT)
    path = tmp_path / "stop.litertlm"
    path.write_bytes(
        language_bundle(edit=lambda m: m.stop_tokens.add().token_ids.ids.extend([tokens[2], 260]))
    )
    if engine.graph.max_rewind is not None:
        pytest.skip("one model is enough")
    with lm.Engine(path, lm.Backend.CPU()) as other:
        scheduler = other.new_scheduler(1)
        running = scheduler.join(request_of(other, SHORT, 5))
        scheduler.prefill()
        settled = []
        while scheduler.free == 0:
            scheduler.decode(1)
            settled.append(running.settled)
    assert running.tokens == tokens[:5]
    assert settled[1:4] == [2, 2, 4] or tokens[2] in tokens[:2]


def test_errors_of_a_prompt(engine: lm.Engine) -> None:
    scheduler = engine.new_scheduler(1)
    for ids, said in (([], "empty"), ([1] * 128, "at most 127"), ([999], "below 261")):
        with pytest.raises(ValueError, match=said):
            scheduler.join(request_of(engine, ids))
    assert scheduler.free == 1


def test_the_pace_follows_the_time_of_runs() -> None:
    pace = Pace(longest_s=0.05)
    found = []
    for seconds in (0.001, 0.001, 0.001, 0.04, 0.1, 0.1, 0.01, 0.5, 0.5, 0.02):
        pace.took(seconds)
        found.append(pace.steps)
    assert found == [8, 32, 32, 32, 16, 8, 32, 3, 1, 2]


def test_tokens_that_the_tokenizer_does_not_have(tmp_path: Path) -> None:
    """They have no text, in prompts, in whole answers and in parts."""
    path, most = tmp_path / "model.litertlm", VOCABULARY + 9
    path.write_bytes(language_bundle(model=language_model(vocabulary=most)))
    known = lm.SuppressTokensConfig(tuple(range(1, VOCABULARY)))
    with lm.Engine(path, lm.Backend.CPU()) as engine:
        (found,) = engine.generate(
            [[BOS, 80, most - 1]],
            max_output_tokens=12,
            suppress_tokens_config=known,
            sampler_config=lm.SamplerConfig(top_k=99, seed=1),
        )
        assert max(found.token_ids) >= VOCABULARY
        assert found.text == "<pad>" * found.token_ids.count(0)
        stream = TextStream(engine.tokenizer, [BOS, 80, most - 1])
        assert stream.add(found.token_ids) + stream.end() == found.text


class PanicException(BaseException):
    """Like the exception that pyo3 raises."""


class Failing:
    """A constraint that allows all tokens until it fails."""

    is_match = is_complete = False
    error = None

    def __init__(self, vocabulary: int, failure: BaseException) -> None:
        self._all, self._failure = np.full(words(vocabulary), -1, np.int32).view(np.uint32), failure

    def copy(self) -> "Failing":
        return self

    def allowed(self) -> np.ndarray:
        return self._all

    def add(self, _token: int) -> None:
        raise self._failure


def constrained(engine: lm.Engine, failure: BaseException) -> tuple[Scheduler, list[ActiveRequest]]:
    constraint: Any = Failing(engine.graph.vocabulary, failure)
    requests = [request_of(engine, SHORT), request_of(engine, OTHER)]
    requests[0] = dataclasses.replace(requests[0], constraint=constraint)
    scheduler = engine.new_scheduler(2)
    active = [scheduler.join(request) for request in requests]
    while scheduler.prefill():
        pass
    return scheduler, active


@pytest.mark.parametrize("failure", [RuntimeError("broken"), PanicException("broken")])
def test_a_constraint_that_fails_ends_its_request_alone(
    engine: lm.Engine, failure: BaseException
) -> None:
    scheduler, (failed, other) = constrained(engine, failure)
    while other.finish_reason is None:
        scheduler.decode()
    assert "broken" in (failed.refusal or "")
    assert other.tokens == alone(engine, OTHER)


def test_ctrl_c_in_a_constraint_is_not_an_answer(engine: lm.Engine) -> None:
    scheduler, _ = constrained(engine, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        scheduler.decode()
