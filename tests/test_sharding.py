"""Models on several devices, as docs/sharding.md does it: in one process and in two."""

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "sharding.md"
CASES = Path(__file__).parent / "sharding_cases.py"
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory, classifier: bytes) -> dict[str, str]:
    """A traceback, or "" if it passed, of each case; one process runs all, with eight devices."""
    folder = tmp_path_factory.mktemp("sharding")
    (folder / "model.tflite").write_bytes(classifier)
    command = [sys.executable, str(CASES), str(PAGE)]
    eight = ENVIRONMENT | {"XLA_FLAGS": "--xla_force_host_platform_device_count=8"}
    run = subprocess.run(
        command, cwd=folder, env=eight, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    found: dict[str, str] = json.loads(run.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("name", re.findall(r"^@case\ndef (\w+)", CASES.read_text(), re.MULTILINE))
def test_eight_devices(name: str, outcomes: dict[str, str]) -> None:
    assert not outcomes[name], outcomes[name]


def port() -> int:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        number: int = free.getsockname()[1]
        return number


def test_two_processes(tmp_path: Path, classifier: bytes) -> None:
    (tmp_path / "model.tflite").write_bytes(classifier)
    (program,) = (
        block
        for block in re.findall(
            r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL
        )
        if "distributed" in block
    )
    assert "localhost:12345" in program
    check = """
import jaxdelegate.testing
assert (jax.process_count(), jax.device_count(), jax.local_device_count()) == (2, 4, 2)
assert scores.shape == (16, 32)
jaxdelegate.testing.assert_close([own_scores], apply(params, own), accumulated=768)
total = jax.jit(lambda params, images: apply(params, images)[0].sum())(params, images)
print("the sum over both:", float(total))  # of probabilities: each image's is one
"""
    text = program.replace("localhost:12345", f"localhost:{port()}") + check
    (tmp_path / "program.py").write_text(text)
    two = ENVIRONMENT | {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    running = [
        subprocess.Popen(
            [sys.executable, "program.py", str(process)],
            cwd=tmp_path,
            env=two,
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
            assert float(printed.split(":")[-1]) == pytest.approx(16, abs=1e-4)
    finally:
        for one in running:
            one.kill()
