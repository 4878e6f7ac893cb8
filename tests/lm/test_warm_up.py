"""Programs that are compiled before requests need them: then none waits, whatever it asks for."""

import threading
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest

from jaxdelegate import lm
from jaxdelegate.lm.background_compiler import BackgroundCompiler
from jaxdelegate.lm.constraints import Grammar
from jaxdelegate.lm.graph import LanguageGraph
from jaxdelegate.lm.language_model import LengthError
from jaxdelegate.lm.request import Request
from jaxdelegate.lm.sampling_params import SamplingParams, Variant, common_variant, general_variants
from jaxdelegate.lm.scheduler import ActiveRequest, Scheduler
from jaxdelegate.lm.warm_up import warm_programs, with_contents
from jaxdelegate.serve.settings import WARM_KINDS
from tests.lm.test_background_compiler import Held, finished
from tests.support.language_models import language_bundle, language_model

SHORT, LONG = [1, 80, 81], [1, *range(20, 259), *range(20, 80)]
SAMPLED = SamplingParams(lm.SamplerConfig(top_k=8, top_p=0.9, temperature=1.0, seed=3))
ALL = SamplingParams(lm.SamplerConfig(top_k=261, top_p=0.9, temperature=1.0, seed=3))
LOWERED = SamplingParams(penalties=lm.RepetitionPenaltyConfig(1.0, 0.5))


class Recorder:
    """A model that compiles one program after the other, when it is allowed."""

    def __init__(self) -> None:
        self.allowed, self.begun = threading.Semaphore(0), threading.Event()
        self.done, self.errors = list[Any](), dict[Any, Exception]()

    def has_program(self, spec: Any) -> bool:
        return spec in self.done

    def prepare(self, spec: Any, *, is_optional: bool = False) -> None:
        assert is_optional == (spec == "optional")
        self.begun.set()
        assert self.allowed.acquire(timeout=60)
        if spec in self.errors:
            raise self.errors[spec]
        self.done.append(spec)


def warmed(model: Any, *programs: tuple[str, str]) -> BackgroundCompiler:
    compiler = BackgroundCompiler(model)
    compiler.warm(programs)  # type: ignore[arg-type]
    return compiler


def test_a_request_goes_before_what_none_waits_for() -> None:
    model = Recorder()
    compiler = warmed(model, ("json", "a"), ("json", "b"), ("long", "c"))
    assert model.begun.wait(60)
    assert not compiler.begin(["c"], is_urgent=False)  # type: ignore[list-item]
    assert not compiler.has_optional("optional")  # type: ignore[arg-type]
    assert not compiler.begin(["needed"])  # type: ignore[list-item]
    assert compiler.wait_until_warm(0) is None
    model.allowed.release(9)
    seconds = compiler.wait_until_warm(60)
    assert seconds is not None
    assert list(seconds) == ["json", "others", "long"]
    assert model.done == ["a", "needed", "optional", "b", "c"]
    compiler.close()


def test_what_is_in_memory_is_warm() -> None:
    model = Recorder()
    model.done.append("a")
    assert warmed(model, ("json", "a")).wait_until_warm(0) == {}
    assert warmed(model).wait_until_warm(0) == {}


def test_functions_between_programs() -> None:
    model = Recorder()
    model.allowed.release(9)
    compiler = BackgroundCompiler(model)
    works = ("json", "a"), ("json", lambda: model.done.append("function")), ("long", "b")
    compiler.warm(works)  # type: ignore[arg-type]
    assert compiler.wait_until_warm(60) is not None
    assert model.done == ["a", "function", "b"]
    compiler.close()


def test_an_error_does_not_end_the_thread(caplog: pytest.LogCaptureFixture) -> None:
    model = Recorder()
    model.errors = {"a": RuntimeError("no memory"), "b": LengthError()}
    model.allowed.release(9)
    compiler = warmed(model, ("json", "a"), ("long", "b"), ("long", "c"))
    assert compiler.wait_until_warm(60) is not None
    assert model.done == ["c"]
    (record,) = caplog.records
    assert record.getMessage().endswith("before they come: no memory")
    compiler.close()


def test_closing_drops_what_none_waits_for() -> None:
    model = Recorder()
    compiler = warmed(model, ("json", "a"), ("json", "b"))
    assert model.begun.wait(60)
    threading.Timer(0.05, model.allowed.release).start()
    compiler.close()
    assert model.done == ["a"]
    assert compiler.wait_until_warm(0) is None


@pytest.mark.parametrize("vocabulary", [30, 100, 261, 5000])
def test_general_programs_cover_all_variants(vocabulary: int) -> None:
    general = general_variants(vocabulary, True)
    for k in {1, 2, 64, 256, vocabulary}:
        for bits in range(16):
            flags = [bool(bits >> i & 1) for i in range(4)]
            wanted = Variant(min(k, vocabulary), flags[0], 0, *flags[1:])
            covering = [v for v in general if common_variant([v, wanted]) == v]
            assert covering
            is_plain = not any(flags) and wanted.k <= general[1].k
            assert (covering[0] in general[:2]) == is_plain


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[lm.Engine]:
    """For 512 tokens, with caches of two lengths."""
    path = tmp_path_factory.mktemp("lm") / "model.litertlm"
    path.write_bytes(language_bundle(model=language_model(capacity=512, prefill=(64,))))
    with (
        pytest.MonkeyPatch.context() as patch,
        lm.Engine(path, lm.Backend.CPU(), max_batch=3, cache_dir=":nocache") as engine,
    ):
        patch.setattr(LanguageGraph, "cache_lengths", (256, 512))
        yield engine


