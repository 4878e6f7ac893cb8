"""Programs that a thread compiles: what needs them waits, the rest goes on, tokens stay."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jaxdelegate import lm
from jaxdelegate.lm.background_compiler import BackgroundCompiler
from jaxdelegate.lm.graph import LanguageGraph
from jaxdelegate.lm.language_model import LengthError
from jaxdelegate.lm.program_spec import ProgramSpec
from jaxdelegate.lm.request import Request
from jaxdelegate.lm.sampling_params import SamplingParams
from jaxdelegate.lm.scheduler import ActiveRequest, Scheduler
from tests.support.language_models import language_bundle, language_model

GROWING, SHORT = [1, *range(20, 259)], [1, 80, 81]


class Held:
    """A model that has no programs yet, and compiles when it is allowed."""

    def __init__(self, model: Any) -> None:
        self._model, self.allowed, self._known = model, threading.Event(), set[Any]()
        self.error: Exception | None = None
        self.error_of_optional: Exception | None = None

    def has_program(self, task: Any) -> bool:
        return task in self._known

    def prepare(self, task: Any, *, is_optional: bool = False) -> None:
        assert self.allowed.wait(60)
        error = self.error_of_optional if is_optional else self.error
        if error is not None:
            raise error
        self._model.prepare(task, is_optional=is_optional)
        self._known.add(task)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[lm.Engine]:
    """For 512 tokens, with caches of two lengths."""
    path = tmp_path_factory.mktemp("lm") / "model.litertlm"
    path.write_bytes(language_bundle(model=language_model(capacity=512, prefill=(64,))))
    with (
        pytest.MonkeyPatch.context() as patch,
        lm.Engine(path, lm.Backend.CPU(), max_batch=2, cache_dir=":nocache") as engine,
    ):
        patch.setattr(LanguageGraph, "cache_lengths", (256, 512))
        yield engine


@pytest.fixture
def held(engine: lm.Engine) -> Held:
    return Held(engine._model)


def finished(scheduler: Scheduler, *waited: ActiveRequest) -> None:
    """Run until these have ended, and at most a minute."""
    end = threading.Event()
    timer = threading.Timer(60, end.set)
    timer.start()
    while any(running.finish_reason is None for running in waited):
        assert not end.is_set()
        scheduler.prefill()
        scheduler.decode(4)
    timer.cancel()


def warmed(engine: lm.Engine, held: Held) -> Scheduler:
    """A scheduler that has the programs for short caches and the most likely token."""
    scheduler = engine.new_scheduler(2, BackgroundCompiler(held))
    held.allowed.set()
    finished(scheduler, scheduler.join(Request([5] * 70, 2, SamplingParams())))
    scheduler._programs._compiler.close()  # type: ignore[union-attr]  # an optional program may be compiling
    held.allowed.clear()
    return scheduler


@pytest.mark.slow
def test_a_sequence_that_grows_waits_alone(engine: lm.Engine, held: Held) -> None:
    scheduler = warmed(engine, held)
    growing = scheduler.join(Request(GROWING, 40, SamplingParams()))
    short = scheduler.join(Request(SHORT, 90, SamplingParams()))
    finished(scheduler, short)
    assert len(growing.tokens) == 256 - len(GROWING) + 1  # as many as fit
    another = scheduler.join(Request(SHORT, 20, SamplingParams()))
    finished(scheduler, another)
    scheduler.prefill(), scheduler.decode(4)
    assert scheduler.is_held
    held.allowed.set()
    finished(scheduler, growing)
    alone = engine.generate([GROWING], max_output_tokens=40)
    assert growing.tokens == alone[0].token_ids
    for running, limit in ((short, 90), (another, 20)):
        assert running.tokens == engine.generate([SHORT], max_output_tokens=limit)[0].token_ids


def test_a_prompt_that_is_too_long_for_the_caches_waits_alone(
    engine: lm.Engine, held: Held
) -> None:
    scheduler = warmed(engine, held)
    long = scheduler.join(Request([*GROWING, *SHORT * 20], 9, SamplingParams()))
    short = scheduler.join(Request(SHORT, 90, SamplingParams()))
    finished(scheduler, short)
    assert (long.tokens, long.prefilled) == ([], 256)
    held.allowed.set()
    finished(scheduler, long)
    (alone,) = engine.generate([[*GROWING, *SHORT * 20]], max_output_tokens=9)
    assert long.tokens == alone.token_ids
    finished(
        scheduler, scheduler.join(Request(SHORT, 90, SamplingParams()))
    )  # caches are short again


@pytest.mark.slow
def test_variants_join_and_leave(engine: lm.Engine, held: Held) -> None:
    """What was compiled for several goes on for fewer of them."""
    scheduler = warmed(engine, held)
    sampled = SamplingParams(lm.SamplerConfig(top_k=8, top_p=1.0, temperature=1.0, seed=3))
    held.allowed.set()
    first = scheduler.join(Request(SHORT, 60, sampled))
    while not first.tokens:
        scheduler.prefill(), scheduler.decode(1)
    second = scheduler.join(Request(SHORT, 90, SamplingParams(), has_scores=True))
    while not second.tokens:
        scheduler.prefill(), scheduler.decode(1)
    held.allowed.clear()
    finished(scheduler, first, second)
    assert second.tokens == engine.generate([SHORT], max_output_tokens=90)[0].token_ids
    assert len(second.scores) == len(second.tokens)


def test_variants_without_a_common_program_take_turns(engine: lm.Engine, held: Held) -> None:
    """No one waits for it, however long others keep the thread that compiles."""
    scheduler, ruled = (
        warmed(engine, held),
        SamplingParams(penalties=lm.RepetitionPenaltyConfig(1.0, 0.5)),
    )
    requests = [Request(SHORT, 40, SamplingParams(), has_scores=True), Request(SHORT, 40, ruled)]
    held.allowed.set()
    alone = [scheduler.join(request) for request in requests[:1]]
    finished(scheduler, *alone)
    alone.append(scheduler.join(requests[1]))
    finished(scheduler, *alone)
    scheduler._programs._compiler.close()  # type: ignore[union-attr]
    held.allowed.clear()
    both = [scheduler.join(request) for request in requests]
    while scheduler.prefill():
        pass
    for _ in range(10):
        scheduler.decode(2)
    assert [len(running.tokens) for running in both] == [10, 10]
    finished(scheduler, *both)
    assert [running.tokens for running in both] == [running.tokens for running in alone]
    held.allowed.set()


def test_longer_caches_wait_for_the_programs_of_all(engine: lm.Engine, held: Held) -> None:
    """A sequence that has its own does not stop those that have none for these caches."""
    scheduler, sampled = warmed(engine, held), SamplingParams(lm.SamplerConfig(top_k=8, seed=1))
    growing, plain = (
        Request(GROWING, 40, SamplingParams(), has_scores=True),
        Request(SHORT, 90, sampled),
    )
    held.allowed.set()
    finished(scheduler, scheduler.join(plain))
    alone = scheduler.join(growing)
    finished(scheduler, alone)
    scheduler._programs._compiler.close()  # type: ignore[union-attr]
    held.allowed.clear()
    scheduler = engine.new_scheduler(2, BackgroundCompiler(held))
    grown, short = scheduler.join(growing), scheduler.join(plain)
    finished(scheduler, short)
    assert len(grown.tokens) == 256 - len(GROWING) + 1
    held.allowed.set()
    finished(scheduler, grown)
    assert grown.tokens == alone.tokens


def test_who_waits_outside_waits_for_a_turn_to_compile(engine: lm.Engine, held: Held) -> None:
    """Programs of one request at a time are compiled, in the order of asking."""
    scheduler, sampled = warmed(engine, held), SamplingParams(lm.SamplerConfig(top_k=8, seed=1))
    wanted = [Request(SHORT, 3, SamplingParams(), has_scores=True), Request(SHORT, 3, sampled)]
    long = Request([*GROWING, *SHORT * 20], 3, SamplingParams())
    assert scheduler.is_ready(Request(GROWING[:200], 3, SamplingParams()))
    assert not any(scheduler.is_ready(request) for request in (*wanted, long))
    held.allowed.set()
    scheduler._programs._compiler.close()  # type: ignore[union-attr]
    assert [scheduler.is_ready(request) for request in (wanted[0], wanted[1])] == [True, False]
    scheduler._programs._compiler.close()  # type: ignore[union-attr]
    assert scheduler.is_ready(wanted[1])
    held.error = RuntimeError("no memory")
    assert not scheduler.is_ready(long)
    scheduler._programs._compiler.close()  # type: ignore[union-attr]
    assert scheduler.is_ready(long)  # it hears of the error in its slot
    failing = scheduler.join(long)
    finished(scheduler, failing)
    assert failing.error == "no memory"


def test_a_request_alone_has_a_program_of_its_own(
    engine: lm.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once it is compiled; the others' caches stay as they are."""
    compiler, runner, ran = (
        engine.new_background_compiler(),
        engine.new_runner(2),
        list[ProgramSpec](),
    )
    scheduler, run = Scheduler(runner, engine.text.stops, compiler), engine._model.run
    monkeypatch.setattr(engine._model, "run", lambda spec, *a: (ran.append(spec), run(spec, *a))[1])
    resting = scheduler.join(Request(SHORT, 3, SamplingParams()))
    finished(scheduler, resting)
    compiler.close()
    alone = scheduler.join(Request(GROWING[1:9], 30, SamplingParams()))
    ran.clear()
    finished(scheduler, alone)
    assert {spec.is_alone for spec in ran if spec.kind == "decode"} == {True}
    assert alone.tokens == engine.generate([GROWING[1:9]], max_output_tokens=30)[0].token_ids
    again = scheduler.join(Request([*SHORT, *resting.tokens], 9, SamplingParams()))
    assert again.reused == len(SHORT) + 2
    finished(scheduler, again)
    both = engine.generate([[*SHORT, *resting.tokens]], max_output_tokens=9)
    assert again.tokens == both[0].token_ids


