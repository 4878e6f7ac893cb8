"""Layers that see only the last tokens, with caches where later tokens overwrite earlier ones."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from jaxdelegate import lm
from jaxdelegate.errors import ModelError
from jaxdelegate.lm.request import Request
from tests.support.language_models import (
    drafter,
    embedders,
    language_bundle,
    most_likely,
    until_stop,
)
from tests.support.windows import executor_metadata, windowed_model

COUNT, CAPACITY, RING, WINDOW = 12, 64, 16, 8
PROMPTS = [[7, 8, 9], [*range(20, 62)], [100] * 17]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("lm") / "model.litertlm"
    path.write_bytes(language_bundle(model=windowed_model(), sections=[executor_metadata()]))
    return path


@pytest.fixture(scope="module")
def engine(path: Path) -> Iterator[lm.Engine]:
    with lm.Engine(path, lm.Backend.CPU(), max_batch=2) as engine:
        yield engine


def seen(position: int) -> dict[str, Iterable[int]]:
    window = range(max(position - WINDOW + 1, 0), position + 1)
    return {"mask": range(position + 1), "local_mask": [place % RING for place in window]}


def greedy(ids: list[int], count: int = COUNT) -> list[int]:
    return most_likely(windowed_model(), ids, count, seen)


def test_sequences_in_slots(engine: lm.Engine) -> None:
    found = engine.generate(PROMPTS, max_output_tokens=COUNT)
    assert [completion.token_ids for completion in found] == [
        until_stop(greedy(prompt)) for prompt in PROMPTS
    ]


def test_a_sequence_goes_back_within_reach(engine: lm.Engine) -> None:
    """The ring has more entries than the window; beyond these all tokens are read again."""
    runner, long = engine.new_runner(1, has_stops=False), PROMPTS[1]
    assert engine._model.graph.max_rewind == RING - WINDOW
    for length, known in ((len(long) - 5, len(long) - 6), (len(long) - 12, 0)):
        assert runner.prefill(0, long) == 0
        ids = [*long[: length - 1], 99]
        assert runner.prefill(0, ids) == known
        runner.begin(0, Request((), COUNT, engine.text.sampling_params()))
        assert runner.decode()[0].tokens == greedy(ids)


@pytest.mark.slow
def test_rejected_tokens_in_a_ring(tmp_path: Path) -> None:
    """The drafter is one of another model: of what it proposes nothing stays in the caches."""
    path, model = tmp_path / "model.litertlm", windowed_model(verify=4)
    others = {"tf_lite_embedder": embedders()[0], "tf_lite_mtp_drafter": drafter(capacity=CAPACITY)}
    content = language_bundle(model=model, others=others, sections=[executor_metadata()])
    path.write_bytes(content)
    with lm.Engine(path, max_batch=1, enable_speculative_decoding=True) as engine:
        runner = engine.new_runner(1, has_stops=False)
        for prompt in PROMPTS[:2]:
            runner.prefill(0, prompt)
            runner.begin(0, Request((), 20, engine.text.sampling_params()))
            while not runner.is_resting(0):
                runner.decode()
            assert runner.ids(0)[len(prompt) :] == greedy(prompt, 20)


def test_the_window_must_be_declared(tmp_path: Path) -> None:
    path = tmp_path / "model.litertlm"
    for sections, got in (([], "None"), ([executor_metadata(window=17)], "17")):
        path.write_bytes(language_bundle(model=windowed_model(), sections=sections))
        said = f"'local_mask' has 16 places: expected a sliding_window_size of 1 to 16.*got {got}"
        with pytest.raises(ModelError, match=said):
            lm.Engine(path)
