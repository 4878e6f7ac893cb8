"""Measuring algorithms: which are chosen, and what is stored."""

import json
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

import jaxdelegate as jd
from jaxdelegate.cache import sources
from jaxdelegate.cache.choices import ChoiceStore
from jaxdelegate.cache.directory import PrivateDirectory
from jaxdelegate.cache.maintenance import foreign_files, prune
from jaxdelegate.costs import Cost
from jaxdelegate.lowering.partition import lower_partition
from jaxdelegate.model.records import read_model
from jaxdelegate.op_lowering.convolution import algorithms as convolution_algorithms
from jaxdelegate.op_lowering.convolution import candidates
from jaxdelegate.op_lowering.convolution import rule as convolution
from jaxdelegate.op_lowering.options import (
    Conv2DOptions,
    Padding,
    Pool2DOptions,
)
from jaxdelegate.op_lowering.rule import LoweringContext
from jaxdelegate.passes.propagation import subgraph_specs
from jaxdelegate.quant.params import Quantization
from jaxdelegate.report.tuning import Choice
from jaxdelegate.testing import ModelBuilder
from jaxdelegate.testing.running import random_inputs, run_once
from jaxdelegate.tuning import measure as tuning
from jaxdelegate.tuning.selector import Tuner
from jaxdelegate.xla import aot
from tests.support.quantized import scaled

SAME = Padding.SAME

pytestmark = pytest.mark.usefixtures("no_native_kernels", "compiled_once")


