"""Log probabilities of tokens of answers and prompts, with the most likely ones."""

import dataclasses
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxdelegate import lm
from jaxdelegate.errors import GenerationError
from jaxdelegate.lm.background_compiler import BackgroundCompiler
from jaxdelegate.lm.model_runner import ModelRunner
from jaxdelegate.lm.program_spec import ProgramSpec, ProgramSpecs
from jaxdelegate.lm.request import Request
from jaxdelegate.lm.sampling_params import SamplingParams
from jaxdelegate.lm.scheduler import ActiveRequest, Scheduler
from jaxdelegate.lm.scores import MOST_TOP, agreeing, tops
from jaxdelegate.lm.stops import StopSequences
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


@pytest.fixture(scope="module")
def chances_of(engine: lm.Engine) -> Any:
    """The log probability of each token that may follow, each by a run that has no other one."""
    runner = engine.new_runner(1, has_stops=False)

    @functools.cache
    def chances(*ids: int) -> np.ndarray:
        runner.prefill(0, ids)
        found = []
        for token in range(engine.graph.vocabulary):
            found += runner.score(0, [token])
            runner.truncate(0, len(ids))
        return np.array(found)

    return chances


def check_top(top: Any, chances: np.ndarray, count: int) -> None:
    best = np.argsort(-chances, kind="stable")[:count]
    np.testing.assert_allclose([score for _, score in top], chances[best], atol=1e-4)
    np.testing.assert_allclose(chances[[token for token, _ in top]], chances[best], atol=1e-4)
    assert len({token for token, _ in top}) == count


def finished(scheduler: Scheduler, *requests: Request) -> list[ActiveRequest]:
    active = [scheduler.join(request) for request in requests]
    while any(one.finish_reason is None for one in active):
        scheduler.step()
    return active


def scheduler_of(runner: ModelRunner) -> Scheduler:
    return Scheduler(runner, StopSequences([]))


@pytest.mark.parametrize("temperature", [0, 1.5])
def test_most_likely_tokens_of_answers(
    runner: ModelRunner, chances_of: Any, temperature: float
) -> None:
    """They are those before temperature and penalties."""
    params = SamplingParams(
        lm.SamplerConfig(top_k=9, temperature=temperature, seed=3), bias=((90, 20.0),)
    )
    request = Request(SHORT, 3, params, has_scores=True, top=5)
    plain = Request(LONG, 3, SamplingParams(), has_scores=True)
    found, other = finished(scheduler_of(runner), request, plain)
    assert (len(found.tops), other.tops) == (3, [])
    for n, top in enumerate(found.tops):
        chances = chances_of(*SHORT, *found.tokens[:n])
        check_top(top, chances, 5)
        assert found.scores[n] == pytest.approx(chances[found.tokens[n]], abs=1e-4)


def test_the_chosen_token_is_as_likely_in_both(runner: ModelRunner) -> None:
    request = Request(SHORT, 9, SamplingParams(), has_scores=True, top=MOST_TOP)
    (found,) = finished(scheduler_of(runner), request)
    assert [max(score for _, score in top) for top in found.tops] == found.scores
    assert agreeing(3, -1.0, [(3, -1.5)]) == -1.5
    assert agreeing(4, -2.0, [(3, -1.5)]) == -2.0


def test_prompts_are_scored_while_others_decode(runner: ModelRunner, engine: lm.Engine) -> None:
    long = LONG * 2
    alone = engine.new_runner(1, has_stops=False)
    (plain,) = finished(scheduler_of(alone), Request(SHORT, 60, SamplingParams()))
    alone.prefill(0, long[:1])
    expected = alone.score(0, long[1:])

    scheduler = scheduler_of(runner)
    other = scheduler.join(Request(SHORT, 60, SamplingParams()))
    while len(other.tokens) < 2:
        scheduler.step()
    scored = scheduler.join(Request(long, 4, SamplingParams(), prompt_top=0))
    counts = []
    while scored.finish_reason is None:
        counts.append((scored.prefilled, len(other.tokens)))
        scheduler.step()
    while other.finish_reason is None:
        scheduler.step()
    np.testing.assert_allclose([s.score for s in scored.prompt_scores], expected, atol=1e-4)
    assert [s.top for s in scored.prompt_scores] == [[]] * len(expected)
    during = [tokens for prefilled, tokens in counts if prefilled < len(long) - 1]
    assert len(during) > 2  # a part of the prompt at a time
    assert during[0] < during[1] < during[2]  # the other one gets tokens in between
    assert other.tokens == plain.tokens
    # The answer continues the prompt that was scored.
    (again,) = finished(scheduler_of(alone), Request(long, 4, SamplingParams()))
    assert scored.tokens == again.tokens


