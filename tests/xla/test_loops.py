"""How a GPU runs loops: the decision, and the trial by another process."""

import subprocess
import sys
import types
from typing import Any

import jax
import numpy as np
import pytest

from jaxdelegate.errors import OptionError
from jaxdelegate.options import GPU_LOOPS
from jaxdelegate.xla import loop_trial, loops
from jaxdelegate.xla.options import compiler_options

NEW = (12, 9)


def device(platform: str, version: str = "PJRT C API\ncuda 12090") -> Any:
    client = types.SimpleNamespace(platform_version=version)
    return types.SimpleNamespace(platform=platform, client=client)


@pytest.mark.parametrize(
    ("wanted", "platform", "cuda", "passes", "form"),
    [
        ("host", "gpu", NEW, True, "host"),
        ("graph", "gpu", NEW, None, "graph"),
        ("unrolled", "gpu", NEW, None, "unrolled"),
        ("tried", "gpu", NEW, True, "graph"),
        ("tried", "gpu", NEW, False, "unrolled"),
        ("tried", "gpu", (13, 0), True, "graph"),
        ("tried", "gpu", (12, 3), True, "graph"),
        ("tried", "gpu", (12, 2), None, "unrolled"),
        ("tried", "gpu", None, None, "unrolled"),  # not CUDA
        ("graph", "cpu", NEW, None, "host"),
        ("tried", "tpu", NEW, None, "host"),
    ],
)
def test_the_decision(wanted: Any, platform: str, cuda: Any, passes: Any, form: str) -> None:
    asked = []

    def trial() -> bool:
        asked.append(passes)
        return bool(passes)

    assert loops.loop_form(wanted, platform, cuda, trial) == form
    assert asked == ([passes] if wanted == "tried" and passes is not None else [])


def test_versions_of_cuda() -> None:
    versions = ("cuda 12030", "PJRT C API\ncuda 13001", "rocm 70151", "PJRT C API\nNVIDIA H100")
    assert [*map(loops.cuda_version, versions)] == [(12, 3), (13, 0), None, None]


def test_the_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loops, "_passes", lambda: False)
    monkeypatch.delenv(GPU_LOOPS, raising=False)
    assert loops.form_on(device("cuda")) == "host"
    monkeypatch.setenv(GPU_LOOPS, "tried")
    assert [loops.form_on(device(p)) for p in ("cuda", "gpu", "cpu")] == ["unrolled"] * 2 + ["host"]
    monkeypatch.setattr(loops, "_passes", lambda: True)
    assert loops.form_on(device("cuda")) == "graph"
    assert loops.form_on(device("rocm", "PJRT C API\nrocm 70151")) == "unrolled"
    monkeypatch.setenv(GPU_LOOPS, "1")
    with pytest.raises(OptionError, match=r"JAXDELEGATE_GPU_LOOPS: expected 'host', .* got '1'"):
        loops.form_on(device("cuda"))


@pytest.fixture
def trial(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(loops, "_passes", loops._passes.__wrapped__)
    return monkeypatch


def test_a_trial_without_a_gpu_fails(trial: Any, caplog: pytest.LogCaptureFixture) -> None:
    trial.setenv("JAX_PLATFORMS", "cpu")
    assert not loops._passes()
    assert "no loops in CUDA graphs: exit status 1" in caplog.text
    assert "gpu" in caplog.text


@pytest.mark.parametrize(
    ("code", "passes", "said"),
    [
        ("pass", True, ""),
        ("import os; os.abort()", False, "status -6"),
        ("while 1: pass", False, "not end"),
    ],
)
def test_a_trial_may_crash_or_hang(
    trial: Any, caplog: pytest.LogCaptureFixture, code: str, passes: bool, said: str
) -> None:
    run = subprocess.run
    trial.setattr(loops, "_TRIAL_SECONDS", 5.0 if passes else 1.0)
    trial.setattr(subprocess, "run", lambda _, **more: run([sys.executable, "-c", code], **more))
    assert loops._passes() is passes
    assert said in caplog.text


def test_what_the_trial_runs_is_right_on_a_cpu() -> None:
    assert loop_trial.wrong_runs(jax.devices("cpu")[0]) == []
    loop_trial.main(["cpu"])


def test_the_trial_finds_wrong_results(monkeypatch: pytest.MonkeyPatch) -> None:
    right, runs = loop_trial.expected, []

    def wrong(cache: np.ndarray, token: Any, weights: Any, limit: int) -> Any:
        runs.append(limit)
        cache, token = right(cache, token, weights, limit)
        return cache, token + (len(runs) == 5)

    monkeypatch.setattr(loop_trial, "expected", wrong)
    with pytest.raises(SystemExit, match=r"runs \[4\] are wrong"):
        loop_trial.main(["cpu"])
    assert len(runs) >= 4  # XLA runs a program, records its graph, updates that, and runs it


def test_graphs_take_in_loops_on_a_gpu_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    for platform in ("cpu", "tpu"):
        plain, looped = (
            compiler_options(platform, exact=True, in_place=True, has_loop_graphs=h)
            for h in (False, True)
        )
        assert plain == looped
    plain, looped = (compiler_options("gpu", exact=True, has_loop_graphs=h) for h in (False, True))
    kinds = "xla_gpu_enable_command_buffer"
    assert looped == {
        **plain,
        kinds: f"{plain[kinds]},WHILE,CONDITIONAL",
        "xla_gpu_graph_min_graph_size": 1,
    }
