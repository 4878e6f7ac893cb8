"""The tools as a user types them, and models to run them on."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from jaxdelegate.demo.mobilenet import mobilenet_v1
from jaxdelegate.tools.main import main


class Printed(NamedTuple):
    """The result of a command line."""

    code: int
    out: str
    err: str


Run = Callable[..., Printed]
Refuse = Callable[..., str]


@pytest.fixture
def run_tool(capsys: pytest.CaptureFixture[str]) -> Run:
    """`jaxdelegate <arguments>`."""

    def run(*arguments: str) -> Printed:
        capsys.readouterr()
        return Printed(main(list(arguments)), *capsys.readouterr())

    return run


@pytest.fixture
def refused(run_tool: Run) -> Refuse:
    """The only line that is printed for a command line that exits with code 1."""

    def run(*arguments: str) -> str:
        code, out, err = run_tool(*arguments)
        lines = err.splitlines()
        assert (code, out) == (1, "")
        assert len(lines) == 1, err
        assert lines[0].startswith("jaxdelegate: ")
        return lines[0]

    return run


@pytest.fixture(scope="session")
def mobilenet_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("models") / "mobilenet.tflite"
    path.write_bytes(mobilenet_v1(size=32, width=0.25))
    return str(path)


@pytest.fixture(scope="session")
def network_path(tmp_path_factory: pytest.TempPathFactory, network: bytes) -> str:
    """The small network: CONV_2D, DEPTHWISE_CONV_2D, CONV_2D, AVERAGE_POOL_2D, SOFTMAX."""
    path: Path = tmp_path_factory.mktemp("models") / "network.tflite"
    path.write_bytes(network)
    return str(path)
