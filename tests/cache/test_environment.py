"""The parts of a key that come from this package's own code."""

from pathlib import Path

import pytest

from jaxdelegate.cache.environment import SourceError, source_digest

NAMES = ("a.py", "rules")


@pytest.fixture
def package(tmp_path: Path) -> Path:
    (tmp_path / "a.py").write_text("a = 1")
    (tmp_path / "rules" / "inner").mkdir(parents=True)
    (tmp_path / "rules" / "b.py").write_text("b = 1")
    (tmp_path / "rules" / "inner" / "c.py").write_text("c = 1")
    (tmp_path / "rules" / "table.txt").write_text("no code")
    return tmp_path


def digest(package: Path) -> str:
    source_digest.cache_clear()
    return source_digest(NAMES, package)


@pytest.fixture(autouse=True)
def loaded_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """The files above are younger than this process, else."""
    monkeypatch.setattr("jaxdelegate.cache.environment._LOADED", float("inf"))
    source_digest.cache_clear()


@pytest.mark.parametrize("name", ["a.py", "rules/b.py", "rules/inner/c.py"])
def test_every_source_counts(package: Path, name: str) -> None:
    before = digest(package)
    assert digest(package) == before
    (package / name).write_text("changed")
    assert digest(package) != before


def test_names_and_new_files_count(package: Path) -> None:
    before = digest(package)
    moved = (package / "rules" / "b.py").rename(package / "rules" / "d.py")
    assert digest(package) != before
    moved.rename(package / "rules" / "b.py")
    assert digest(package) == before
    (package / "rules" / "e.py").write_text("")
    assert digest(package) != before


def test_other_files_do_not_count(package: Path) -> None:
    before = digest(package)
    (package / "rules" / "table.txt").write_text("changed")
    assert digest(package) == before


def test_a_source_that_is_gone(package: Path) -> None:
    (package / "a.py").unlink()
    with pytest.raises(SourceError, match=r"a\.py is not there: installed without sources"):
        digest(package)


def test_no_sources_at_all(tmp_path: Path) -> None:
    (tmp_path / "rules").mkdir()
    with pytest.raises(SourceError, match="has no Python files: installed without sources"):
        source_digest(("rules",), tmp_path)
