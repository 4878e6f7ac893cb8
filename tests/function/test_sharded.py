"""`Model.sharded`: over eight devices of one process, and over two processes."""

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
CASES = HERE / "sharded_cases.py"
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}


@pytest.fixture(scope="module")
def outcomes() -> dict[str, str]:
    """A traceback, or "" if it passed, of each case; one process runs all, with eight devices."""
    eight = ENVIRONMENT | {"XLA_FLAGS": "--xla_force_host_platform_device_count=8"}
    command = [sys.executable, str(CASES)]
    run = subprocess.run(command, env=eight, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    found: dict[str, str] = json.loads(run.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("name", re.findall(r"^@case\ndef (\w+)", CASES.read_text(), re.MULTILINE))
def test_eight_devices(name: str, outcomes: dict[str, str]) -> None:
    assert not outcomes[name], outcomes[name]


@pytest.mark.slow
def test_two_processes() -> None:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    program = str(HERE / "sharded_process.py")
    running = [
        subprocess.Popen(
            [sys.executable, program, address, str(process)],
            env={k: v for k, v in ENVIRONMENT.items() if k != "XLA_FLAGS"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for process in range(2)
    ]
    try:
        for one in running:
            printed, errors = one.communicate(timeout=120)
            assert one.returncode == 0, errors
            names = re.findall(r"^\w+$", printed, re.MULTILINE)  # gloo prints lines, too
            assert len(names) == 4
    finally:
        for one in running:
            one.kill()