def network(size: int = 12, layers: int = 4) -> bytes:
    """Up to four convolutions, two of them equal, and a pool."""
    rng = np.random.default_rng(0)
    builder = ModelBuilder()
    x = builder.input((1, size, size, 4), np.float32, "x")
    for i, (w, depth) in enumerate([(3, 4), (3, 6), (3, 6), (1, 6)][:layers]):
        filters = builder.constant(rng.normal(size=(6, w, w, depth)).astype(np.float32), f"w{i}")
        bias = builder.constant(rng.normal(size=6).astype(np.float32), f"b{i}")
        y = builder.tensor((1, size, size, 6))
        builder.operator("CONV_2D", [x, filters, bias], [y], Conv2DOptions(SAME, 1, 1), version=3)
        x = y
    y = builder.tensor((1, size // 2, size // 2, 6))
    builder.operator("MAX_POOL_2D", [x], [y], Pool2DOptions(SAME, 2, 2, 2, 2))
    builder.outputs(y)
    return builder.build()


ONE = network(layers=1)


class FakeTimer:
    """Runs every algorithm once and returns given times, by name."""

    def __init__(self, **seconds: float) -> None:
        self.seconds = seconds
        self.asked: list[tuple[str, ...]] = []

    def __call__(self, runs: Mapping[str, Callable[[], Any]], default: str) -> tuning.Samples:
        assert default in runs
        self.asked.append(tuple(runs))
        for run in runs.values():
            run()
        return {name: [self.seconds.get(name, 1.0)] * 5 for name in runs}


@pytest.fixture
def timer(monkeypatch: pytest.MonkeyPatch) -> FakeTimer:
    fake = FakeTimer(tap_sum=0.5, reduce_window=0.25)
    monkeypatch.setattr(tuning, "interleaved", fake)
    return fake


def tuned(
    content: bytes, **options: Any
) -> tuple[jd.JaxDelegate, list[np.ndarray], jd.Interpreter]:
    delegate = jd.JaxDelegate(inference_preference="sustained_speed", platform="cpu", **options)
    return delegate, *run(content, delegate)


def run(content: bytes, *delegates: jd.JaxDelegate) -> tuple[list[np.ndarray], jd.Interpreter]:
    interpreter = jd.Interpreter(model_content=content, experimental_delegates=list(delegates))
    interpreter.allocate_tensors()
    return run_once(interpreter, random_inputs(interpreter.get_input_details())), interpreter


def algorithms_by_operator(delegate: jd.JaxDelegate) -> dict[str, str]:
    choices = delegate.tuner.report().choices
    return {key.partition(" ->")[0]: choice.algorithm for key, choice in choices.items()}


CONV_4 = "CONV_2D float32[1,12,12,4], float32[6,3,3,4] constant, float32[6] constant"
CONV_6 = "CONV_2D float32[1,12,12,6], float32[6,3,3,6] constant, float32[6] constant"
CONV_1 = "CONV_2D float32[1,12,12,6], float32[6,1,1,6] constant, float32[6] constant"
POOL = "MAX_POOL_2D float32[1,12,12,6]"


def test_end_to_end(timer: FakeTimer) -> None:
    content = network()
    delegate, got, _ = tuned(content)
    want, _ = run(content)
    np.testing.assert_allclose(got[0], want[0], rtol=1e-4, atol=1e-4)
    assert algorithms_by_operator(delegate) == {
        CONV_4: "tap_sum",
        CONV_6: "tap_sum",
        CONV_1: "tap_sum",
        POOL: "reduce_window",
    }
    # Each kind once, although one occurs twice; the winner is measured again.
    assert len(timer.asked) == 2 * 4
    text = str(delegate.tuner.report())
    assert text.endswith(
        "4 of 4 measured kinds of operators run another algorithm than the default "
        f"on {delegate.device}."
    )
    assert CONV_4 in " ".join(text.split())


def test_the_program_runs_what_was_chosen(
    timer: FakeTimer, monkeypatch: pytest.MonkeyPatch
) -> None:
    timer.seconds = {"xla": 0.5}
    monkeypatch.setattr(aot, "compile_partition", spy := Spy(aot.compile_partition))
    tuned(network())
    (whole,) = (p for p in spy.partitions if len(p.operators) == 5)
    algorithms = [w.layout[1] for w in whole.preparations if w.position == 1]
    assert algorithms == ["xla"] * 4


class Spy:
    def __init__(self, inner: Callable[..., Any]) -> None:
        self.inner = inner
        self.partitions: list[Any] = []

    def __call__(self, partition: Any, *rest: Any) -> Any:
        self.partitions.append(partition)
        return self.inner(partition, *rest)


def test_no_other_preference_measures(timer: FakeTimer) -> None:
    for preference in ("fast_single_answer", "balanced"):
        run(network(), jd.JaxDelegate(inference_preference=preference, platform="cpu"))
    assert timer.asked == []


def test_an_algorithm_that_wins_once_by_chance_is_not_chosen(
    timer: FakeTimer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lucky_once(runs: Mapping[str, Any], default: str) -> tuning.Samples:
        samples = timer(runs, default)
        return samples if len(runs) > 2 else {name: [1.0] * 5 for name in runs}

    monkeypatch.setattr(tuning, "interleaved", lucky_once)
    delegate, _, _ = tuned(ONE)
    assert {choice.algorithm == choice.default for choice in reported(delegate)} == {True}
    assert [len(names) for names in timer.asked] == [
        4,
        2,
        3,
        2,
    ]  # xla, tiles, taps, patches; then pools


def reported(delegate: jd.JaxDelegate) -> list[Choice]:
    return list(delegate.tuner.report().choices.values())


def wrong(a: Any, c: Any, x: Any, w: Any) -> Any:
    return convolution_algorithms.tap_sum(a, c, x, w) * 1.001


def broken(*_: object) -> Any:
    raise ValueError("no such luck\nand more")


@pytest.mark.parametrize(
    ("run_algorithm", "reason"), [(wrong, "output 0: "), (broken, "no such luck")]
)
def test_excluded_algorithms(
    timer: FakeTimer,
    monkeypatch: pytest.MonkeyPatch,
    run_algorithm: Callable[..., Any],
    reason: str,
) -> None:
    name, algorithms = run_algorithm.__name__, candidates.float_algorithms

    def with_one_more(platform: str, c: Any, **more: bool) -> dict[str, Any]:
        return {
            **algorithms(platform, c, **more),
            name: (convolution_algorithms.by_tap, run_algorithm),
        }

    monkeypatch.setattr(convolution, "float_algorithms", with_one_more)
    timer.seconds = {"tap_sum": 0.5, name: 0.1}
    content = ONE
    delegate, got, _ = tuned(content)
    convolutions = [c for c in reported(delegate) if "tap_sum" in c.seconds]
    assert len(convolutions) == 1
    for choice in convolutions:
        assert choice.algorithm == "tap_sum"
        assert choice.refused[name].startswith(reason)
        assert "\n" not in choice.refused[name]
    np.testing.assert_allclose(got[0], run(content)[0][0], rtol=1e-4, atol=1e-4)


def test_algorithms_that_need_much_memory(
    timer: FakeTimer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "_EXTRA_MEMORY", -1 << 40)
    delegate, _, _ = tuned(ONE)
    assert len(reported(delegate)) == 2
    for choice in reported(delegate):
        assert list(choice.seconds) == [choice.default]
        assert {r.split(" ")[0] for r in choice.refused.values()} == {"it"}
        assert all(r.endswith("MiB of temporaries") for r in choice.refused.values())
    assert {names for names in timer.asked if len(names) > 1} == set()


def test_an_operator_that_does_not_run_alone_keeps_its_default(
    timer: FakeTimer, monkeypatch: pytest.MonkeyPatch
) -> None:
    compile_partition = aot.compile_partition

    def only_whole(partition: Any, *rest: Any) -> Any:
        if len(partition.operators) <= 3:
            raise RuntimeError("RESOURCE_EXHAUSTED")
        return compile_partition(partition, *rest)

    monkeypatch.setattr(aot, "compile_partition", only_whole)
    delegate, got, _ = tuned(network())
    assert reported(delegate) == []
    np.testing.assert_array_equal(got[0], run(network(), jd.JaxDelegate(platform="cpu"))[0][0])
    assert timer.asked == []


@pytest.mark.slow
def test_the_budget_goes_to_the_most_expensive(timer: FakeTimer) -> None:
    delegate = jd.JaxDelegate(platform="cpu")
    partition, context = lowered_of(network(), delegate)
    clock = SimpleNamespace(now=0.0)

    def slow(runs: Mapping[str, Any], default: str) -> tuning.Samples:
        clock.now += 10.0
        return timer(runs, default)

    def read() -> float:
        return clock.now

    timer.seconds = {}
    measured = [
        list(tuning.tune(partition, context, delegate.device, budget=b, clock=read, timer=slow))
        for b in (0.0, 15.0, 1000.0)
    ]
    order = [c.key for c in tuning.candidates(partition, context)]
    assert measured == [order[:0], order[:2], order]
    assert [key.partition(" ->")[0] for key in order] == [CONV_6, CONV_4, CONV_1, POOL]


def test_partitions_share_the_budget() -> None:
    delegate = jd.JaxDelegate(platform="cpu")
    clock, budgets = SimpleNamespace(now=0.0), list[float]()

    def measure(*_: Any, budget: float) -> dict[str, Choice]:
        budgets.append(budget)
        clock.now += 20.0
        return {}

    tuner = Tuner("sustained_speed", delegate.device, None, measure, 50.0, lambda: clock.now)
    for _ in range(3):
        assert tuner.algorithms(*lowered_of(network(), delegate)) == {}
    assert budgets == [50.0, 30.0, 10.0]


def lowered_of(content: bytes, delegate: jd.JaxDelegate) -> tuple[Any, LoweringContext]:
    """A model as one partition, lowered with default algorithms."""
    subgraph = read_model(content).subgraphs[0]
    specs = dict(enumerate(subgraph_specs(subgraph, None, [subgraph])))
    context = delegate.lowering_context
    operators, ends = subgraph.operators, (subgraph.inputs, subgraph.outputs)
    return lower_partition(operators, specs, *ends, context), context


def test_small_operators_are_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    delegate = jd.JaxDelegate(platform="cpu")
    partition, context = lowered_of(network(), delegate)
    everything = tuning.candidates(partition, context)
    assert [c.count for c in everything] == [2, 1, 1, 1]
    # 2 * 12 * 12 * 6 * 3 * 3 * 6 operations; 4 bytes for each of 2 * 864 + 324 + 6 values.
    assert everything[0].cost == Cost(93312, 4 * (864 + 324 + 6), 4 * 864)
    assert everything[0].products == 54
    monkeypatch.setattr(tuning, "_MIN_WORK", 0.3)
    assert tuning.candidates(partition, context) == everything[:1]


# ---- what is kept


@pytest.mark.slow
@pytest.mark.usefixtures("compiled_uncached")
def test_choices_are_kept_for_other_programs(timer: FakeTimer, tmp_path: Path) -> None:
    where = {"serialization_dir": str(tmp_path / "cache")}
    first, want, _ = tuned(ONE, **where)
    asked = list(timer.asked)
    (file,) = (tmp_path / "cache").glob("*.choices")
    assert file.stat().st_mode & 0o777 == 0o600
    # The same program is loaded; one with more of these operators is not stored.
    second, got, _ = tuned(ONE, **where)
    np.testing.assert_array_equal(got[0], want[0])
    assert timer.asked == asked
    assert second.tuner.report() == first.tuner.report()
    third, _, _ = tuned(ONE, model_token="another", **where)
    assert timer.asked == asked
    assert third.programs is not None
    assert third.programs.statistics.stored == 1
    # Another geometry is measured, and stored next to the first.
    fourth, _, _ = tuned(network(10, 1), **where)
    assert timer.asked == asked * 2
    assert len(reported(fourth)) == 4
    assert len(json.loads(file.read_text())["choices"]) == 4


@pytest.mark.slow
def test_within_a_process_nothing_is_measured_twice(timer: FakeTimer) -> None:
    delegate, _, interpreter = tuned(ONE)
    once = len(timer.asked)
    interpreter.resize_tensor_input(0, (2, 12, 12, 4))
    interpreter.allocate_tensors()
    assert len(timer.asked) == 2 * once  # another batch, another geometry
    run(ONE, delegate)
    assert len(timer.asked) == 2 * once


@pytest.mark.slow
@pytest.mark.usefixtures("compiled_uncached")
def test_balanced_takes_over_what_is_stored(timer: FakeTimer, tmp_path: Path) -> None:
    where = {"serialization_dir": str(tmp_path / "cache"), "platform": "cpu"}
    statistics = []

    def balanced() -> dict[str, str]:
        delegate = jd.JaxDelegate(inference_preference="balanced", **where)
        run(ONE, delegate)
        assert delegate.programs is not None
        statistics.append(delegate.programs.statistics.stored)
        return algorithms_by_operator(delegate)

    assert balanced() == {}
    tuned(ONE, serialization_dir=where["serialization_dir"])
    asked = len(timer.asked)
    assert (
        balanced()
        == balanced()
        == {
            CONV_4: "tap_sum",
            POOL: "reduce_window",
        }
    )
    assert len(timer.asked) == asked
    assert statistics == [1, 1, 0]  # compiled again once there are choices, then loaded


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "Expecting value"),
        (b"[]", "list indices"),
        (b'{"format": 99, "choices": {}}', "the format is 99, expected 2"),
        (
            b'{"format": 2, "choices": {"k": '
            b'{"algorithm": "a", "default": "b", "seconds": {"a": 1}, "refused": {}}}}',
            "'a' or 'b' was not measured",
        ),
        (b'{"format": 2, "choices": {"k": 3}}', "not subscriptable"),
    ],
)
def test_damaged_choices_are_ignored(tmp_path: Path, content: bytes, why: str) -> None:
    directory = PrivateDirectory.open(tmp_path / "cache")
    store = ChoiceStore(directory, jax.devices("cpu")[0])
    choices = {"k": Choice("a", "b", {"b": 2.0, "a": 1.0}, {"c": "broken"})}
    store.add(choices)
    assert store.read() == choices
    (name,) = directory.names()
    (directory.path / name).write_bytes(content)
    with pytest.warns(jd.CacheWarning, match=f"stored autotuning results are not used: .*{why}"):
        assert store.read() == {}
    with pytest.warns(jd.CacheWarning, match="results are not used"):
        store.add(choices)
    assert store.read() == choices


