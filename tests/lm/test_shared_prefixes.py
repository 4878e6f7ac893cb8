"""Prompts with a beginning in common: it is read once, and copied to the other slots."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxdelegate import lm
from jaxdelegate.lm.kv_cache import KVCache, ReadStep
from jaxdelegate.lm.language_model import LanguageModel
from jaxdelegate.lm.program_spec import ProgramSpec
from jaxdelegate.lm.request import Request
from jaxdelegate.lm.sampling_params import SamplingParams
from jaxdelegate.lm.scheduler import ActiveRequest, Scheduler
from jaxdelegate.pjrt.client import viewed
from tests.support.language_models import language_bundle, language_model
from tests.support.windows import executor_metadata, windowed_model

SYSTEM = [1, *(5 + n * n % 250 for n in range(499))]  # 500 tokens
USERS = [[30 + n, 40, 50 + 2 * n, 60, 99] for n in range(16)]
STEP = 64


def engine_of(path: Path, model: bytes, **more: Any) -> lm.Engine:
    path.write_bytes(language_bundle(model=model, **more))
    return lm.Engine(path, lm.Backend.CPU(), max_batch=16, cache_dir=":nocache")


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[lm.Engine]:
    path = tmp_path_factory.mktemp("lm") / "model.litertlm"
    with engine_of(path, language_model(capacity=1024, prefill=(8, STEP))) as engine:
        yield engine


@pytest.fixture
def ran(engine: lm.Engine, monkeypatch: pytest.MonkeyPatch) -> list[ProgramSpec]:
    return spied(engine, monkeypatch)


def spied(engine: lm.Engine, monkeypatch: pytest.MonkeyPatch) -> list[ProgramSpec]:
    """The programs that run from now on."""
    ran, run = list[ProgramSpec](), engine._model.run
    monkeypatch.setattr(engine._model, "run", lambda spec, *a: (ran.append(spec), run(spec, *a))[1])
    return ran


def tokens_read(ran: list[ProgramSpec], engine: lm.Engine) -> int:
    """How many tokens prefill steps have processed, their padding included."""
    return sum(engine.graph.step(spec.step).length for spec in ran if spec.kind == "prefill")


def request(ids: list[int], limit: int = 6, **more: Any) -> Request:
    return Request(ids, limit, SamplingParams(), **more)


def alone(engine: lm.Engine, ids: list[int], limit: int = 6) -> list[int]:
    runner = engine.new_runner(1)
    runner.prefill(0, ids)
    runner.begin(0, request(ids, limit))
    tokens = list[int]()
    while not runner.is_resting(0):
        tokens += runner.decode()[0].tokens
    return tokens


def finish(scheduler: Scheduler, *waited: ActiveRequest) -> None:
    for _ in range(2000):
        if all(active.finish_reason for active in waited):
            return
        scheduler.step()
    raise AssertionError("a request does not end")


def check(engine: lm.Engine, *ended: ActiveRequest) -> None:
    stops = engine.text.stops.tokens
    for active in ended:
        wanted = alone(engine, list(active.request.ids), active.request.limit or 0)
        assert active.tokens == (wanted[:-1] if wanted[-1] in stops else wanted)


def test_slots_with_one_system_prompt_read_it_once(
    engine: lm.Engine, ran: list[ProgramSpec]
) -> None:
    scheduler = engine.new_scheduler(16)
    joined = [scheduler.join(request([*SYSTEM, *user])) for user in USERS]
    finish(scheduler, *joined)
    assert [active.reused for active in joined] == [0, *[len(SYSTEM)] * 15]
    # 504 tokens in 8 steps; then 4 in each of the other slots.
    assert tokens_read(ran, engine) == 8 * STEP + 15 * 8
    assert sum(spec.kind == "copy" for spec in ran) == 15
    check(engine, *joined)


def test_a_batch_that_is_not_streamed(engine: lm.Engine, ran: list[ProgramSpec]) -> None:
    prompts = [[*SYSTEM, *user] for user in USERS[:6]]
    found = engine.generate(prompts, max_output_tokens=6)
    assert [c.reused_tokens for c in found] == [0, *[len(SYSTEM)] * 5]
    assert tokens_read(ran, engine) == 8 * STEP + 5 * 8
    ran.clear()
    assert [c.token_ids for c in found] == [
        engine.generate([ids], max_output_tokens=6)[0].token_ids for ids in prompts
    ]
    assert tokens_read(ran, engine) == 6 * 8 * STEP


@pytest.mark.parametrize("kind", ["caches", "recurrent", "windows"])
def test_answers_to_one_prompt_read_it_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Also where later tokens overwrite entries: all copies are made before the first token."""
    if kind == "windows":
        model, more = windowed_model(), {"sections": [executor_metadata()]}
    else:
        model, more = language_model(is_recurrent=kind == "recurrent"), {}
    prompt = [7, *range(20, 55)]
    with engine_of(tmp_path / "model.litertlm", model, **more) as engine:
        ran = spied(engine, monkeypatch)
        scheduler = engine.new_scheduler(4)
        joined = [scheduler.join(request(prompt, 9)) for _ in range(4)]
        finish(scheduler, *joined)
        assert tokens_read(ran, engine) == 40
        assert [active.reused for active in joined] == [0, 35, 35, 35]
        check(engine, *joined)


