"""The error of every wrong use says what is wrong, where, what was expected and what to do."""

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import jax
import pytest

DOCS = Path(__file__).parents[2] / "docs"


def module(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


USES = module(Path(__file__).with_name("wrong_uses.py"))
ROWS = [row for rows in USES.WRONG_USES.values() for row in rows]


@pytest.fixture(scope="module", autouse=True)
def _files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with USES.inside(tmp_path_factory.mktemp("uses")):
        yield


def test_there_are_many() -> None:
    assert len(ROWS) >= 60


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_an_error_says_what_to_do(row: object) -> None:
    kind, message = USES.answer(row)
    assert kind == row.error, message
    assert [part for part in row.says if part not in message] == []
    assert "Traceback" not in message


def test_the_page_is_current() -> None:
    if {d.platform for d in jax.devices()} != {"cpu"}:
        pytest.skip("the page is for a machine without accelerators")
    written = (DOCS / "errors.md").read_text()
    assert written == module(DOCS / "generate_errors.py").page(), (
        "run `python docs/generate_errors.py`"
    )
