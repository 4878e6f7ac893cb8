"""The engines that the demo compares, their cache, and the comparison."""

import threading
import time

import numpy as np
import pytest

from jaxdelegate.errors import ModelError
from sample_tasks.tasks import TASKS
from tests.support.networks import broadcast, small_classifier
from web_demo import comparison, engines
from web_demo.comparison import compare, largest_difference
from web_demo.engines import ENGINES, REFERENCE, Engine, Engines, Opened

X = np.random.default_rng(0).uniform(-1, 1, (1, 16, 16, 3)).astype(np.float32)


@pytest.fixture(scope="module")
def content() -> bytes:
    return small_classifier()


@pytest.mark.parametrize("name", list(ENGINES))
def test_each_engine_runs(content: bytes, name: str) -> None:
    opened = ENGINES[name].open(content)
    run = opened.run([X])
    assert [array.shape for array in run.outputs] == [(1, 32)]
    assert run.outputs[0].sum() == pytest.approx(1, abs=0.02)
    assert run.milliseconds > 0
    assert opened.ready_milliseconds > 0
    notes, _, table = opened.report.partition("\n\n")
    if ENGINES[name].options is None:
        assert not table
    else:
        assert "All 8 operations will run on XLA:CPU, in 1 partition." in notes
        assert table.startswith("#  operator")
        assert len(table.splitlines()) == 1 + 8


def test_an_unused_dtype_is_reported(content: bytes) -> None:
    notes = ENGINES["XLA float16"].open(content).report
    assert "compute_dtype='float16' has no effect: this CPU computes in float32" in notes
    assert "compute_dtype" not in ENGINES["XLA float32"].open(content).report


def test_engines_agree_as_far_as_their_arithmetic_goes(content: bytes) -> None:
    rows = list(compare(Engines(), list(ENGINES.values()), lambda _: content, [X]))
    found = {row.engine.name: row.difference for row in rows}
    assert list(found) == list(ENGINES)
    assert found["numpy reference"] == 0
    assert 0 < found["XLA float32"] < 1e-5
    assert 0 < found["stock LiteRT"] < 1e-5
    assert 0 < found["XLA float16"] < 1e-2
    assert 0 < found["XLA bfloat16"] < 1e-1


def test_exact_integers_run_the_int8_network() -> None:
    task = TASKS["classification"]
    asked = []

    def network(is_quantized: bool) -> bytes:
        asked.append(is_quantized)
        return task.network(quantized=is_quantized)

    chosen = [ENGINES["XLA exact integers"]]
    (row,) = compare(Engines(), chosen, network, [task.inputs(task.picture(0))])
    assert asked == [True, True]  # the engine, and the reference on the same network
    assert row.error is None
    assert row.difference is not None
    assert row.difference < 1e-5
    assert "QUANTIZE" in row.report


def test_without_the_reference_nothing_is_compared(content: bytes) -> None:
    kept = Engines()
    (row,) = compare(kept, [ENGINES["stock LiteRT"]], lambda _: content, [X], is_compared=False)
    assert row.difference is None
    assert len(kept) == 1


def test_an_impossible_engine_is_a_row_with_its_error(content: bytes) -> None:
    impossible = Engine("impossible", {"compute_dtype": "float12"})
    rows = list(compare(Engines(), [impossible, REFERENCE], lambda _: content, [X]))
    assert "compute_dtype" in (rows[0].error or "")
    assert rows[1].error is None


@pytest.mark.parametrize("name", list(ENGINES))
def test_a_damaged_file_is_an_error_of_every_engine(name: str) -> None:
    with pytest.raises(ModelError):
        ENGINES[name].open(b"no model at all")


def test_large_tensors_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "MAX_TENSOR_BYTES", 1000)
    with pytest.raises(RuntimeError, match="takes 10000 bytes; max_tensor_bytes is 1000"):
        REFERENCE.open(broadcast(50))


