"""Programs for an absent TPU, with libtpu."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.language_models import language_bundle, language_model
from tests.support.vision_models import transformer_bundle

BENCH = Path(__file__).parents[2] / "bench"
NETWORK = "--graph=classification_int8.tflite"
HAS_LIBTPU = importlib.util.find_spec("libtpu") is not None
needs_libtpu = pytest.mark.skipif(not HAS_LIBTPU, reason="libtpu is not installed")


def run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BENCH / script), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def records(script: str, *arguments: str) -> list[dict[str, Any]]:
    done = run(script, *arguments)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.skipif(HAS_LIBTPU, reason="libtpu is installed")
def test_without_libtpu_it_says_so() -> None:
    absent_device = importlib.import_module("absent_device")
    with pytest.raises(absent_device.AbsentError, match="libtpu"):
        absent_device.tpu()


@needs_libtpu
def test_convolutions_are_on_the_matrix_unit() -> None:
    """In floats; XLA:TPU also compiles rounding to quantized grids."""
    cases = NETWORK, "--compute_dtype=bfloat16,float32", "--batch=1,4"
    for line in records("compile_for_tpu.py", *cases):
        assert line["compiled_for"].endswith("which was not there")
        assert line["products"] >= line["convolutions"] > 0
        assert line["host_calls"] == []


@needs_libtpu
def test_a_step_of_a_language_model_reads_caches_once(tmp_path: Path) -> None:
    """And writes the tiles of one place, not the caches."""
    path = tmp_path / "model.litertlm"
    path.write_bytes(language_bundle(model=language_model(hidden=128, capacity=4096)))
    lines = records("compile_language_models.py", str(path), "--device=tpu", "--slots=1,4")
    assert [line["slots"] for line in lines] == [1, 4]
    for line in lines:
        assert line["step_mb"] < line["weights_mb"] + 1.15 * line["caches_mb"]
        assert line["copies"] == 0


@needs_libtpu
def test_encoders_compute_in_bfloat16(tmp_path: Path) -> None:
    path = tmp_path / "sees.litertlm"
    path.write_bytes(transformer_bundle())
    flags = "--device=tpu", "--compute_dtype=bfloat16,float32"
    short, eight, full, _ = records("compile_encoders.py", str(path), *flags)
    assert ([*short["products"]], [*full["products"]]) == (["bf16"], ["f32"])
    assert short["host_calls"] == eight["host_calls"] == []
    assert short["ratio"] < 1
    assert eight["ratio"] < 1
    assert short["moved_mb"] < 0.7 * full["moved_mb"]
