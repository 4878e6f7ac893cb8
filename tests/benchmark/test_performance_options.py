"""Performance options: configurations and their ranking."""

import csv
import functools
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from jaxdelegate.benchmark import performance_options, results
from jaxdelegate.benchmark.options import BenchmarkOptions, parse_counts, parse_names
from jaxdelegate.benchmark.performance_options import Configuration, Outcome, configurations
from jaxdelegate.benchmark.run import benchmark
from jaxdelegate.compile import precision_policy
from jaxdelegate.errors import InterpreterError, OptionError
from tests.support.networks import small_classifier


@pytest.fixture
def has_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision_policy, "cpu_features", lambda: frozenset({"avx512_bf16"}))


def test_dtypes_of_one_program_are_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision_policy, "cpu_features", lambda: frozenset({"avx2"}))
    rows = configurations(["cpu"], ["cpu"], (2,), ("float16", "float32", "bfloat16"))
    assert [row.name for row in rows[2:]] == ["cpu w/ 2 threads (jax-fp16=fp32=bf16)"]
    assert "--jax_compute_dtype=float16" in rows[2].flags


@pytest.mark.usefixtures("has_bfloat16")
def test_the_cpu_with_threads_and_dtypes() -> None:
    rows = configurations(["cpu"], ["cpu"], (1, 4), ("float32", "tensorfloat32", "bfloat16"))
    assert [row.name for row in rows] == [
        f"cpu w/ {n} threads{kind}"
        for n in (1, 4)
        for kind in (" (litert)", " (xnnpack)", " (jax-fp32)", " (jax-bf16)")
    ]
    assert rows[0].flags == ("--use_xnnpack=false", "--num_threads=1")
    assert rows[7].flags == (
        "--use_jax=true", "--jax_platform=cpu", "--jax_compute_dtype=bfloat16", "--num_threads=4",
    )  # fmt: skip


@pytest.mark.usefixtures("has_bfloat16")
def test_all_selects_the_available_platforms() -> None:
    dtypes = ("float32", "tensorfloat32", "float16")
    names = [r.name for r in configurations(["all"], ["cpu", "gpu"], (1,), dtypes)]
    assert names[-3:] == [f"gpu (jax-{dtype})" for dtype in ("fp32", "tf32", "fp16")]
    assert len(names) == 3 + 3  # on the CPU float16 is computed in float32
    assert [r.name for r in configurations(["tpu"], ["tpu"], (1,), dtypes)] == [
        "tpu (jax-fp32)",
        "tpu (jax-fp16)",
    ]
    assert configurations(["none"], ["cpu"], (1,), dtypes) == [Configuration("as given", ())]


def test_a_missing_platform_is_named() -> None:
    with pytest.raises(OptionError, match="'gpu' is not available; JAX has: cpu"):
        configurations(["cpu", "gpu"], ["cpu"], (1,), ("float32",))


def test_batch_sizes_multiply_the_configurations() -> None:
    rows = configurations(["none"], ["cpu"], (1,), ("float32",), (8, 1, 8))
    assert [row.label for row in rows] == ["as given, batch 1", "as given, batch 8"]
    assert {row.name for row in rows} == {"as given"}
    assert rows[1].all_flags == ("--batch_size=8",)


_threads = functools.partial(parse_counts, "threads")
_dtypes = functools.partial(parse_names, "jax_compute_dtypes", known=performance_options.DTYPES)


@pytest.mark.parametrize(
    ("parse", "text", "message"),
    [
        (
            performance_options.parse_options,
            "nnapi",
            "expected some of all, cpu, gpu, tpu, none, got 'nnapi'",
        ),
        (performance_options.parse_options, "", "got ''"),
        (performance_options.parse_options, "none,cpu", "'none' cannot be used together"),
        (_threads, "1,0", "threads: expected positive integers, such as 1,2,4, got '1,0'"),
        (_threads, "two", "got 'two'"),
        (_threads, "1,-2", "got '1,-2'"),
        (_threads, ",", "got ','"),
        (_dtypes, "float8", "expected some of float32, tensorfloat32"),
    ],
)
def test_lists_that_cannot_be_parsed(parse: Any, text: str, message: str) -> None:
    with pytest.raises(OptionError) as error:
        parse(text)
    assert message in str(error.value)