def test_most_likely_tokens_of_prompts(runner: ModelRunner, chances_of: Any) -> None:
    requests = [Request(ids, 0, SamplingParams(), prompt_top=4) for ids in (SHORT, LONG[:4])]
    for active in finished(scheduler_of(runner), *requests):
        ids = active.request.ids
        assert (active.tokens, active.finish_reason, active.reused) == ([], "length", 0)
        assert len(active.prompt_scores) == len(ids) - 1
        for n, found in enumerate(active.prompt_scores, 1):
            chances = chances_of(*ids[:n])
            check_top(found.top, chances, 4)
            assert found.score == pytest.approx(chances[ids[n]], abs=1e-4)
            assert found.rank == (chances >= chances[ids[n]] - 1e-6).sum()


def test_a_greedy_answer_is_the_most_likely_text(runner: ModelRunner) -> None:
    (answer,) = finished(scheduler_of(runner), Request(SHORT, 20, SamplingParams()))
    request = Request([*SHORT, *answer.tokens], 0, SamplingParams(), prompt_top=1)
    (active,) = finished(scheduler_of(runner), request)
    for token, found in zip(answer.tokens, active.prompt_scores[len(SHORT) - 1 :], strict=True):
        assert (found.rank, found.top) == (1, [(token, found.score)])


def test_known_scores_of_a_prompt_are_reused(runner: ModelRunner) -> None:
    """A prompt that asks for more of the most likely tokens is scored again."""
    scheduler, count = scheduler_of(runner), len(LONG) - 1
    (first,) = finished(scheduler, Request(LONG, 0, SamplingParams(), prompt_top=3))
    for top, reused in ((3, count), (1, count), (5, 0)):
        (again,) = finished(scheduler, Request(LONG, 0, SamplingParams(), prompt_top=top))
        assert again.reused == reused
        assert [score.top[:1] for score in again.prompt_scores] == [
            score.top[:1] for score in first.prompt_scores
        ]
        assert {len(score.top) for score in again.prompt_scores} == {top}
        assert again.prompt_scores[-1].score == pytest.approx(first.prompt_scores[-1].score)
    (answer,) = finished(scheduler, Request(LONG, 1, SamplingParams()))
    assert answer.reused == count  # scoring has filled the cache


@pytest.mark.parametrize("slots", [1, 3])
@pytest.mark.parametrize("options", [{}, {"is_gemma4": True}, {"is_rigid": True}], ids=str)
def test_a_program_scores_many_tokens_of_a_slot(
    tmp_path: Path, options: dict[str, bool], slots: int
) -> None:
    """Scores and entries are those of tokens one by one, up to the end of the context."""
    path = tmp_path / "model.litertlm"
    path.write_bytes(language_bundle(model=language_model(**options)))
    with lm.Engine(path, lm.Backend.CPU(), max_batch=slots, cache_dir=":nocache") as engine:
        runner, slow = (engine.new_runner(slots, has_stops=False) for _ in range(2))
        assert runner.specs.scored
        slow.specs.scored = ()
        slot = slots - 1
        for count in (3, 8, 20, 36, runner.graph.limit - 1):
            ids = [60 + n % 50 for n in range(count)]
            for each in (runner, slow):
                each.prefill(slot, [1])
            np.testing.assert_allclose(runner.score(slot, ids), slow.score(slot, ids), atol=1e-4)
            assert runner.ids(slot) == slow.ids(slot) == [1, *ids]
            answers = []
            for each in (runner, slow):
                each.truncate(slot, count)
                each.begin(slot, Request([], 1, SamplingParams(), has_scores=True))
                answers.append(each.decode()[slot])
            assert answers[0].tokens == answers[1].tokens
            assert answers[0].scores == pytest.approx(answers[1].scores, abs=1e-4)


def test_which_models_score_many_tokens_of_a_slot(engine: lm.Engine, tmp_path: Path) -> None:
    graph = engine.graph
    assert ProgramSpecs(graph, 2, ()).scored
    for platform, more in (
        ("gpu", {}),
        ("cpu", {"is_invariant": True}),
        ("cpu", {"drafts": True}),
    ):
        assert not ProgramSpecs(graph, 2, (), platform, **more).scored
    assert not ProgramSpecs(dataclasses.replace(graph, updates_caches=False), 2, ()).scored
    path = tmp_path / "recurrent.litertlm"
    path.write_bytes(language_bundle(model=language_model(is_recurrent=True)))
    with lm.Engine(path, lm.Backend.CPU(), cache_dir=":nocache") as recurrent:
        assert not ProgramSpecs(recurrent.graph, 2, ()).scored