def test_a_state_is_copied_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A recurrent state of the last step's end within the common beginning, not after it."""
    begin = [7, *range(20, 40)]
    with engine_of(tmp_path / "model.litertlm", language_model(is_recurrent=True)) as engine:
        ran = spied(engine, monkeypatch)
        scheduler = engine.new_scheduler(3)
        joined = [scheduler.join(request([*begin, n, 60, 61, 62, 63, 64], 9)) for n in (50, 51)]
        finish(scheduler, *joined)
        assert [active.reused for active in joined] == [0, 16]  # two steps of 8
        assert tokens_read(ran, engine) == 32 + 16
        later = scheduler.join(request([*begin, 52], 9))  # the states are beyond
        finish(scheduler, later)
        assert later.reused == 0
        check(engine, *joined, later)


def test_a_request_that_joins_while_its_beginning_is_read(
    engine: lm.Engine, ran: list[ProgramSpec]
) -> None:
    scheduler = engine.new_scheduler(3)
    first = scheduler.join(request([*SYSTEM, *USERS[0] * 40]))
    other = scheduler.join(request([9, 8, 7]))
    for _ in range(4):
        scheduler.step()
    assert 0 < first.prefilled < 400
    second = scheduler.join(request([*SYSTEM, *USERS[1]]))
    while not second.tokens:
        scheduler.step()
    assert not first.tokens  # its own prompt is longer
    finish(scheduler, first, second, other)
    assert second.reused == len(SYSTEM)
    assert tokens_read(ran, engine) == 11 * STEP + 8 + 8
    check(engine, first, second, other)


def test_an_answer_that_is_generated_is_a_source(engine: lm.Engine) -> None:
    scheduler = engine.new_scheduler(2)
    first = scheduler.join(request([*SYSTEM, *USERS[0]], 60))
    while len(first.tokens) < 8:
        scheduler.step()
    second = scheduler.join(request([*SYSTEM, *USERS[0], *first.tokens, 77, 78]))
    count = len(SYSTEM) + len(USERS[0]) + len(first.tokens)
    finish(scheduler, first, second)
    assert second.reused >= count - 1
    check(engine, first, second)


def test_short_beginnings_are_not_worth_a_copy(engine: lm.Engine, ran: list[ProgramSpec]) -> None:
    """Where as many tokens would be processed, padding included, no one waits."""
    scheduler = engine.new_scheduler(2)
    joined = [scheduler.join(request([1, 6, 7, 8 + n, *range(60, 97)])) for n in range(2)]
    finish(scheduler, *joined)
    assert {spec.kind for spec in ran} == {"prefill", "decode"}
    assert [active.reused for active in joined] == [0, 0]


def test_owners_take_nothing_of_each_other(engine: lm.Engine, ran: list[ProgramSpec]) -> None:
    """Not of a prompt that is read, nor of one that waits for another, nor of an answer."""
    scheduler = engine.new_scheduler(4)
    joined = [
        scheduler.join(request([*SYSTEM, *USERS[0]], 40, owner=owner)) for owner in ("a", "b", "b")
    ]
    finish(scheduler, *joined)
    assert [active.reused for active in joined] == [0, 0, len(SYSTEM) + 4]
    assert sum(spec.kind == "copy" for spec in ran) == 1
    ran.clear()
    another = scheduler.join(request([*SYSTEM, *USERS[0]], owner=None))
    finish(scheduler, another)
    assert (another.reused, tokens_read(ran, engine)) == (0, 8 * STEP)
    check(engine, *joined, another)


def test_a_source_that_leaves(engine: lm.Engine, ran: list[ProgramSpec]) -> None:
    """The next one of those that waited goes on from what it has read."""
    scheduler = engine.new_scheduler(4)
    joined = [scheduler.join(request([*SYSTEM, *user])) for user in USERS[:4]]
    for _ in range(3):
        scheduler.step()
    assert joined[0].prefilled == 3 * STEP
    assert [active.prefilled for active in joined[1:]] == [0, 0, 0]
    scheduler.leave(joined[0])
    finish(scheduler, *joined[1:])
    assert tokens_read(ran, engine) == 8 * STEP + 2 * 8
    assert [active.reused for active in joined[1:]] == [3 * STEP, len(SYSTEM), len(SYSTEM)]
    check(engine, *joined[1:])


