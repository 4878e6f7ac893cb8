"""The decode loop of a language model for an absent H100: what is in CUDA graphs."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from jaxdelegate.options import GPU_LOOPS

HAS_PLUGIN = any(importlib.util.find_spec(f"jax_cuda{n}_plugin") for n in (12, 13))
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not HAS_PLUGIN, reason="jax's CUDA plugin is not installed"),
]
SCRIPT = Path(__file__).parents[2] / "bench" / "compile_language_models.py"


def captured(folder: Path, slots: int, form: str, *flags: str) -> dict[str, Any]:
    """What graphs have of the program, as `JAXDELEGATE_GPU_LOOPS` shapes it."""
    support = pytest.importorskip("tests.support.language_models")
    path = folder / "model.litertlm"
    path.write_bytes(support.language_bundle())
    environment = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"} | {GPU_LOOPS: form}
    command = [sys.executable, str(SCRIPT), str(path), "--device=gpu", f"--slots={slots}", *flags]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("slots", [1, 4])
def test_a_run_is_one_graph(tmp_path: Path, slots: int) -> None:
    plain, graph = (captured(tmp_path, slots, form) for form in ("host", "graph"))
    assert (graph["captured"], graph["graphs"]) == (graph["launches"], 1)
    assert graph["launches"] <= 1.05 * plain["launches"]
    assert plain["captured"] < plain["launches"]  # conditions and what is before them


@pytest.mark.parametrize("slots", [1, 8])
def test_all_steps_of_prompts_are_one_graph(tmp_path: Path, slots: int) -> None:
    found = captured(tmp_path, slots, "graph", "--prompt=100")
    assert (found["programs"], found["prompts"]) == (1, slots)
    assert (found["captured"], found["graphs"]) == (found["launches"], 1)
    assert found["copies"] == 0


def test_unrolled_steps_are_one_graph(tmp_path: Path) -> None:
    """Four steps, and one: a graph of each body, which the host launches."""
    plain, unrolled = (captured(tmp_path, 1, form) for form in ("host", "unrolled"))
    left, of_plain = (found["launches"] - found["captured"] for found in (unrolled, plain))
    assert left <= of_plain + 2  # the condition of the other loop, and what is between both
    assert unrolled["graphs"] <= plain["graphs"] + 1
    assert unrolled["captured"] > 2 * plain["captured"]
