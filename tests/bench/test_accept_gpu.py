"""The acceptance run on a CPU, and its report of stored lines."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.children import compiling_quickly
from tests.support.language_models import language_bundle, language_model

SCRIPT = Path(__file__).parents[2] / "bench" / "accept_gpu.py"
SPREAD = {"median": 2.0, "p10": 1.0, "p90": 3.0}
MACHINE = {"cpu": "C", "cores": 2, "versions": {"jax": "1"}, "commit": "abc"}


def accept(out: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), f"--out={out}", *arguments]
    return subprocess.run(
        command, env=compiling_quickly(), capture_output=True, text=True, check=False
    )


@pytest.mark.slow
@pytest.mark.litert
def test_a_dry_run_on_a_cpu_measures_and_goes_on(tmp_path: Path) -> None:
    out, bundle = tmp_path / "accept.jsonl", tmp_path / "tiny.litertlm"
    bundle.write_bytes(language_bundle(model=language_model(capacity=512)))
    arguments = ["--platform=cpu", "--networks=small_bert", "--batches=2", "--columns=float32"]
    arguments += ["--rounds=3", "--select=masked_attention and float32", "--jobs=1"]
    arguments += ["--clients=1,3", f"--bundle={bundle}", "--noswitches"]
    done = accept(out, *arguments)
    assert done.returncode == 0, done.stderr
    tests, served, line = (json.loads(text) for text in out.read_text().splitlines())
    assert tests["tests"] > 0 == tests["failed"]
    assert (served["wrong"], served["slots"]) == ({"jaxdelegate": 0}, 3)
    assert {"clients_1", "clients_3"} <= served.keys()
    assert line["options"] == {"platform": "cpu"}
    assert {place.split()[0] for place in line["devices"].values()} == {"cpu"}
    assert {"litert_xnnpack", "jaxdelegate", "jaxdelegate_on_device"} <= line["ms"].keys()
    assert "no GPU" in line["absent"]["litert_gpu"]
    assert line["ratio_to_peer"]["host"]["peer"]
    text = out.with_suffix(".md").read_text()
    assert "| small_bert | 2 | float32 | device |" in text
    assert "* tiny.litertlm served, float32: tokens/s (clients): " in text
    assert "| litert_gpu | there is no GPU |" in text
    before = out.read_text()
    again = accept(out, *arguments)
    assert again.returncode == 0, again.stderr
    assert out.read_text() == before


@pytest.mark.slow
def test_without_the_device_it_says_what_to_do(tmp_path: Path) -> None:
    done = accept(tmp_path / "accept.jsonl", "--platform=tpu")
    assert done.returncode != 0
    assert "JAX finds no tpu here" in done.stdout + done.stderr
    assert "--platform=cpu" in done.stdout + done.stderr


def compared(**details: Any) -> dict[str, Any]:
    names = ("litert_xnnpack", "jaxdelegate", "jaxdelegate_on_device", "pytorch_on_device")
    return {
        "bench": "compare",
        "graph": "resnet50",
        "batch": 128,
        "device": "cuda:0",
        "device_kind": "NVIDIA L4",
        "gpu": [{"name": "NVIDIA L4", "driver_version": "580", "clocks.current.sm": "300 MHz"}],
        "options": {"platform": "gpu", "compute_dtype": "float16"},
        "ms": dict.fromkeys(names, SPREAD),
        "ratio_to_litert": dict.fromkeys(names, SPREAD),
        "ratio_to_peer": {"device": {"peer": "pytorch_on_device", **SPREAD}},
        "roofline_ms": 1.0,
        "absent": {"onnxruntime": "onnxruntime is not installed"},
        "machine": MACHINE,
        **details,
    }


def test_the_table_says_what_is_compared_with_what() -> None:
    report = pytest.importorskip("accept_report")
    text = report.table([compared()])
    assert "cuda:0: NVIDIA L4 (name NVIDIA L4; driver_version 580)" in text
    host, device = (
        f"| resnet50 | 128 | float16 | {where} | 2.000 |" for where in ("host", "device")
    )
    assert f"{host} none |  |  | 0.5 |  |" in text
    assert f"{device} pytorch | 2.000 | 2.00 (1.00 to 3.00) | 0.5 | 0.50 |" in text
    assert "| onnxruntime | onnxruntime is not installed | resnet50, batch 128, float16 |" in text


def test_what_speaks_against_a_machine() -> None:
    failures = pytest.importorskip("accept_report").failures
    tests = {"bench": "accept_tests", "tests": 3, "failed": 1, "skipped": 0, "failures": ["test_x"]}
    assert failures([{**tests, "failed": 0}, compared()]) == []
    assert failures([tests]) == ["tests/gpu: 2 passed, 1 failed (test_x), 0 skipped"]
    assert failures([{"bench": "accept_tests", "not_run": "no pytest"}])
    served = {"bench": "serve_language_models", "refused": "status 500"}
    said = "the server of a language model did not run: status 500"
    assert failures([{**tests, "failed": 0}, served]) == [said]
    rates = {"bundle": "b", "compute_dtype": "float16", "clients_16": {"jaxdelegate": SPREAD}}
    served = {"bench": "serve_language_models", "wrong": {"jaxdelegate": 1}, **rates}
    said = "b served, float16: tokens/s (clients): 2 (16); 1 wrong texts"
    assert failures([served]) == [said]
    assert failures([{**served, "wrong": {"jaxdelegate": 0}}]) == []
    wrong = compared(absent={"jaxdelegate_on_device": "disagrees: error 1"})
    assert failures([wrong]) == [
        "resnet50, batch 128, float16: jaxdelegate_on_device is absent: disagrees: error 1"
    ]
    refused = {k: v for k, v in compared(refused="exit code 1").items() if k != "ms"}
    assert failures([refused]) == ["resnet50, batch 128, float16: exit code 1"]


def test_the_plot_has_a_panel_for_each_batch_and_dtype(tmp_path: Path) -> None:
    report = pytest.importorskip("accept_report")
    pytest.importorskip("matplotlib")
    path = tmp_path / "plot.png"
    assert report.plot([compared(), compared(batch=1)], path)
    assert path.read_bytes()[:4] == b"\x89PNG"
    assert not report.plot([], path)


def test_peaks_go_by_the_whole_name() -> None:
    peaks, absent = pytest.importorskip("device_peaks"), pytest.importorskip("harness").AbsentError
    import numpy as np

    half = peaks.datasheet_peaks("NVIDIA H100 80GB HBM3", np.dtype(np.float16))
    assert (half.flops, [*half.bandwidths.values()]) == (989.4e12, [3350e9])
    assert peaks.datasheet_peaks("Tesla T4", np.dtype(np.float32)).flops == 8.1e12
    for kind in ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "cpu"):
        with pytest.raises(absent, match="no datasheet"):
            peaks.datasheet_peaks(kind, np.dtype(np.float32))


@pytest.mark.slow
def test_threads_do_not_multiply_the_matrix_of_a_gpu(tmp_path: Path) -> None:
    from tests.support.networks import small_classifier

    (tmp_path / "net.tflite").write_bytes(small_classifier())
    run_all = SCRIPT.with_name("run_all.py")
    arguments = [f"--models={tmp_path}", f"--out={tmp_path / 'out'}", "--dry_run", "--batches=1"]
    arguments += ["--columns=float32", "--threads=1,2"]
    for platform, count in (("cpu", ["1", "2"]), ("gpu", ["2"])):
        command = [sys.executable, str(run_all), *arguments, f"--platform={platform}"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert [line.split()[-1] for line in done.stdout.splitlines()] == count
