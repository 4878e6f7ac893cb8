"""Programs for an absent GPU, with jax's CUDA plugin."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from jaxdelegate.demo.mobilenet import mobilenet_v1
from tests.support.audio_models import sound_bundle
from tests.support.decoder_families import Family, decoder
from tests.support.language_models import language_bundle
from tests.support.vision_models import transformer_bundle

SCRIPT = Path(__file__).parents[2] / "bench" / "compile_for_gpu.py"
HAS_PLUGIN = any(importlib.util.find_spec(f"jax_cuda{n}_plugin") for n in (12, 13))
needs_plugin = pytest.mark.skipif(not HAS_PLUGIN, reason="jax's CUDA plugin is not installed")


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    graph = folder / "mobilenet.tflite"
    graph.write_bytes(mobilenet_v1(size=64, width=0.5, classes=10))
    command = [sys.executable, str(SCRIPT), f"--graph={graph}", *arguments]
    environment = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def records(folder: Path, *arguments: str) -> list[dict[str, Any]]:
    done = run(folder, *arguments)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.skipif(HAS_PLUGIN, reason="jax's CUDA plugin is installed")
def test_without_the_plugin_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    absent_device = importlib.import_module("absent_device")
    monkeypatch.setattr(os, "environ", dict(os.environ))  # where it writes XLA's flags
    target = tmp_path / "target.pbtxt"
    target.touch()
    with pytest.raises(absent_device.AbsentError, match="jax's CUDA plugin"):
        absent_device.gpu(target, tmp_path)


@needs_plugin
def test_a_network_as_few_kernels(tmp_path: Path) -> None:
    """Each of 28 layers is one kernel with its epilogue; no filter changes its layout."""
    folder = tmp_path / "programs" / "of_h100"
    (short,) = records(tmp_path, f"--hlo={folder}")
    assert [path.read_text().startswith("HloModule") for path in folder.iterdir()] == [True]
    assert short["compiled_for"].endswith("which was not there")
    assert short["kernels"] <= 28 + 5
    assert "layout" not in short["kinds"]
    assert short["captured"] == short["launches"] >= short["kernels"]
    assert short["graphs"] == 1
    assert (short["host_calls"], short["wide_operations"]) == ([], 0)
    assert short["moved_mb"] < 3 * short["least_mb"]


@needs_plugin
def test_dtypes_and_batches(tmp_path: Path) -> None:
    lines = records(tmp_path, "--batch=1,4", "--compute_dtype=float32,bfloat16")
    assert [(r["batch"], r["compute_dtype"]) for r in lines] == [
        (1, "float32"), (1, "bfloat16"), (4, "float32"), (4, "bfloat16"),
    ]  # fmt: skip
    float32, bfloat16 = lines[:2]
    assert bfloat16["moved_mb"] < 0.8 * float32["moved_mb"]
    assert lines[2]["gflop"] == pytest.approx(4 * float32["gflop"])


@needs_plugin
def test_the_cases_of_earlier_results(tmp_path: Path) -> None:
    earlier = tmp_path / "earlier.jsonl"
    h100 = "NVIDIA H100 80GB HBM3, which was not there"
    how = {"batch": 2, "compute_dtype": "float32", "quant_mode": "integer", "compiled_for": h100}
    cases = [
        {"graph": graph, **how}
        for graph in ("mobilenet.tflite", "not_there.tflite", "classification_int8.tflite")
    ]
    cases.append({**cases[0], "compiled_for": "another GPU"})
    earlier.write_text("".join(json.dumps(case) + "\n" for case in cases))
    lines = records(tmp_path, f"--again={earlier}", f"--models={tmp_path}")
    assert [{name: line[name] for name in cases[0]} for line in lines] == [cases[0], cases[2]]


@needs_plugin
def test_attention_of_a_decode_step_is_one_kernel(tmp_path: Path) -> None:
    """It reads caches once and changes them in place."""
    family = Family(norms=True, size=128, vocabulary=512)
    path, script = tmp_path / "model.litertlm", SCRIPT.with_name("compile_language_models.py")
    path.write_bytes(language_bundle(model=decoder(family, capacity=256)))
    command = [sys.executable, str(script), str(path), "--device=gpu", "--slots=1,4,64"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["slots"] for line in lines] == [1, 4, 64]
    for line in lines:
        assert line["kinds"]["own kernel"] == family.layers
        assert line["kernels"] <= 22 + 9 * family.layers
        assert line["launches"] - line["captured"] <= 4  # the loop and its condition
        assert line["copies"] == 0
        assert line["step_mb"] < 1.3 * (line["weights_mb"] + line["caches_mb"])


@needs_plugin
def test_encoders_compute_in_float16(tmp_path: Path) -> None:
    """All of it on the device, in graphs, and with few bytes beyond weights and activations."""
    paths = [tmp_path / name for name in ("sees.litertlm", "hears.litertlm")]
    for path, content in zip(paths, (transformer_bundle(), sound_bundle()), strict=True):
        path.write_bytes(content)
    script = SCRIPT.with_name("compile_encoders.py")
    command = [sys.executable, str(script), *map(str, paths), "--device=gpu", "--rows=1,8"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    images, eight_images, *sounds = (json.loads(line) for line in done.stdout.splitlines())
    assert [line["encoder"] for line in (images, eight_images, *sounds)] == [
        "images", "images", "sounds", "sounds",
    ]  # fmt: skip
    for line in (images, eight_images, *sounds):
        assert [*line["products"]] == ["f16"]
        assert line["host_calls"] == []
        assert line["captured"] == line["launches"]
    assert images["ratio"] < 0.9  # attention is one kernel
    assert eight_images["ratio"] < 1.25
    assert eight_images["moved_mb"] < 10 * images["moved_mb"]
