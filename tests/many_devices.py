"""For tests of several devices: one process with eight CPU devices, or two processes.

A script decorates its cases with `case` and ends with `run_cases()`. Its test gets their names from
`names_of(script)` and their outcomes from `outcomes_of(script)`.
"""

import json
import os
import re
import socket
import subprocess
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from jaxdelegate.testing import ModelBuilder

ROOT = Path(__file__).parents[1]
PYTHONPATH = os.pathsep.join((str(ROOT), str(ROOT / "examples")))
ENVIRONMENT = os.environ | {"PYTHONPATH": PYTHONPATH, "JAX_PLATFORMS": "cpu"}
_DEVICES = "--xla_force_host_platform_device_count"
_SECONDS = 120  # for each of two processes
_CASES: dict[str, Callable[[], None]] = {}


# ---- in a script


def case(function: Callable[[], None]) -> Callable[[], None]:
    _CASES[function.__name__] = function
    return function


def run_cases() -> None:
    """Print as JSON, for each case, its traceback, or "" if it passed."""
    warnings.simplefilter("error")
    print(json.dumps({name: _outcome(function) for name, function in _CASES.items()}))


def _outcome(function: Callable[[], None]) -> str:
    try:
        function()
    except (Exception, pytest.fail.Exception):
        return traceback.format_exc()
    return ""


def collectives(program: str) -> set[str]:
    """The kinds of communication in a compiled program's text."""
    names = r"\b(all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)(?:-start)?\("
    return set(re.findall(names, program))


def two_layers(first: int = 1, outputs: int = 8, hidden: int = 256, inputs: int = 16) -> bytes:
    """relu(x w1^T + b1) w2^T, [first, inputs] to [first, outputs]: all weights are float32."""
    builder, rng = ModelBuilder(), np.random.default_rng(0)
    x = builder.input((first, inputs), name="x")
    w1, b1, w2 = (
        builder.constant(rng.normal(0, 0.1, shape).astype(np.float32), name)
        for name, shape in (("w1", (hidden, inputs)), ("b1", (hidden,)), ("w2", (outputs, hidden)))
    )
    sums, positive, y = (builder.tensor((first, n)) for n in (hidden, hidden, outputs))
    builder.operator("FULLY_CONNECTED", [x, w1, b1], [sums])
    builder.operator("RELU", [sums], [positive])
    builder.operator("FULLY_CONNECTED", [positive, w2, None], [y])
    builder.outputs(y)
    return builder.build()


# ---- in a test


def names_of(script: Path) -> list[str]:
    return re.findall(r"^@case\ndef (\w+)", script.read_text(), re.MULTILINE)


def outcomes_of(script: Path, *arguments: str, folder: Path | None = None) -> dict[str, str]:
    """The outcome of each case, on eight devices of one process that runs in `folder`."""
    run = subprocess.run(
        [sys.executable, str(script), *arguments],
        cwd=folder,
        env=with_devices(8),
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    found: dict[str, str] = json.loads(run.stdout.splitlines()[-1])
    return found


def with_devices(count: int) -> dict[str, str]:
    flags = f"{ENVIRONMENT.get('XLA_FLAGS', '')} {_DEVICES}={count}"
    return ENVIRONMENT | {"XLA_FLAGS": flags.strip()}


def free_address() -> str:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        return f"localhost:{free.getsockname()[1]}"


def printed_by_two(command: Sequence[str], folder: Path, devices: int | None = None) -> list[str]:
    """The output of two processes that run `command` with their number as the last argument.

    Args:
        command: a Python script and its first arguments.
        folder: their working directory.
        devices: for each process; None: the script sets them.
    """
    running = [
        subprocess.Popen(
            [sys.executable, *command, str(process)],
            cwd=folder,
            env=ENVIRONMENT if devices is None else with_devices(devices),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for process in range(2)
    ]
    printed = []
    try:
        for one in running:
            text, errors = one.communicate(timeout=_SECONDS)
            assert one.returncode == 0, errors
            printed.append(text)
    finally:
        for one in running:
            one.kill()
    return printed