def test_a_network_is_opened_once_by_many_threads(
    content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    count, opening = 0, Engine.open

    def counted(self: Engine, content: bytes) -> Opened:
        nonlocal count
        count += 1
        time.sleep(0.05)  # the others arrive
        return opening(self, content)

    monkeypatch.setattr(Engine, "open", counted)
    kept, outputs = Engines(), []

    def use(seed: int) -> None:
        x = np.full_like(X, seed / 8)
        outputs.append((seed, kept.open(content, REFERENCE).run([x]).outputs[0]))

    threads = [threading.Thread(target=use, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert count == 1
    alone = REFERENCE.open(content)
    assert sorted(seed for seed, _ in outputs) == list(range(8))
    for seed, got in outputs:  # no thread got the result of another one
        np.testing.assert_array_equal(got, alone.run([np.full_like(X, seed / 8)]).outputs[0])


def test_the_last_used_ones_are_kept() -> None:
    first, second, third = (small_classifier(seed=seed) for seed in range(3))
    kept = Engines(size=2)
    opened = kept.open(first, REFERENCE)
    kept.open(second, REFERENCE)
    assert kept.open(first, REFERENCE) is opened  # and is the last used one now
    kept.open(third, REFERENCE)
    assert len(kept) == 2
    assert kept.open(first, REFERENCE) is opened


def test_failed_openings_are_tried_again(content: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Engines()
    with monkeypatch.context() as patch:
        patch.setattr(engines, "MAX_TENSOR_BYTES", 10)
        with pytest.raises(RuntimeError, match="max_tensor_bytes"):
            kept.open(content, REFERENCE)
    assert kept.open(content, REFERENCE).run([X]).outputs[0].shape == (1, 32)


def test_the_latency_is_the_median_without_the_first(
    content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = REFERENCE.open(content)
    times = iter([0.4, 0.003, 0.001, 0.002])
    monkeypatch.setattr(opened, "_timed", lambda: (opened._interpreter.invoke(), next(times))[1])
    assert opened.run([X], repeats=3).milliseconds == pytest.approx(2)
    monkeypatch.setattr(opened, "_timed", lambda: (opened._interpreter.invoke(), 60.0)[1])
    assert opened.run([X], repeats=3).milliseconds == 60e3  # too slow to do again


@pytest.mark.parametrize(
    ("got", "want", "difference"),
    [
        ([1.0, 2.0], [1.0, 4.0], 0.5),
        ([1.0, np.nan], [1.0, np.nan], 0.0),
        ([1.0, np.inf], [1.0, np.inf], 0.0),
        ([0.5, 0.0], [0.0, 0.0], 0.5),
        ([], [], 0.0),
        ([1.0], [1.0, 2.0], np.inf),
        ([1 + 1j], [1 + 3j], 2 / abs(1 + 3j)),
        (np.array([b"a"], object), np.array([b"a"], object), 0.0),
        (np.array([b"a"], object), np.array([b"b"], object), np.inf),
        (np.array([255], np.uint8), np.array([0], np.uint8), 255.0),
    ],
)
def test_largest_difference(got: object, want: object, difference: float) -> None:
    assert largest_difference([np.array(got)], [np.array(want)]) == pytest.approx(difference)


def test_a_nan_on_one_side_is_a_difference() -> None:
    assert np.isnan(comparison.largest_difference([np.array([np.nan])], [np.array([1.0])]))


def test_rows_after_the_count_of_detections_are_ignored() -> None:
    boxes = np.arange(12, dtype=np.float32).reshape(1, 3, 4)
    want = [boxes, np.ones((1, 3)), np.ones((1, 3)), np.array([2.0])]
    got = [array.copy() for array in want]
    for array in got[:3]:
        array[:, 2] = 1e9  # whatever the memory held
    for order in ((0, 1, 2, 3), (2, 3, 1, 0)):  # of boxes, classes, scores and count
        positions = order.index(0), order.index(1), order.index(2), order.index(3)
        g, w = ([arrays[i].copy() for i in order] for arrays in (got, want))
        assert largest_difference(g, w, positions) == 0
        g[positions[0]][0, 1, 0] += 0.7
        assert largest_difference(g, w, positions) == pytest.approx(0.1)  # the largest is 7
        g[positions[3]][0] = 3
        assert largest_difference(g, w, positions) == np.inf


def test_litert_and_the_reference_detect_the_same() -> None:
    task = TASKS["detection"]
    chosen = [REFERENCE, ENGINES["stock LiteRT"], ENGINES["XLA float32"]]
    for seed in range(3):
        inputs = [task.inputs(task.picture(seed))]
        for row in compare(Engines(), chosen, lambda _: task.network(), inputs):
            assert row.difference is not None
            assert row.difference < 1e-5
