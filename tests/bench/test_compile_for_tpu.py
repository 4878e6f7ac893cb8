"""Programs for an absent TPU, with libtpu."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "bench" / "compile_for_tpu.py"
HAS_LIBTPU = importlib.util.find_spec("libtpu") is not None
needs_libtpu = pytest.mark.skipif(not HAS_LIBTPU, reason="libtpu is not installed")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), "--graph=classification_int8.tflite", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def records(*arguments: str) -> list[dict[str, Any]]:
    done = run(*arguments)
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
    for line in records("--compute_dtype=bfloat16,float32", "--batch=1,4"):
        assert line["compiled_for"].endswith("which was not there")
        assert line["products"] >= line["convolutions"] > 0
        assert line["host_calls"] == []
