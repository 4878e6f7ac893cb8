"""Damaged models: each runs or is refused, in bounded time and memory."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.models.tones import tone_detector
from tests.fuzz.field_edits import extremes
from tests.fuzz.mutations import mutated
from tests.fuzz.run_mutations import Corpus, Tally, run
from tests.fuzz.workers import BEFORE, TIME, Worker
from tests.support.attention_networks import bert_small
from tests.support.detectors import color_detector
from tests.support.networks import broadcast, mobilenet_v2, small_classifier

MODELS = Path(__file__).parents[2].parent / "shared" / "models"
LARGEST = 300_000
DELEGATE_EVERY = 20


def built() -> Corpus:
    """Small models of many kinds of operators."""
    models = {
        "attention": bert_small(length=8, layers=1, hidden=16, heads=2, vocabulary=20),
        "audio": tone_detector(samples=2000),
        "broadcast": broadcast(8),
        "classifier": small_classifier(),
        "detector": color_detector(),
        "quantized": mobilenet_v2(size=32, width=0.25, classes=5, quantized=True),
    }
    return Corpus(list(models), list(models.values()), seed=0)


@pytest.fixture(scope="module")
def workers() -> Iterator[dict[str, Worker]]:
    sides = {side: Worker(side) for side in ("reference", "delegate")}
    yield sides
    for worker in sides.values():
        worker.close()


def test_damage_is_the_same_each_time() -> None:
    content = broadcast(8)
    damaged = [mutated(content, seed, content) for seed in range(100)]
    assert damaged == [mutated(content, seed, content) for seed in range(100)]
    assert len({file for file, _ in damaged}) > 80
    assert len(list(extremes(color_detector()))) > 10


def test_models_are_damaged_by_number() -> None:
    first, second = built(), built()
    assert [first.damaged(n) for n in (0, 7, 7)] == [second.damaged(n) for n in (0, 7, 7)]


def check(corpus: Corpus, count: int, workers: dict[str, Worker]) -> None:
    tally = Tally()
    findings = list(run(corpus, range(count), workers, DELEGATE_EVERY, tally))
    assert [{**finding, "content": ...} for finding in findings] == []
    counts = tally.counts["reference"]
    assert counts.total() == count
    assert counts["ran"] > count / 10
    assert counts["refused: ModelError"] > count / 10
    assert counts["refused: InterpreterError"] > count / 100
    assert counts[f"{BEFORE}: {TIME}"] < count / 50
    assert tally.counts["delegate"]["ran"] > count / DELEGATE_EVERY / 10


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_damaged_model_runs_or_is_refused(workers: dict[str, Worker]) -> None:
    check(built(), 250, workers)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_damaged_real_model_runs_or_is_refused(workers: dict[str, Worker]) -> None:
    if not MODELS.is_dir():
        pytest.skip("no models in ../shared/models")
    check(Corpus.of_folder(MODELS, seed=0, largest=LARGEST), 200, workers)
