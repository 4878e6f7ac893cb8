"""Tables whose rows stand in modules of their own: what imports them, and what does not."""

import sys
import threading
import time
from pathlib import Path

import pytest

from jaxdelegate.lazy_table import LazyTable

PACKAGE = "lazy_table_rows"
NAMES = {"fruits": ("apple", "pear"), "roots": ("beet",)}


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LazyTable[int]:
    package = tmp_path / PACKAGE
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "fruits.py").write_text("import time; time.sleep(0.1)\nROWS = dict(apple=1, pear=2)")
    (package / "roots.py").write_text("ROWS = dict(beet=3)")
    monkeypatch.syspath_prepend(tmp_path)
    for name in (PACKAGE, *(f"{PACKAGE}.{module}" for module in NAMES)):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return LazyTable(PACKAGE, "ROWS", NAMES)


def imported() -> list[str]:
    return [module for module in NAMES if f"{PACKAGE}.{module}" in sys.modules]


def test_names_import_nothing(table: LazyTable[int]) -> None:
    assert list(table) == ["apple", "pear", "beet"]
    assert len(table) == 3
    assert "pear" in table
    assert "leek" not in table
    assert table.get("leek") is None
    assert imported() == []


def test_a_row_imports_its_module_only(table: LazyTable[int]) -> None:
    assert table["beet"] == 3
    assert imported() == ["roots"]
    assert dict(table) == {"apple": 1, "pear": 2, "beet": 3}


def test_rows_can_be_set_and_deleted(table: LazyTable[int]) -> None:
    table["leek"], table["pear"] = 4, 5
    assert (table["leek"], table["pear"], table["apple"]) == (4, 5, 1)
    del table["leek"], table["pear"]
    assert list(table) == ["apple", "beet"]
    with pytest.raises(KeyError):
        table["pear"]
    with pytest.raises(KeyError):
        del table["pear"]


def test_threads_find_whole_modules(table: LazyTable[int]) -> None:
    """The module sleeps before it has its rows."""
    found: list[int] = []
    threads = [threading.Thread(target=lambda: found.append(table["pear"])) for _ in range(4)]
    for thread in threads:
        thread.start()
        time.sleep(0.01)
    for thread in threads:
        thread.join()
    assert found == [2, 2, 2, 2]


def test_a_name_in_two_modules_raises() -> None:
    with pytest.raises(ValueError, match="a name stands twice"):
        LazyTable(PACKAGE, "ROWS", {"fruits": ("apple",), "roots": ("apple",)})
