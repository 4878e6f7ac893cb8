"""What bench/gpu_switches.py measures and recommends."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.children import compiling_quickly

SCRIPT = Path(__file__).parents[2] / "bench" / "gpu_switches.py"


@pytest.fixture
def switches() -> Any:
    return pytest.importorskip("gpu_switches")


@pytest.mark.parametrize(
    ("p90", "is_equal", "value"),
    [(0.9, True, "1"), (1.0, True, "0"), (1.2, True, "0"), (0.5, False, "0")],
)
def test_what_is_recommended(switches: Any, p90: float, is_equal: bool, value: str) -> None:
    switch, ratio = switches.SWITCHES["early_copies"], {"median": 0.4, "p10": 0.3, "p90": p90}
    assert switches.recommended(switch, ratio, is_equal=is_equal) == value


@pytest.mark.parametrize("are_equal", [False, True])
def test_both_values_are_made_and_compared(
    switches: Any, monkeypatch: pytest.MonkeyPatch, are_equal: bool
) -> None:
    switch = switches.SWITCHES["loop_unrolled"]
    monkeypatch.setenv(switch.variable, "graph")
    seen = list[str]()

    def make() -> Callable[[], Any]:
        seen.append(os.environ[switch.variable])
        tokens = [1, 2] if are_equal or len(seen) == 1 else [1, 3]
        return lambda: tokens

    found = switches.measured(switch, make, 6)
    assert seen == ["host", "unrolled"]
    assert os.environ[switch.variable] == "graph"
    assert found["equal"] is are_equal
    assert [*found["ms"]] == seen
    assert found["recommended"] == "host" or are_equal


def test_results_that_may_round_are_compared_with_a_tolerance(switches: Any) -> None:
    for name, is_equal in (("split_products", True), ("early_copies", False)):
        found = iter([np.float32(0.5), np.float32(0.500001)])

        def make(values: Any = found) -> Callable[[], Any]:
            value = next(values)
            return lambda: value

        assert switches.measured(switches.SWITCHES[name], make, 3)["equal"] is is_equal


def run(out: Path, *arguments: str) -> list[dict[str, Any]]:
    command = [sys.executable, str(SCRIPT), f"--out={out}", "--rounds=3", *arguments]
    subprocess.run(command, env=compiling_quickly(), check=True, capture_output=True)
    return [json.loads(line) for line in out.read_text().splitlines()]


@pytest.mark.slow
def test_on_a_cpu_nothing_changes(tmp_path: Path) -> None:
    pytest.importorskip("tests.support.language_models")
    switches = "loop_unrolled,early_copies"
    lines = run(tmp_path / "out.jsonl", "--platform=cpu", f"--switches={switches}")
    assert [line["switch"] for line in lines] == switches.split(",")
    assert all(line["equal"] for line in lines)


@pytest.mark.slow
def test_a_process_that_fails_leaves_the_switch_off(tmp_path: Path) -> None:
    (line,) = run(tmp_path / "out.jsonl", "--platform=tpu", "--switches=early_copies")
    assert line["refused"].startswith("exit status 1: ")
    assert "platform: 'tpu' is not there" in line["refused"]
    assert line["recommended"] == "0"
    report = pytest.importorskip("accept_report")
    text = report.table([line])
    assert "* early_copies did not run (exit status 1: " in text
    assert "recommended: JAXDELEGATE_EARLY_COPIES=0" in text


def test_the_report_has_times_and_advice() -> None:
    report = pytest.importorskip("accept_report")
    spread = {"median": 2.0, "p10": 1.0, "p90": 3.0}
    line = {
        "bench": "gpu_switches",
        "switch": "loop_graph",
        "variable": "JAXDELEGATE_GPU_LOOPS",
        "ms": {"host": spread, "graph": {**spread, "median": 1.0}},
        "equal": True,
        "recommended": "graph",
    }
    said = "* loop_graph: 2.000 ms without, 1.000 with it, equal results; recommended: "
    assert f"{said}JAXDELEGATE_GPU_LOOPS=graph" in report.table([line])
    assert report.failures([line]) == []