def result(avg_us: float, median: float = 0.25, p95: float = 0.3) -> dict[str, Any]:
    stat = {"count": 2, **dict.fromkeys(("first", "newest", "min", "max", "p5"), 0.5), "p95": p95}
    stat |= {"avg": avg_us / 1e3, "std": 0.001, "median": median, "values": [0.5, 0.5]}
    return {"latency_metrics": {"avg_ms": avg_us / 1e3}, "inference_ms": stat}


def test_runs_are_ranked_and_failures_come_last(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        asked.append(command)
        if "--bad" in command:
            return subprocess.CompletedProcess(command, 1, "", "WARN: x\njaxdelegate: no\n")
        target = next(c for c in command if c.startswith("--result_json="))
        median = 0.9 if "--slow" in command else 0.25
        Path(target.split("=", 1)[1]).write_text(json.dumps(result(250, median)))
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(performance_options.subprocess, "run", run)
    rows = [Configuration(name, (f"--{name}",)) for name in ("slow", "bad", "fast")]
    outcomes = performance_options.run_all(rows, ["--graph=m"], seed=1)
    assert [o.configuration.name for o in outcomes] == ["fast", "slow", "bad"]
    assert all(command[4] == "--graph=m" for command in asked)
    lines = performance_options.summary(outcomes).splitlines()
    assert lines[0] == f"{'=' * 14}Summary of All Runs w/ Different Performance Options{'=' * 14}"
    assert lines[1] == (
        f"{'fast':>26}: count=2 first=500 curr=500 min=500 max=500 avg=250 std=1 p5=500 "
        "median=250 p95=300 rank=1"
    )
    assert lines[2].endswith("rank=2")
    assert lines[3] == f"{'bad':>26}:  failed! jaxdelegate: no"
    assert outcomes[2] == Outcome(rows[1], None, "jaxdelegate: no")


def test_a_line_for_each_configuration() -> None:
    report = benchmark(small_classifier(), BenchmarkOptions(dry_run=True, min_secs=0, seed=1))
    ran = Outcome(Configuration("fast", ()), json.loads(json.dumps(report.as_dict())))
    failed = Outcome(Configuration("bad", ()), None, "jaxdelegate: no")
    good, bad = csv.DictReader(performance_options.to_csv([ran, failed]).splitlines())
    assert (good["configuration"], good["rank"], good["error"]) == ("fast", "1", "")
    alone = next(csv.DictReader(results.to_csv([results.row_of(report.as_dict())]).splitlines()))
    assert alone.items() <= good.items()
    assert (bad["configuration"], bad["rank"], bad["error"]) == ("bad", "", "jaxdelegate: no")


def test_runs_within_noise_share_a_rank() -> None:
    medians = (1.0, 1.1, 1.2, 1.3, 2.0)
    outcomes = [
        Outcome(Configuration(str(m), ()), result(1, m, p95))
        for m, p95 in zip(medians, (1.15, 1.9, 1.25, 1.3, 2.0), strict=True)
    ]
    assert performance_options.ranks(outcomes) == [1, 1, 3, 4, 5]
    assert performance_options.ranks([*outcomes, Outcome(Configuration("bad", ()), None)])[-1] == 6


def test_batch_sizes_are_ranked_by_the_time_of_a_sample() -> None:
    one = Outcome(Configuration("x", (), 1), result(1, median=1.0, p95=1.1))
    eight = Outcome(Configuration("x", (), 8), result(1, median=4.0, p95=4.2))
    assert eight.per_sample("median") == 0.5
    assert performance_options.ranks([eight, one]) == [1, 2]
    assert "x, batch 8: " in performance_options.summary([eight, one])


def test_platforms_are_found_in_another_process() -> None:
    assert "cpu" in performance_options.find_platforms()


def test_jax_that_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(performance_options.sys, "executable", "/bin/false")
    with pytest.raises(InterpreterError, match="jax does not start: no message"):
        performance_options.find_platforms()
