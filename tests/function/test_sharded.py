"""`Model.sharded`: over eight devices of one process, and over two processes."""

import re
from pathlib import Path

import pytest

from tests.many_devices import free_address, names_of, outcomes_of, printed_by_two

HERE = Path(__file__).parent
CASES = HERE / "sharded_cases.py"


@pytest.fixture(scope="module")
def outcomes() -> dict[str, str]:
    return outcomes_of(CASES)


@pytest.mark.slow
@pytest.mark.parametrize("name", names_of(CASES))
def test_eight_devices(name: str, outcomes: dict[str, str]) -> None:
    assert not outcomes[name], outcomes[name]


@pytest.mark.slow
def test_two_processes(tmp_path: Path) -> None:
    command = [str(HERE / "sharded_process.py"), free_address()]
    for printed in printed_by_two(command, tmp_path):
        names = re.findall(r"^\w+$", printed, re.MULTILINE)  # gloo prints lines, too
        assert len(names) == 4