def test_without_its_own_program_a_request_alone_goes_on(
    engine: lm.Engine, held: Held, caplog: pytest.LogCaptureFixture
) -> None:
    held.error_of_optional = RuntimeError("no memory")
    scheduler = warmed(engine, held)
    held.allowed.set()
    running = scheduler.join(Request(SHORT, 20, SamplingParams()))
    finished(scheduler, running)
    assert running.tokens == engine.generate([SHORT], max_output_tokens=20)[0].token_ids
    scheduler._programs._compiler.close()  # type: ignore[union-attr]
    assert "one request at a time take longer: no memory" in caplog.text


def test_an_error_is_that_of_one_request(engine: lm.Engine, held: Held) -> None:
    scheduler = warmed(engine, held)
    held.error = RuntimeError("no memory")
    failing = scheduler.join(Request(SHORT, 9, SamplingParams(), has_scores=True))
    going_on = scheduler.join(Request(SHORT, 90, SamplingParams()))
    held.allowed.set()
    finished(scheduler, failing, going_on)
    assert (failing.error, going_on.error) == ("no memory", None)
    held.error = None
    again = scheduler.join(Request(SHORT, 9, SamplingParams(), has_scores=True))
    finished(scheduler, again)
    assert (again.error, len(again.scores)) == (None, len(again.tokens))


