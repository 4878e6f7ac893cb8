"""The walk through an operator in CONTRIBUTING.md quotes the code, and each step is needed."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
GUIDE = (ROOT / "CONTRIBUTING.md").read_text()
OPERATOR = "BUCKETIZE"

# A step of the guide, the code that is removed, and the message of the failing test.
LEFT_OUT = {
    "record": (1, 'OperatorRecord(\n        "BUCKETIZE"', "no OperatorRecord"),
    "rule": (2, 'rule("BUCKETIZE"', "no OpRule in a RULES table of op_lowering/ (or host_only)"),
    "kernel": (3, '"BUCKETIZE": Kernel(', "no Kernel in a KERNELS table of a reference module"),
    "cases": (4, "bucketize(np.dtype", "tests/op_lowering/: no Case of"),
}
SOME_LEFT_OUT = [
    pytest.param(what, marks=pytest.mark.slow if what == "rule" else pytest.mark.exhaustive)
    for what in LEFT_OUT
]


def steps() -> dict[int, tuple[str, list[str]]]:
    """The steps of the guide: a file, and blocks of its code."""
    found = {}
    for number, text in re.findall(
        r"\*\*(\d)\. (.*?)(?=\n\*\*\d\. |\nWhat decides)", GUIDE, re.DOTALL
    ):
        path = re.search(r"`([\w/]+\.(?:py|md))`", text)
        assert path is not None
        found[int(number)] = (path[1], re.findall(r"```(?:python|text)\n(.*?)```", text, re.DOTALL))
    return found


def test_five_edits_are_shown_as_they_are() -> None:
    assert sorted(steps()) == [1, 2, 3, 4, 5]
    for path, blocks in steps().values():
        content = (ROOT / path).read_text()
        for block in blocks:
            assert block in content, f"CONTRIBUTING.md differs from {path}:\n{block}"


def checked(root: Path) -> str:
    """The output of the tests that report missing parts of operators; empty if they pass."""
    tests = ["tests/op_lowering/test_operator_records.py", "tests/test_operator_docs.py"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]
    ran = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    return "" if ran.returncode == 0 else ran.stdout


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("copy")
    ignored = shutil.ignore_patterns("__pycache__")
    for name in ("jaxdelegate", "op_lowering", "quant", "docs", "tests"):
        shutil.copytree(ROOT / name, root / name, symlinks=True, ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", root)
    return root


@pytest.mark.parametrize("what", SOME_LEFT_OUT)
def test_what_is_missing_is_named(copy: Path, what: str) -> None:
    step, start, wanted = LEFT_OUT[what]
    path, blocks = steps()[step]
    (block,) = [b for b in blocks if start in b]
    whole = (copy / path).read_text()
    (copy / path).write_text(whole.replace(block, ""))
    said = checked(copy)
    (copy / path).write_text(whole)
    assert wanted in said
    assert OPERATOR in said


@pytest.mark.slow
def test_outdated_documentation_is_named(copy: Path) -> None:
    assert checked(copy) == ""
    path = copy / "docs" / "operators.md"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(line for line in lines if not line.startswith(f"| {OPERATOR} |")))
    assert "run `python docs/generate_operators.py`" in checked(copy)