def test_choices_of_sources_that_changed_are_not_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = PrivateDirectory.open(tmp_path / "cache")
    sources.source_parts(of_subgraphs=False)
    monkeypatch.setattr(sources, "_LOADED", 0.0)
    store = ChoiceStore(directory, jax.devices("cpu")[0])
    with pytest.warns(jd.CacheWarning, match="results are not stored: .* has changed since"):
        store.add({"k": Choice("a", "a", {"a": 1.0}, {})})
    assert list(directory.names()) == []


@pytest.mark.usefixtures("timer")
def test_a_full_disk_costs_time_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(PrivateDirectory, "write", full)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always", jd.CacheWarning)
        delegate, _, _ = tuned(ONE, serialization_dir=str(tmp_path / "cache"))
    assert str(warned[0].message).startswith(
        "autotuning results are not stored: [Errno 28] No space left"
    )
    assert len(reported(delegate)) == 2


@pytest.mark.usefixtures("compiled_uncached")
def test_choices_belong_to_the_cache_directory(timer: FakeTimer, tmp_path: Path) -> None:
    directory = tmp_path / "cache"
    tuned(ONE, serialization_dir=str(directory))
    assert foreign_files(directory) == []
    removed = {Path(name).suffix for name in prune(directory, 0).removed}
    assert removed == {".program", ".support", ".start"}
    assert [p.suffix for p in directory.iterdir()] == [".choices"]
    assert timer.asked


