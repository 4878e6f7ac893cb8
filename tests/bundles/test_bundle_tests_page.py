"""The table of tests by families of bundles; it takes as long as pytest collects them."""

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    path = DOCS / "generate_bundle_tests.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_the_table_is_that_of_the_tests(generator: ModuleType) -> None:
    text = (DOCS / "bundles.md").read_text()
    assert generator.page(text) == text, "run `python docs/generate_bundle_tests.py`"


def test_a_test_that_is_gone_and_cells_without_a_run(
    generator: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = {"a.py::one", "gpu/b.py::two"}
    monkeypatch.setattr(generator, "collected", lambda: known)
    monkeypatch.setattr(generator, "ROWS", {("F", "x"): ("a.py::one", "gpu/b.py::two")})
    row = "| F | x | `a.py::one` | never run: `gpu/b.py::two` | never run |"
    assert generator.table().splitlines()[-1] == row
    known.remove("gpu/b.py::two")
    with pytest.raises(ValueError, match=r"pytest does not collect: gpu/b\.py::two"):
        generator.table()