def test_what_prompts_share_is_scored_once(
    engine: lm.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts that come at once copy it, and their short ends are scored together."""
    texts = [[*LONG, *range(100 + n, 103 + n)] for n in range(8)]
    requests = [Request(ids, 1, SamplingParams(), prompt_top=1) for ids in texts]
    alone = engine.new_runner(1, has_stops=False)
    want = [finished(scheduler_of(alone), request)[0] for request in requests]
    runner = engine.new_runner(8, has_stops=False)
    scored: list[tuple[int, int]] = []
    run = runner._run

    def counted(chosen: Any, needed: int) -> Any:
        spec, values = chosen(runner.graph.capacity)
        if spec.kind == "score":
            scored.append((spec.tokens, int(np.sum(values[-1]))))
        return run(chosen, needed)

    monkeypatch.setattr(runner, "_run", counted)
    got = finished(scheduler_of(runner), *requests)
    assert [tokens for tokens, _ in scored if tokens] == [32, 8]
    assert sum(count for _, count in scored) == len(texts[0]) - 1 + 7 * 3
    for a, b in zip(got, want, strict=True):
        assert a.tokens == b.tokens
        np.testing.assert_allclose(
            [s.score for s in a.prompt_scores], [s.score for s in b.prompt_scores], atol=1e-4
        )


def test_short_ends_wait_for_no_program(engine: lm.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are scored one by one, until the program for all of them is there."""
    texts = [[*LONG, *range(100 + n, 103 + n)] for n in range(6)]
    compiler, found = BackgroundCompiler(engine._model), []
    for _ in range(2):
        runner = engine.new_runner(6, has_stops=False)
        scheduler, kinds = Scheduler(runner, StopSequences([]), compiler), []
        run = engine._model.run

        def noted(spec: ProgramSpec, *args: Any, run: Any = run, kinds: Any = kinds) -> Any:
            kinds += [spec.tokens] if spec.kind == "score" else []
            return run(spec, *args)

        monkeypatch.setattr(engine._model, "run", noted)
        requests = [Request(ids, 0, SamplingParams(), prompt_top=1) for ids in texts]
        active = finished(scheduler, *requests)
        monkeypatch.undo()
        compiler.close()
        assert all(len(one.prompt_scores) == len(texts[0]) - 1 for one in active)
        found.append(set(kinds))
    assert found == [{8, 32}, {8, 32, 0}]


def test_requests_without_scores_compile_nothing_for_them(
    engine: lm.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare, kinds = engine._model.prepare, set[str]()

    def noted(spec: ProgramSpec, **more: Any) -> None:
        kinds.add(spec.kind)
        prepare(spec, **more)

    monkeypatch.setattr(engine._model, "prepare", noted)
    compiler = BackgroundCompiler(engine._model)
    scheduler = Scheduler(engine.new_runner(2), StopSequences([]), compiler)
    finished(scheduler, *[Request([5, 6, n], 4, SamplingParams()) for n in range(2)])
    compiler.close()
    assert "score" not in kinds


def test_short_prompts_do_not_wait_for_ever(engine: lm.Engine) -> None:
    """Others with long prompts come all the time."""
    runner = engine.new_runner(2, has_stops=False)
    scheduler = scheduler_of(runner)
    long = [scheduler.join(Request(LONG[:34], 0, SamplingParams(), prompt_top=1))]
    short = scheduler.join(Request([1, 120, 121], 0, SamplingParams(), prompt_top=1))
    while short.finish_reason is None:
        scheduler.step()
        if long[-1].finish_reason is not None:
            ids = [1, *range(70 + len(long), 103 + len(long))]
            long.append(scheduler.join(Request(ids, 0, SamplingParams(), prompt_top=1)))
        assert len(long) < 5


def test_scores_with_long_tops_are_not_kept(runner: ModelRunner) -> None:
    scheduler = scheduler_of(runner)
    request = Request(LONG, 0, SamplingParams(), prompt_top=MOST_TOP)
    first, again = (finished(scheduler, request)[0] for _ in range(2))
    assert (again.reused, len(again.prompt_scores)) == (0, len(LONG) - 1)
    assert again.prompt_scores == first.prompt_scores


def test_prompts_with_one_beginning_are_scored_after_it(runner: ModelRunner) -> None:
    """Also in other slots, which copy its entries; the scores are those of each prompt alone."""
    texts = [[*LONG, *own] for own in ([100, 101], [102, 103, 104], [105], [106, 107])]
    requests = [Request(ids, 2, SamplingParams(), prompt_top=2) for ids in texts]
    alone = [finished(scheduler_of(runner), request)[0] for request in requests]
    for slot in range(2):
        runner.clear(slot)
    scheduler = scheduler_of(runner)
    first = finished(scheduler, requests[0])
    rest = [*finished(scheduler, *requests[1:3]), *finished(scheduler, requests[3])]
    assert [active.reused for active in (*first, *rest)] == [0, *[len(LONG) - 1] * 3]
    assert len({active.slot for active in rest}) == 2
    for got, want in zip((*first, *rest), alone, strict=True):
        assert got.tokens == want.tokens
        for a, b in zip(got.prompt_scores, want.prompt_scores, strict=True):
            assert (a.score, a.rank) == (pytest.approx(b.score, abs=1e-5), b.rank)


def test_what_another_slot_has_now_counts(runner: ModelRunner) -> None:
    """Its scores are known, and a later prompt has taken the place of most entries."""
    scheduler = scheduler_of(runner)
    (first,) = finished(scheduler, Request(LONG, 0, SamplingParams(), prompt_top=1))
    prompts = [1, 200, 201], [*LONG[:9], *range(170, 180)]
    others = [scheduler.join(Request(ids, 40, SamplingParams())) for ids in prompts]
    while not all(other.tokens for other in others):
        scheduler.step()
    assert others[1].slot == first.slot
    scheduler.leave(others[0])
    (again,) = finished(scheduler, Request(LONG, 0, SamplingParams(), prompt_top=1))
    assert (again.slot, again.reused) == (others[0].slot, 9)
    for a, b in zip(again.prompt_scores, first.prompt_scores, strict=True):
        assert a.score == pytest.approx(b.score, abs=1e-5)


def test_owners_do_not_know_each_others_scores(runner: ModelRunner) -> None:
    scheduler = scheduler_of(runner)
    for owner, reused in (("a", 0), ("b", 0), ("b", len(LONG) - 1)):
        request = Request(LONG, 0, SamplingParams(), prompt_top=1, owner=owner)
        assert finished(scheduler, request)[0].reused == reused


@pytest.mark.parametrize("limit", [0, 2])
def test_one_token_has_nothing_to_score(runner: ModelRunner, limit: int) -> None:
    request = Request([5], limit, SamplingParams(), prompt_top=3)
    (active,) = finished(scheduler_of(runner), request)
    assert (active.prompt_scores, len(active.tokens)) == ([], limit)


@pytest.mark.parametrize("prompt_top", [None, 1])
def test_a_prompt_without_an_answer_may_fill_the_context(
    runner: ModelRunner, prompt_top: int | None
) -> None:
    full = [1, *[70 + n % 30 for n in range(runner.graph.limit - 1)]]
    scheduler = scheduler_of(runner)
    request = Request(full, 0, SamplingParams(), prompt_top=prompt_top)
    short = Request(SHORT, 20, SamplingParams())
    active, other = finished(scheduler, request, short)
    assert active.finish_reason == "length"
    assert len(active.prompt_scores) == (0 if prompt_top is None else len(full) - 1)
    assert len(other.tokens) == 20
    with pytest.raises(GenerationError, match="before an answer"):
        scheduler.join(Request(full, 1, SamplingParams(), prompt_top=1))


def test_a_request_that_leaves_is_scored_no_more(runner: ModelRunner) -> None:
    scheduler = scheduler_of(runner)
    active = scheduler.join(Request(LONG, 5, SamplingParams(), prompt_top=1))
    scheduler.step()
    scheduler.leave(active)
    assert scheduler.free == scheduler.slots
    (other,) = finished(scheduler, Request(SHORT, 2, SamplingParams(), prompt_top=1))
    assert len(active.prompt_scores) < len(LONG) - 1
    assert len(other.prompt_scores) == len(SHORT) - 1


def test_tops_are_cut_to_what_was_asked_for() -> None:
    tokens, scores = np.int32([[3, 4], [5, 6]]), np.float32([[-1, -2], [-0.5, -3]])
    assert tops(tokens, scores, 1) == [[(3, -1.0)], [(5, -0.5)]]
    assert tops(tokens, scores, 0) == [[], []]