# ---- other arithmetic


@pytest.mark.usefixtures("timer")
@pytest.mark.slow
@pytest.mark.parametrize("options", [{"compute_dtype": "bfloat16"}, {"rewrites": "none"}])
def test_other_options(options: dict[str, Any]) -> None:
    content = network()
    delegate, got, _ = tuned(content, **options)
    assert {c.algorithm for c in reported(delegate)} >= {"tap_sum", "reduce_window"}
    want, _ = run(content, jd.JaxDelegate(platform="cpu"))
    largest = np.abs(want[0]).max()
    np.testing.assert_allclose(got[0], want[0], atol=0.02 * float(largest))


def quantized_convolution() -> bytes:
    def scale(value: float, zero: int = 0) -> Quantization:
        return scaled(value, zero)

    builder = ModelBuilder()
    x = builder.input((2, 9, 8, 5), np.int8, "x", quantization=scale(0.02, 5))
    filters = np.random.default_rng(1).integers(-127, 127, (7, 3, 3, 5), np.int8, endpoint=True)
    w = builder.constant(filters, "w", quantization=scale(0.01))
    y = builder.tensor((2, 9, 8, 7), np.int8, quantization=scale(0.1, -3))
    builder.operator("CONV_2D", [x, w, -1], [y], Conv2DOptions(SAME, 1, 1), version=3)
    builder.outputs(y)
    return builder.build()


@pytest.mark.usefixtures("timer")
@pytest.mark.parametrize("quant_mode", ["float_view", "integer"])
def test_quantized_operators(quant_mode: str) -> None:
    content = quantized_convolution()
    delegate, got, _ = tuned(content, quant_mode=quant_mode)
    (choice,) = reported(delegate)
    assert choice.algorithm == "tap_sum"
    assert choice.refused == {}
    want, _ = run(content)
    assert np.abs(got[0].astype(int) - want[0].astype(int)).max() <= (quant_mode == "float_view")


@pytest.mark.slow
def test_measured_for_real() -> None:
    """Whatever is fastest on this machine, the results are the same."""
    content = network(16)
    delegate, got, _ = tuned(content)
    assert len(reported(delegate)) == 4
    assert all(seconds > 0 for c in reported(delegate) for seconds in c.seconds.values())
    np.testing.assert_allclose(got[0], run(content)[0][0], rtol=1e-4, atol=1e-4)