def test_a_source_whose_slot_is_taken(engine: lm.Engine) -> None:
    scheduler = engine.new_scheduler(3)
    first = scheduler.join(request([*SYSTEM, *USERS[0]]))
    finish(scheduler, first)
    busy = [scheduler.join(request([n, n], 200)) for n in (60, 61)]
    assert {active.slot for active in busy} == {1, 2}  # those that were never used
    finish(scheduler, busy[0])
    another = scheduler.join(request([*USERS[3] * 30], 6, owner="x"))
    assert another.slot == first.slot  # used least recently
    second = scheduler.join(request([*SYSTEM, *USERS[1]]))
    finish(scheduler, another, second, busy[1])
    assert second.reused == 0
    check(engine, another, second, *busy)


def test_slots_that_were_used_before(engine: lm.Engine) -> None:
    """What was found for an earlier request of a slot says nothing about the next one."""
    scheduler = engine.new_scheduler(2)
    for number in range(3):
        ids = [number + 5, *SYSTEM]
        joined = [scheduler.join(request([*ids, *user])) for user in USERS[:2]]
        finish(scheduler, *joined)
        assert [active.reused for active in joined] == [0, len(ids)]


def test_what_conversations_had_stays(engine: lm.Engine) -> None:
    """A new one takes a slot that was never used, and copies the instructions to it."""
    scheduler = engine.new_scheduler(3)
    ended = list[ActiveRequest]()
    for user in USERS[:3]:
        ended.append(scheduler.join(request([*SYSTEM, *user])))
        finish(scheduler, ended[-1])
    assert [active.reused for active in ended] == [0, len(SYSTEM), len(SYSTEM)]
    assert [active.slot for active in ended] == [0, 1, 2]
    for active in ended:
        ids = [*active.request.ids, *active.tokens]
        again = scheduler.join(request([*ids, 70, 71]))
        finish(scheduler, again)
        assert (again.slot, again.reused) == (active.slot, len(ids) - 1)
        check(engine, again)


@pytest.mark.parametrize("count", [1, 64, 200])
def test_the_entries_of_other_slots_stay(engine: lm.Engine, count: int) -> None:
    runner = engine.new_runner(3)
    for slot, ids in enumerate(([*SYSTEM, 5], [9, 8, 7], [6, 5, 4])):
        runner.prefill(slot, ids)
    before = [np.array(viewed(array)) for array in runner.cache.arrays]
    runner.copy(0, 2, count)
    assert runner.ids(2) == SYSTEM[: count + 1]
    after = map(viewed, runner.cache.arrays)
    for axis, old, new in zip(runner.graph.axes.values(), before, after, strict=True):
        np.testing.assert_array_equal(new[:2], old[:2])
        of_source, copied, kept = (np.moveaxis(x, axis, 0) for x in (old[0], new[2], old[2]))
        np.testing.assert_array_equal(copied[:count], of_source[:count])
        end = count + 64  # blocks end before that
        np.testing.assert_array_equal(copied[end:], kept[end:])


def test_a_copy_forgets_what_its_source_has_forgotten(
    engine: lm.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A window has overwritten the same entries."""
    model: LanguageModel = engine._model
    monkeypatch.setattr(type(model.graph), "max_rewind", 4)
    cache = KVCache(model.graph, 2, model.runtime)
    cache.set(0, [*range(5, 25)])  # 19 entries
    cache.copy(0, 1, 16)
    assert cache.ids(1) == [*range(5, 22)]
    assert (cache.prefix(1, cache.ids(1)), cache.prefix(1, [*range(5, 20)])) == (16, 0)
    later = [[ReadStep(8, n)] for n in (18, 21)]
    assert [cache.reusable(1, *case) for case in ((14, 30, later[0]), (15, 30))] == [0, 15]
    assert cache.reusable(1, 16, 30, later[1]) == 0


def test_the_programs_of_a_prompt_that_goes_first_may_not_be_there(
    engine: lm.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then no one waits for it."""
    scheduler = engine.new_scheduler(3)
    first, second = (scheduler.join(request([*SYSTEM, *user])) for user in USERS[:2])
    can = scheduler._can_prefill
    monkeypatch.setattr(scheduler, "_can_prefill", lambda slot: slot != first.slot and can(slot))
    finish(scheduler, second)
    assert (second.reused, first.prefilled) == (0, 0)
    monkeypatch.undo()
    finish(scheduler, first)
    assert first.reused == len(SYSTEM)
    check(engine, first, second)


def test_the_same_answers_with_and_without(
    engine: lm.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With samples: seeds choose the same tokens."""
    sampled = SamplingParams(lm.SamplerConfig(top_k=8, top_p=1.0, temperature=1.0, seed=3))
    requests = [dataclasses.replace(request([*SYSTEM, *u], 20), params=sampled) for u in USERS[:4]]

    def answers() -> list[list[int]]:
        scheduler = engine.new_scheduler(4)
        joined = [scheduler.join(each) for each in requests]
        finish(scheduler, *joined)
        return [active.tokens for active in joined]

    shared = answers()
    monkeypatch.setattr(Scheduler, "_copy_prefixes", lambda _self, ready: [*ready])
    assert shared == answers()
