"""Interleaved timing."""

import itertools
import time
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def harness() -> Any:
    return pytest.importorskip("harness")


def test_candidates_take_turns_and_settle_before_they_are_timed(harness: Any) -> None:
    called: list[str] = []
    calls = {"a": lambda: called.append("a"), "b": lambda: called.append("b")}
    times = harness.interleaved(calls, rounds=2, warmup=1, settle=1)
    assert "".join(called) == "ab" + "aabb" * 2
    assert {name: len(own) for name, own in times.items()} == {"a": 2, "b": 2}


def test_only_the_last_call_of_a_turn_is_timed(harness: Any) -> None:
    waits = itertools.cycle((0.05, 0.0))  # the settling call is the slow one
    times = harness.interleaved(
        {"a": lambda: time.sleep(next(waits))}, rounds=3, warmup=0, settle=1
    )
    assert max(times["a"]) < 0.04


def test_no_round_starts_after_the_time_is_up(harness: Any) -> None:
    times = harness.interleaved({"a": lambda: time.sleep(0.01)}, rounds=50, seconds=0.02)
    assert len(times["a"]) == 5


def test_ratios_are_taken_round_by_round(harness: Any) -> None:
    times = {"a": [1.0, 10.0, 1.0], "b": [2.0, 20.0, 4.0]}
    assert harness.ratios(times, "a")["b"] == {"median": 2.0, "p10": 2.0, "p90": 4.0}


def test_what_a_long_message_ends_with(harness: Any) -> None:
    assert harness.last_line(RuntimeError("head\nthe cause\n\n ")) == "the cause"
    assert harness.last_line(KeyError()) == "KeyError"


def test_folders_of_this_machine_are_left_out(harness: Any) -> None:
    error = RuntimeError("no /some/folder/a-b.onnx, 1/2 of it; see https://x.org/y")
    assert harness.last_line(error) == "no a-b.onnx, 1/2 of it; see https://x.org/y"


def test_facts_of_a_gpu_are_those_of_nvidia_smi(
    harness: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert harness.gpu_facts() is None
    row = ", ".join(f"value {i}" for i in range(len(harness._GPU_FACTS)))
    (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\necho '{row}'\necho '{row}'\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    first, second = harness.gpu_facts()
    assert first == second
    assert (first["name"], first["driver_version"]) == ("value 0", "value 1")
