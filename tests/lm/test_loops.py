"""Decode loops that run several steps at a time, as on a GPU: answers stay the same."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jaxdelegate import lm
from jaxdelegate.lm.program_spec import ProgramSpecs
from jaxdelegate.lm.request import Request
from jaxdelegate.lm.sampling_params import Variant
from jaxdelegate.xla import aot, loops
from tests.support.language_models import drafter_bundle, language_bundle, language_model

PROMPTS = [[7, 8, 9], [100], [*range(20, 50)], [9, 9, 9, 9, 9], [60, 61]]
BUNDLES: dict[str, Callable[[], bytes]] = {
    "plain": language_bundle,
    "recurrent": lambda: language_bundle(model=language_model(is_recurrent=True)),
    "drafter": drafter_bundle,
}


def opened(path: Path, form: str, slots: int) -> lm.Engine:
    """An engine whose programs run their loops so, as on a GPU with the switch."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loops, "form_on", lambda _: form)
        engine = lm.Engine(
            path,
            lm.Backend.CPU(),
            max_batch=slots,
            enable_speculative_decoding="drafter" in path.name,
            cache_dir=":nocache",
        )
        model = engine.new_runner(slots, has_stops=False)._model
        model._computation(model._weights)  # it asks once
    return engine


@pytest.fixture(scope="module", params=BUNDLES)
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("lm") / f"{request.param}.litertlm"
    path.write_bytes(BUNDLES[request.param]())
    return path


@pytest.fixture(scope="module", params=[1, 2], ids=["one", "two"])
def both(path: Path, request: pytest.FixtureRequest) -> Iterator[list[lm.Engine]]:
    engines = [opened(path, form, request.param) for form in ("unrolled", "host")]
    yield engines
    for engine in engines:
        engine.close()


def loops_of(engine: lm.Engine) -> int:
    runner = engine.new_runner(1, has_stops=False)
    spec = ProgramSpecs(runner.graph, 1, ()).decode(Variant(), runner.graph.capacity)
    program, _ = runner._model.program(spec)
    return program.executable.as_text().count(" while(")


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 3, 6, 8, 45])
def test_answers_are_the_same(both: list[lm.Engine], count: int) -> None:
    """Limits that four does not divide, and more than a run of steps."""
    found, want = (
        [(c.token_ids, c.finish_reason) for c in e.generate(PROMPTS, max_output_tokens=count)]
        for e in both
    )
    assert found == want
    assert any(len(ids) == count for ids, _ in want) or count == 45


@pytest.mark.slow
def test_drawn_answers_are_the_same(both: list[lm.Engine]) -> None:
    sampler = lm.SamplerConfig(top_k=20, top_p=0.95, temperature=1.5, seed=7)
    found, want = (
        [c.token_ids for c in e.generate(PROMPTS, sampler_config=sampler, max_output_tokens=11)]
        for e in both
    )
    assert found == want


@pytest.mark.slow
def test_a_sequence_goes_on_after_its_end(both: list[lm.Engine]) -> None:
    """Steps after the end of an answer leave the caches and states as they are."""
    answers, scores = [], []
    for engine in both:
        runner, params = engine.new_runner(1, has_stops=False), engine.text.sampling_params()
        runner.prefill(0, PROMPTS[2])
        answers.append([])
        for count in (2, 5, 1, 3):
            runner.begin(0, Request((), count, params))
            while not runner.is_resting(0):
                answers[-1] += runner.decode(7)[0].tokens
        scores.append(runner.score(0, [5, 6, 7]))
    assert answers[0] == answers[1]
    assert len(answers[0]) == 11
    assert scores[0] == pytest.approx(scores[1], abs=1e-5)


@pytest.mark.parametrize(("form", "count"), [("host", 1), ("graph", 1), ("unrolled", 2)])
def test_forms_of_programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str, count: int
) -> None:
    """Only a decode loop may be in a graph, and only unrolled ones come in two parts."""
    path, asked = tmp_path / "model.litertlm", dict[str, Any]()
    path.write_bytes(language_bundle())
    compile_it = aot.compile_function

    def listen(function: Any, *arguments: Any, **more: Any) -> Any:
        asked[function.__name__] = more["has_loop_graphs"]
        return compile_it(function, *arguments, **more)

    monkeypatch.setattr(aot, "compile_function", listen)
    with opened(path, form, 1) as engine:
        assert loops_of(engine) == count
    assert asked == {"decode_decode": form == "graph"}
