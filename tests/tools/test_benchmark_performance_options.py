"""`jaxdelegate benchmark_performance_options` on the command line."""

import csv
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from jaxdelegate.tools.main import main

TOOL = "benchmark_performance_options"


@pytest.mark.slow
def test_the_matrix_of_the_cpu(
    network_path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "m.json"
    flags = (
        "--perf_options_list=cpu",
        "--threads=1",
        "--jax_compute_dtypes=float32",
        "--num_runs=2",
    )
    short = ("--min_secs=0", "--warmup_min_secs=0", "--seed=3")
    table = tmp_path / "m.csv"
    files = (f"--result_json={target}", f"--result_csv={table}")
    assert main([TOOL, f"--graph={network_path}", *flags, *short, *files]) == 0
    lines = capsys.readouterr().out.splitlines()
    at = next(i for i, line in enumerate(lines) if "Summary of All Runs" in line)
    names = [line.split(": ")[0].strip() for line in lines[at + 1 :]]
    assert sorted(names) == [f"cpu w/ 1 threads ({k})" for k in ("jax-fp32", "litert", "xnnpack")]
    records = json.loads(target.read_text())
    assert [r["configuration"]["name"] for r in records] == names
    medians = [r["result"]["inference_ms"]["median"] for r in records]
    assert medians == sorted(medians)
    assert all(r["result"]["misc_metrics"]["num_runs"] == 2 for r in records)
    assert all(r["result"]["seed"] == 3 for r in records)
    rows = list(csv.DictReader(table.read_text().splitlines()))
    assert [row["configuration"] for row in rows] == names
    assert [float(row["median_ms"]) for row in rows] == medians


@pytest.mark.slow
def test_none_runs_the_flags_as_they_are(
    network_path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("--perf_options_list=none", "--num_runs=2", "--min_secs=0", "--warmup_min_secs=0")
    assert main([TOOL, f"--graph={network_path}", *flags, "--jax_device_index=77"]) == 1
    assert "as given:  failed! jaxdelegate: device_index: 77" in capsys.readouterr().out


@pytest.mark.slow
def test_batch_sizes(network_path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--perf_options_list=none", "--num_runs=2", "--min_secs=0", "--warmup_min_secs=0")
    more = ("--batch_sizes=2,1", f"--result_json={tmp_path / 'r.json'}")
    assert main([TOOL, f"--graph={network_path}", *flags, *more]) == 0
    records = json.loads((tmp_path / "r.json").read_text())
    assert {r["result"]["inputs"][0]["shape"][0] for r in records} == {1, 2}
    assert "as given, batch 2: count=2" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--graph={graph}", "--perf_options_list=nnapi"], "expected some of all, cpu, gpu, tpu"),
        (["--graph={graph}", "--threads=0"], "threads: expected positive integers"),
        (
            ["--graph={graph}", "--jax_compute_dtypes=fp8"],
            "jax_compute_dtypes: expected some of float32",
        ),
        (
            ["--graph={graph}", "--jax_compute_dtype=float16"],
            "several values, those of --jax_compute_dtypes",
        ),
        (["--graph={graph}", "--num_threads=2"], "several values, those of --threads"),
        (["--graph={graph}", "--batch_sizes=1,x"], "batch_sizes: expected positive integers"),
        (["--graph={graph}", "--batch_sizes=1", "--batch_size=2"], "give one of them"),
        (["--graph={graph}", "--num_runs=-1"], "num_runs: must be at least 0"),
        (["--graph={graph}", "--result_json={graph}/m.json"], "m.json: no such folder"),
        (["--graph=/nowhere.tflite"], "graph: /nowhere.tflite: no such file"),
        ([], "--graph is required"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_1(
    flags: list[str], message: str, network_path: str, refused: Callable[..., str]
) -> None:
    assert message in refused(TOOL, *(flag.format(graph=network_path) for flag in flags))