def scheduler_of(engine: lm.Engine, model: Any, *kinds: str) -> Scheduler:
    """With the programs of some kinds; nothing is compiled any more."""
    compiler = BackgroundCompiler(model)
    scheduler = Scheduler(engine.new_runner(3), engine.text.stops, compiler)
    model.allowed.set()
    compiler.warm(warm_programs(scheduler._runner, Variant(), kinds))
    assert compiler.wait_until_warm(300) is not None
    compiler.close()
    model.allowed.clear()
    return scheduler


def requests(engine: lm.Engine) -> dict[str, Request]:
    json = engine.text.constraint(Grammar.json({"type": "integer"}))
    return {
        "greedy": Request(SHORT, 9, SamplingParams()),
        "sampling": Request(SHORT, 9, SAMPLED),
        "json": Request(SHORT, 9, SamplingParams(), constraint=json),
        "sampled json": Request(SHORT, 9, SAMPLED, constraint=json),
        "penalties": Request(SHORT, 9, LOWERED),
        "all_tokens": Request(SHORT, 9, ALL),
        "logprobs": Request(SHORT, 9, SamplingParams(), has_scores=True),
        "embeddings": Request(SHORT, 1, SamplingParams(), has_hidden_state=True),
        "long": Request(LONG, 9, SamplingParams()),
        "long json": Request(LONG, 9, SAMPLED, constraint=json),
    }


@pytest.mark.slow
def test_no_request_waits_for_a_program(engine: lm.Engine) -> None:
    """Neither alone nor with others, though nothing is compiled but what is general."""
    held = Held(engine._model)
    scheduler = scheduler_of(engine, held, "any", "long")
    known, runner = set(held._known), engine.new_runner(3)
    asked = requests(engine)
    for each in ([[request] for request in asked.values()], [[*asked.values()][3:6]]):
        for group in each:
            assert all(map(scheduler.is_ready, group))
            running = [scheduler.join(request) for request in group]
            finished(scheduler, *running)
            for own, request in zip(running, group, strict=True):
                assert own.tokens == alone(engine, runner, request).tokens
                assert (len(own.scores) > 0) == request.has_scores
                assert (own.hidden_state is not None) == request.has_hidden_state
    assert held._known == known
    held.allowed.set()  # what took turns may be compiled for it alone


def alone(engine: lm.Engine, runner: Any, request: Request) -> ActiveRequest:
    """What the exact program says."""
    scheduler = Scheduler(runner, engine.text.stops)
    running = scheduler.join(request)
    finished(scheduler, running)
    return running


@pytest.mark.slow
def test_a_request_gets_what_is_compiled_anyway(engine: lm.Engine) -> None:
    """Not a program of its own, which a later start might not have stored."""
    held, asked = Held(engine._model), requests(engine)["logprobs"]
    compiler, runner = BackgroundCompiler(held), engine.new_runner(3)
    scheduler = Scheduler(runner, engine.text.stops, compiler)
    compiler.warm(warm_programs(runner, Variant(), ["any", "long"]))
    assert not scheduler.is_ready(asked)
    vocabulary, has_hidden_states = engine.graph.vocabulary, engine.graph.hidden_size > 0
    general = general_variants(vocabulary, has_hidden_states)[2]
    decoding = [spec.variant for spec in compiler._specs if spec.kind == "decode"]
    assert decoding == [general]
    held.allowed.set()
    running = scheduler.join(asked)
    finished(scheduler, running)
    compiler.close()
    assert len(running.scores) == len(running.tokens)


@pytest.mark.slow
def test_a_program_that_takes_less_time_replaces_a_general_one(engine: lm.Engine) -> None:
    held = Held(engine._model)
    scheduler = scheduler_of(engine, held, "any")
    asked = requests(engine)["logprobs"]
    exact = scheduler._runner.specs.decode(asked.variant(engine.graph.vocabulary), 256)
    assert not held.has_program(exact)
    finished(scheduler, scheduler.join(asked))
    held.allowed.set()
    scheduler._programs._compiler.close()  # type: ignore[union-attr]
    assert held.has_program(exact)
    running = scheduler.join(asked)
    finished(scheduler, running)
    assert scheduler._programs._last.variant == exact.variant  # type: ignore[union-attr]


def test_kinds_are_those_of_the_setting(engine: lm.Engine) -> None:
    runner = engine.new_runner(3)
    found = warm_programs(runner, Variant(), WARM_KINDS)
    kinds = dict.fromkeys(kind for kind, _ in found)
    assert [*kinds, "images", "sounds"] == list(WARM_KINDS)
    assert len({spec for _, spec in found}) == len(found)
    assert warm_programs(runner, Variant(), ()) == []
    for kind in WARM_KINDS[:-2]:
        assert warm_programs(runner, Variant(), [kind])
    encoder = mock.Mock(works=lambda *, of_several: [of_several])
    ordered = with_contents([("any", 1), ("long", 2)], "images", encoder)  # type: ignore[list-item]
    assert ordered == [("any", 1), ("images", False), ("long", 2), ("images", True)]


def test_a_slot_that_waits_does_not_count(engine: lm.Engine) -> None:
    held = Held(engine._model)
    scheduler = engine.new_scheduler(3, BackgroundCompiler(held))
    waiting = scheduler.join(Request(SHORT, 9, SamplingParams()))
    scheduler.prefill(), scheduler.decode(1)
    assert (scheduler.waiting, scheduler.use, scheduler.is_held) == (1, 0, True)
    held.allowed.set()
    while not waiting.tokens:
        scheduler.prefill(), scheduler.decode(1)
    assert scheduler.waiting == 0
    assert scheduler.use > 0
    scheduler.leave(waiting)
    assert (scheduler.waiting, scheduler.use) == (0, 0)