def test_lengths_that_a_model_cannot_have(tmp_path: Path) -> None:
    content = language_model(capacity=512, prefill=(64,), is_rigid=True)
    path = tmp_path / "model.litertlm"
    path.write_bytes(language_bundle(model=content))
    with lm.Engine(path, lm.Backend.CPU(), max_batch=2, cache_dir=":nocache") as engine:
        assert len(engine.graph.cache_lengths) > 1
        scheduler = engine.new_scheduler(2, engine.new_background_compiler())
        running = scheduler.join(Request(SHORT, 9, SamplingParams()))
        finished(scheduler, running)
        assert running.tokens == engine.generate([SHORT], max_output_tokens=9)[0].token_ids


def test_closing_waits_for_the_thread(held: Held) -> None:
    compiler, tasks = BackgroundCompiler(held), ["a", "b", "c"]
    done = list[str]()
    held._model = type("Model", (), {"prepare": lambda task, **_: done.append(task)})
    assert not compiler.is_ready(tasks)  # type: ignore[arg-type]
    threading.Timer(0.05, held.allowed.set).start()
    compiler.close()
    assert done == ["a"]
    held.error = LengthError()
    assert not compiler.is_ready(["d"])  # type: ignore[list-item]
    compiler.close()
    with pytest.raises(LengthError):
        compiler.is_ready(["d"])  # type: ignore[list-item]


SCRIPT = """
import sys
from jaxdelegate import lm
from jaxdelegate.lm.sampling_params import SamplingParams
from jaxdelegate.lm.request import Request
from jaxdelegate.lm.scheduler import Scheduler

with lm.Engine(sys.argv[1], lm.Backend.CPU(), max_batch=2, cache_dir=sys.argv[2]) as engine:
    compiler = engine.new_background_compiler()
    scheduler = engine.new_scheduler(2, compiler)
    first = scheduler.join(Request([1, 80, 81], 100, SamplingParams()))
    while len(first.tokens) < 5:
        scheduler.prefill(), scheduler.decode(1)
    had_jax = "jax" in sys.modules
    second = scheduler.join(Request([1, 80, 81], 9, SamplingParams(), has_scores=len(sys.argv) > 3))
    while first.finish_reason is None or second.finish_reason is None:
        scheduler.prefill(), scheduler.decode(1)
    compiler.close()
    print(had_jax, "jax" in sys.modules, first.tokens, second.tokens, len(second.scores))
"""


@pytest.mark.slow
def test_jax_is_imported_while_others_run(tmp_path: Path) -> None:
    path = tmp_path / "model.litertlm"
    path.write_bytes(language_bundle())

    def printed(*more: str) -> str:
        command = [sys.executable, "-c", SCRIPT, str(path), str(tmp_path / "cache"), *more]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    first = printed().split(maxsplit=2)
    again = printed().split(maxsplit=2)
    assert (first[0], again[:2], first[2]) == ("True", ["False", "False"], again[2])
    with_scores = printed("scores").split(maxsplit=2)
    assert with_scores[:2] == ["False", "True"]
    assert with_scores[2].rpartition(" ")[0] == first[2].rpartition(" ")[0]
