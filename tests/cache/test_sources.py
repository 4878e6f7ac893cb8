"""The parts of a key that come from this package's own code."""

import shutil
from pathlib import Path

import pytest

from jaxdelegate.cache import sources
from jaxdelegate.cache.sources import SourceError

FOLDERS = ("other", "rules")


@pytest.fixture
def package(tmp_path: Path) -> Path:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "a.py").write_text("a = 1")
    (tmp_path / "rules" / "inner").mkdir(parents=True)
    (tmp_path / "rules" / "b.py").write_text("b = 1")
    (tmp_path / "rules" / "inner" / "c.py").write_text("c = 1")
    (tmp_path / "rules" / "table.txt").write_text("no code")
    return tmp_path


def digest(package: Path) -> str:
    sources._digest.cache_clear()  # as in another process
    return sources._digest(package, FOLDERS)


@pytest.fixture(autouse=True)
def loaded_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the package's files would be newer than this process."""
    monkeypatch.setattr(sources, "_LOADED", float("inf"))


@pytest.mark.parametrize("name", ["other/a.py", "rules/b.py", "rules/inner/c.py"])
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


def test_a_missing_folder(package: Path) -> None:
    shutil.rmtree(package / "other")
    with pytest.raises(SourceError, match=r"other is missing: installed without sources"):
        digest(package)


def test_no_sources_at_all(tmp_path: Path) -> None:
    (tmp_path / "rules").mkdir()
    with pytest.raises(SourceError, match="has no Python files: installed without sources"):
        sources._digest(tmp_path, ("rules",))


def test_a_file_that_changed_since_this_process_started(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "_LOADED", 0.0)
    with pytest.raises(SourceError, match=r"\.py has changed since this process loaded it"):
        digest(package)


def test_a_copy_has_the_same_digest(
    package: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    copy = shutil.copytree(package, tmp_path_factory.mktemp("other") / "package")
    assert digest(copy) == digest(package)


def test_the_rooms_that_make_programs_count_and_no_others() -> None:
    """What compiles a partition imports them; a room that they import from and that is not in the
    key must have no say in the program."""
    rooms = {*sources._folders(of_subgraphs=False, more=())["sources"]}
    found = {name for room in rooms for name in imported_rooms(room)}
    no_say = {
        "cache",  # stores programs
        "device_errors",  # messages
        "device_weights",  # where weights lie
        "digests",
        "errors",
        "forks",
        "lru_cache",
        "costs",  # of the tuner, whose choices are in the key
        "measuring",  # its tolerances, likewise
        "not_built",  # of messages
        "optional",  # of messages
        "options",  # in the key by value
        "pjrt",  # runs programs
        "reference",  # what kernels share; shapes and constants are in the key; `subgraph_sources`
        "host_memory",  # where weights lie
        "program",  # runs
        "report",
        "simple_delegate",  # likewise
        "text",  # of messages
        "thunks",  # calls programs
        "waiting",  # logs
        "whole_imports",
        "wire",  # reads options, which are in the key by value
    }
    assert found - rooms <= no_say
    assert "subgraph_sources" in sources._folders(of_subgraphs=True, more=())


def imported_rooms(room: str) -> set[str]:
    lines = [
        line
        for path in (sources.PACKAGE / room).rglob("*.py")
        for line in path.read_text().splitlines()
    ]
    return {line.split(".")[1].split(" ")[0] for line in lines if "from jaxdelegate." in line}
