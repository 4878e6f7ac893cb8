"""The scripts run as a user types them."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxdelegate.demo.mobilenet import mobilenet_v1
from jaxdelegate.model.records import read_model
from jaxdelegate.op_lowering.options import FullyConnectedOptions
from jaxdelegate.testing import ModelBuilder
from tests.support.children import compiling_quickly
from tests.support.language_models import language_bundle, language_model
from tests.support.networks import small_classifier
from tests.support.quantized import scaled

pytestmark = pytest.mark.litert
BENCH = Path(__file__).parents[2] / "bench"


def script(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BENCH / name), *arguments]
    # operators.py runs large products for the peaks of the machine.
    variables = os.environ if name == "operators.py" else compiling_quickly()
    environment = {**variables, "JAX_PLATFORMS": "cpu", "NPROC": "1"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def fixed_batch() -> bytes:
    builder = ModelBuilder()
    x = builder.input((1, 4), np.float32)
    y = builder.tensor((4,))
    builder.operator("RESHAPE", [x, builder.constant(np.array([4], np.int32))], [y])
    builder.outputs(y)
    return builder.build()


def float16_weights() -> bytes:
    builder = ModelBuilder()
    x = builder.input((1, 4), np.float32)
    w, y = builder.tensor((4,)), builder.tensor((1, 4))
    builder.operator("DEQUANTIZE", [builder.constant(np.ones(4, np.float16))], [w])
    builder.operator("ADD", [x, w], [y])
    builder.outputs(y)
    return builder.build()


def quantized_layer() -> bytes:
    """One FULLY_CONNECTED in int8, with a scale for each of its four outputs."""
    rng = np.random.default_rng(0)
    builder, scales = ModelBuilder(), np.float32([0.01, 0.02, 0.01, 0.005])
    x = builder.input((1, 16), np.int8, "x", quantization=scaled(0.05, 3))
    w = builder.constant(
        rng.integers(-127, 128, (4, 16)).astype(np.int8), "w", quantization=scaled(scales)
    )
    sums = scaled(scales * np.float32(0.05))
    b = builder.constant(rng.integers(-99, 99, 4).astype(np.int32), "b", quantization=sums)
    y = builder.tensor((1, 4), np.int8, "y", quantization=scaled(0.2, -2))
    builder.operator("FULLY_CONNECTED", [x, w, b], [y], FullyConnectedOptions(), version=5)
    builder.outputs(y)
    return builder.build()


@pytest.fixture
def models(tmp_path: Path) -> Path:
    folder = tmp_path / "models"
    folder.mkdir()
    (folder / "small.tflite").write_bytes(small_classifier())
    (folder / "small_fp16w.tflite").write_bytes(float16_weights())
    (folder / "fixed.tflite").write_bytes(fixed_batch())
    return folder


@pytest.mark.slow
def test_the_matrix_follows_from_the_files(models: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    known = {"bench": "compare", "graph": "small", "batch": 1, "threads": 1}
    out.write_text(json.dumps({**known, "options": {"platform": "cpu"}, "refused": "so"}) + "\n")
    arguments = [f"--models={models}", f"--out={out}", "--dry_run", "--threads=1"]
    ended = script("run_all.py", *arguments, "--batches=1")
    assert ended.returncode == 0, ended.stderr
    runs = [line.split()[1:] for line in ended.stdout.splitlines()]
    loss = "--precision_loss=True"
    assert [(run[0], loss in run) for run in runs] == [
        ("fixed", False),
        ("fixed", True),
        ("small", True),
        ("small_fp16w", False),
    ]
    again = script("run_all.py", *arguments, "--batches=1", "--again", "--columns=float32")
    assert [line.split()[1] for line in again.stdout.splitlines()] == ["fixed", "small"]


@pytest.mark.slow
def test_an_unknown_column_is_refused(models: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    ended = script("run_all.py", f"--models={models}", f"--out={out}", "--columns=float64")
    assert ended.returncode == 1
    assert "float64" in ended.stdout + ended.stderr


@pytest.mark.slow
def test_a_matrix_goes_on_after_a_refusal(models: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    arguments = [f"--models={models}", f"--out={out}", "--threads=1", "--batches=2"]
    ended = script("run_all.py", *arguments, "--columns=float32", "--rounds=3")
    assert ended.returncode == 0, ended.stderr
    fixed, small = records(out)
    assert "refused" in fixed
    assert fixed["graph"] == "fixed"
    assert small["kind"] == "float32"
    assert small["ratio_to_litert"]["jaxdelegate"]["median"] > 0
    assert small["error"]["jaxdelegate"] < 1e-4
    assert script("run_all.py", *arguments, "--columns=float32").stdout == ""


@pytest.mark.slow
def test_a_process_that_takes_too_long_leaves_a_line(models: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    arguments = [f"--models={models}", f"--out={out}", "--threads=1", "--batches=1"]
    ended = script("run_all.py", *arguments, "--only=small", "--columns=float32", "--timeout=1")
    assert ended.returncode == 0, ended.stderr
    assert [r["refused"] for r in records(out)] == ["no result after 1 s"]


@pytest.mark.slow
def test_files_of_from_jax_are_compared(models: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    for only in ("lstm", "small"):
        arguments = [f"--models={models}", f"--only={only}", "--rounds=3", f"--out={out}"]
        ended = script("from_jax.py", *arguments)
        assert ended.returncode == 0, ended.stderr
    network, *round_trips = records(out)
    assert network["network"] == "lstm"
    assert 0 < network["error"]["from_jax"] < 1e-5
    assert [r["model"] for r in round_trips] == ["small", "small_fp16w"]
    for found in round_trips:
        assert found["error"] == {"round_trip": 0, "original": 0}
        assert found["operators"]["round_trip"] == found["operators"]["original"]
        assert found["ratio"]["round_trip"]["median"] > 0


@pytest.mark.exhaustive
def test_every_operator_by_itself(tmp_path: Path) -> None:
    graph, out = tmp_path / "small.tflite", tmp_path / "out.jsonl"
    graph.write_bytes(small_classifier())
    ended = script("operators.py", f"--graph={graph}", f"--out={out}", "--rounds=3")
    assert ended.returncode == 0, ended.stderr
    names = {op.name for op in read_model(graph).subgraphs[0].operators}
    assert {r["operator"] for r in records(out)} == names
    assert all(r["reached"]["jaxdelegate"]["of_roofline"] > 0 for r in records(out))
    assert all(name in ended.stdout for name in names)


@pytest.mark.slow
def test_what_invoke_costs(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    sizes = ["--values=4", "--batches=1,8", "--calls=5", "--rounds=3"]
    ended = script("invoke_overhead.py", f"--out={out}", *sizes)
    assert ended.returncode == 0, ended.stderr
    assert [r["bytes"] for r in records(out)] == [16, 128]
    assert {"over_litert", "whole_over_litert"} <= records(out)[0]["us"].keys()


@pytest.mark.slow
def test_cost_by_batch_and_size(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    sizes = ["--batches=2", "--sizes=32", "--width=0.25", "--rounds=3"]
    ended = script("scaling.py", f"--out={out}", *sizes)
    assert ended.returncode == 0, ended.stderr
    assert [(r["batch"], r["size"]) for r in records(out)] == [(2, 224), (1, 32)]


@pytest.mark.exhaustive
def test_cold_loads_are_listed_by_mode(models: Path, tmp_path: Path) -> None:
    (models / "broken.tflite").write_bytes(b"no model")
    out = tmp_path / "cold.jsonl"
    done = script("cold_loads.py", f"--models={models}", f"--out={out}")
    assert done.returncode == 0, done.stderr
    found = {(r["graph"], r["mode"]): r for r in records(out)}
    assert len(found) == 8
    assert all("error" in found["broken.tflite", mode] for mode in ("default", "integer"))
    times = found["small.tflite", "default"]
    assert times["wall"] > times["xla"] > 0 < times["operations"]
    assert times["operations"] == found["small.tflite", "integer"]["operations"]
    assert len(done.stdout.splitlines()) == 1 + 6


@pytest.mark.exhaustive
def test_what_models_can_do_as_functions(tmp_path: Path) -> None:
    (tmp_path / "net.tflite").write_bytes(small_classifier())
    (tmp_path / "fixed.tflite").write_bytes(fixed_batch())
    out = tmp_path / "out.jsonl"
    ran = script("jax_functions.py", f"--models={tmp_path}", f"--out={out}")
    assert ran.returncode == 0, ran.stderr
    rows = {row["model"]: row for row in records(out)}
    net, fixed = rows["net.tflite"], rows["fixed.tflite"]
    assert [net[cell] for cell in ("load", "jit", "vmap", "batch")] == ["ok", "ok", "ok", "native"]
    assert "slope" in net["grad"]
    assert "convolution" in net["tpu"]
    assert fixed["batch"].startswith("vmap: Node number 0 (RESHAPE)")
    assert fixed["cpu"].startswith("ok")


@pytest.mark.slow
def test_gradients_beside_lax(tmp_path: Path) -> None:
    path, out = tmp_path / "net.tflite", tmp_path / "out.jsonl"
    path.write_bytes(mobilenet_v1(size=32, width=0.25, classes=10))
    ran = script("gradients.py", f"--graph={path}", "--rounds=5", f"--out={out}")
    assert ran.returncode == 0, ran.stderr
    (row,) = records(out)
    assert row["differs_by"] < 1e-2
    assert row["ratio"]["median"] > 0


@pytest.mark.slow
def test_fine_tuning_of_a_quantized_network(tmp_path: Path) -> None:
    path, out = tmp_path / "net.tflite", tmp_path / "out.jsonl"
    path.write_bytes(quantized_layer())
    sizes = ["--steps=80", "--batch=8", "--batches=2", "--judged=4", "--rounds=2"]
    ran = script("fine_tuning.py", f"--graph={path}", f"--out={out}", "--rates=0.3", *sizes)
    assert ran.returncode == 0, ran.stderr
    (row,) = records(out)
    assert set(row["sides"]) == {"jaxdelegate", "jaxdelegate_learned"} == set(row["step_ms"])
    for found in row["sides"].values():
        assert (found["integer_apart"], found["reloaded"], found["unchanged"]) == (0, 0, 0)
        assert found["loss"][1] < 0.5 * found["loss"][0]
        assert found["stock_loss"][1] < 0.5 * found["stock_loss"][0]
        assert found["apart"]["largest"] <= 1


@pytest.mark.slow
def test_what_fine_tuning_is_not_measured_for(tmp_path: Path) -> None:
    path, out = tmp_path / "net.tflite", tmp_path / "out.jsonl"
    path.write_bytes(small_classifier())
    ran = script("fine_tuning.py", f"--graph={path}", f"--out={out}")
    assert ran.returncode == 0, ran.stderr
    assert records(out)[0]["reason"] == "the output is not quantized"


@pytest.mark.slow
def test_which_files_can_be_trained(tmp_path: Path) -> None:
    """Without litert-tunner its side reports the reason."""
    (tmp_path / "int8.tflite").write_bytes(quantized_layer())
    (tmp_path / "half.tflite").write_bytes(float16_weights())
    (tmp_path / "none.tflite").write_bytes(fixed_batch())
    lines, out = tmp_path / "lines.jsonl", tmp_path / "out.jsonl"
    places = [f"--models={tmp_path}", f"--lines={lines}", f"--out={out}"]
    ran = script("fine_tuning_coverage.py", *places, "--peer_python=/absent/python")
    assert ran.returncode == 0, ran.stderr
    rows = {row["model"]: row for row in records(lines)}
    assert rows["none.tflite"]["left_out"] == "no constants to train"
    assert rows["int8.tflite"]["jaxdelegate"] == rows["half.tflite"]["jaxdelegate"] == "trained"
    assert "No such file" in rows["int8.tflite"]["litert_tunner"]
    (row,) = records(out)
    assert row["trained"]["int8 activations"]["jaxdelegate"] == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments", [("--nodes=20,40",), ("--nodes=20", "--alternating"), ("--resizes=2",)], ids=str
)
def test_limits(arguments: tuple[str, ...], tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    ended = script("limits.py", *arguments, f"--out={out}")
    assert ended.returncode == 0, ended.stderr
    assert all(r["rss_anon_mb"] for r in records(out))


@pytest.mark.slow
def test_decoders_of_few_bits(tmp_path: Path) -> None:
    """Every engine runs, and none exceeds what it may differ by."""
    out = tmp_path / "out.jsonl"
    sizes = "--layers=1", "--width=64", "--rounds=3", "--weights=int4_block32", "--rows=1"
    done = script("decoders.py", *sizes, f"--out={out}")
    assert done.returncode == 0, done.stderr
    (record,) = records(out)
    engines = {"litert_xnnpack", "jaxdelegate", "prepared"}
    assert {*record["ms"]} == {*record["peak_mb"]} == engines
    assert record["error"]["jaxdelegate"] < 1e-5


@pytest.mark.slow
def test_signatures_with_caches(tmp_path: Path) -> None:
    """Outputs are compared, and caches where a signature has no other."""
    graph, out = tmp_path / "model.tflite", tmp_path / "out.jsonl"
    graph.write_bytes(language_model())
    keys = "--signatures=decode,prefill_8"
    done = script("signature_steps.py", f"--graph={graph}", keys, "--rounds=3", f"--out={out}")
    assert done.returncode == 0, done.stderr
    measured = [(r["signature"], r["filled"]) for r in records(out)]
    assert measured == [(key, filled) for key in ("decode", "prefill_8") for filled in (0, 1)]
    for record in records(out):
        assert {*record["ms"]} == {"litert", "litert_call", "on_device", "jit"}
        assert 0 <= max(record["error"].values()) < 1e-6


@pytest.mark.slow
def test_kv_cache_dtypes(tmp_path: Path) -> None:
    path, out = tmp_path / "model.litertlm", tmp_path / "out.jsonl"
    path.write_bytes(language_bundle())
    flags = "--dtypes=float32,int8_per_token_head", "--tokens=4", f"--out={out}"
    done = script("kv_cache_dtypes.py", str(path), *flags)
    assert done.returncode == 0, done.stderr
    same, short = records(out)
    assert (same["equal"], same["most"]) == (same["prompts"], 0)
    assert 0 < short["mean"] <= short["most"] < 0.1
    assert 3.2 * short["cache_bytes"] == same["cache_bytes"]
