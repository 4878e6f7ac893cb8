"""Prompts of several slots in one program, as GPUs read them; here a CPU does."""

import functools
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from jaxdelegate import lm
from jaxdelegate.errors import GenerationError
from jaxdelegate.lm import graph, program_spec
from jaxdelegate.lm.background_compiler import BackgroundCompiler
from jaxdelegate.lm.model_runner import ModelRunner, PrefillStep, grouped_steps
from jaxdelegate.lm.program_spec import ProgramSpec
from jaxdelegate.lm.request import Request
from jaxdelegate.lm.sampling_params import SamplingParams
from jaxdelegate.lm.scheduler import Scheduler
from tests.support.language_models import drafter_bundle, language_bundle, language_model
from tests.support.windows import executor_metadata, windowed_model

PROMPTS = [[5 + n] * (17 - n) for n in range(8)]  # the last one would fit into a step of 8
LONG = [[5 + n, *range(10, 122 - n - n // 4 * 30)] for n in range(8)]  # four steps of 32, or three


@pytest.fixture
def specs(monkeypatch: pytest.MonkeyPatch) -> list[ProgramSpec]:
    """The programs that ran."""
    own, ran = ModelRunner._started, list[ProgramSpec]()

    def started(runner: ModelRunner, spec: ProgramSpec, values: Any) -> Any:
        ran.append(spec)
        return own(runner, spec, values)

    monkeypatch.setattr(ModelRunner, "_started", started)
    return ran


def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("padding_of", "prompts_at_once", "steps_at_once"):
        own = getattr(graph, name)
        monkeypatch.setattr(program_spec, name, lambda _, *a, own=own: own("gpu", *a))


def prefills(ran: list[ProgramSpec]) -> Counter[tuple[str, int]]:
    return Counter((spec.step, spec.prompts) for spec in ran if spec.kind == "prefill")


def bundle_of(kind: str) -> bytes:
    if kind == "gemma4":
        return drafter_bundle()
    if kind == "windows":
        return language_bundle(model=windowed_model(), sections=[executor_metadata()])
    return language_bundle(
        model=language_model(prefill=(8, 32), is_recurrent=kind == "recurrent", hidden=32)
    )


@pytest.mark.parametrize("kind", ["plain", "recurrent", "gemma4", "windows"])
def test_answers_are_those_of_prompts_one_by_one(
    kind: str, specs: list[ProgramSpec], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.litertlm"
    path.write_bytes(bundle_of(kind))
    generate = functools.partial(generated, path)
    alone = generate()
    assert {prompts for _, prompts in prefills(specs)} == {1}
    specs.clear()
    as_on_a_gpu(monkeypatch)
    assert generate() == alone
    if kind in ("gemma4", "windows"):
        assert prefills(specs)["prefill_8", 8] > 0
    else:
        assert prefills(specs) == {("prefill_32", 8): 1}


@pytest.mark.parametrize("kind", ["plain", "recurrent", "gemma4"])
@pytest.mark.parametrize("slots", [1, 3, 8])
def test_one_program_runs_all_steps(
    kind: str,
    slots: int,
    specs: list[ProgramSpec],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tmp_path / "model.litertlm"
    path.write_bytes(bundle_of(kind))
    generate = functools.partial(generated, path, LONG[:slots], slots)
    alone = generate()
    one_by_one = prefills(specs).total()
    specs.clear()
    as_on_a_gpu(monkeypatch)
    assert generate() == alone
    if kind == "gemma4":
        assert 4 * prefills(specs).total() < one_by_one
    else:
        assert prefills(specs) == {("prefill_32", slots): 1}


@pytest.mark.parametrize("count", [128, 129, 1000])
def test_a_first_prompt_that_is_too_long(count: int, tmp_path: Path) -> None:
    path = tmp_path / "model.litertlm"
    path.write_bytes(bundle_of("plain"))
    wrong = pytest.raises(GenerationError, match=rf"at most 127 tokens .*, got {count}: shorten")
    with lm.Engine(path, lm.Backend.CPU(), cache_dir=":nocache") as engine, wrong:
        engine.generate([[5] * count])


def test_steps_of_a_slot_stay_in_order() -> None:
    steps = [PrefillStep(slot, (), start, 32) for start in (0, 32) for slot in (0, 1, 2)]
    more = PrefillStep(0, (), 64, 32)
    rows = grouped_steps([*steps, more], 2)
    assert [[(s.slot, s.start) for s in row] for row in rows] == [
        [(0, 0), (1, 0)],
        [(2, 0)],
        [(0, 32), (1, 32)],
        [(2, 32)],
        [(0, 64)],
    ]


def generated(
    path: Path, prompts: Sequence[Sequence[int]] = PROMPTS, slots: int = 8
) -> list[list[int]]:
    with lm.Engine(path, lm.Backend.CPU(), max_batch=slots, cache_dir=":nocache") as engine:
        return [c.token_ids for c in engine.generate(prompts, max_output_tokens=12)]


def test_few_prompts_are_read_one_by_one(
    specs: list[ProgramSpec], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows without a prompt cost as much as others; at least half have one."""
    path = tmp_path / "model.litertlm"
    path.write_bytes(bundle_of("plain"))
    as_on_a_gpu(monkeypatch)
    with lm.Engine(path, lm.Backend.CPU(), cache_dir=":nocache") as engine:
        for count, prompts in ((3, Counter({("prefill_32", 1): 3})), (5, {("prefill_32", 8): 1})):
            scheduler = Scheduler(engine.new_runner(8), engine.text.stops, is_streamed=False)
            specs.clear()
            joined = [scheduler.join(Request(ids, 4, SamplingParams())) for ids in PROMPTS[:count]]
            while scheduler.free < 8:
                scheduler.step()
            assert prefills(specs) == prompts
            assert [len(active.tokens) for active in joined] == [4] * count


def test_a_server_reads_them_one_by_one_until_the_program_is_there(
    specs: list[ProgramSpec], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.litertlm"
    path.write_bytes(bundle_of("plain"))
    as_on_a_gpu(monkeypatch)
    with lm.Engine(path, lm.Backend.CPU(), cache_dir=":nocache") as engine:
        runner = engine.new_runner(8)
        for spec in runner.specs.needed(128, SamplingParams().variant(261)):
            engine._model.prepare(spec)
        compiler = BackgroundCompiler(engine._model)
        answers = []
        for _ in range(2):
            scheduler = Scheduler(engine.new_runner(8), engine.text.stops, compiler)
            specs.clear()
            joined = [scheduler.join(Request(ids, 4, SamplingParams())) for ids in PROMPTS]
            while scheduler.free < 8:
                scheduler.step()
            answers.append([active.tokens for active in joined])
            compiler.close()  # waits for it
    assert prefills(specs) == {("prefill_32", 8): 1}
    assert answers[0] == answers[1]
