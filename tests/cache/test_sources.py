"""The parts of a key that come from this package's own code."""

import os
import shutil
import time
from pathlib import Path

import pytest

from jaxdelegate.cache import sources
from jaxdelegate.cache.directory import PrivateDirectory
from jaxdelegate.cache.sources import SUFFIX, SourceError, Sources

NAMES = ("a.py", "rules")


@pytest.fixture
def package(tmp_path: Path) -> Path:
    (tmp_path / "a.py").write_text("a = 1")
    (tmp_path / "rules" / "inner").mkdir(parents=True)
    (tmp_path / "rules" / "b.py").write_text("b = 1")
    (tmp_path / "rules" / "inner" / "c.py").write_text("c = 1")
    (tmp_path / "rules" / "table.txt").write_text("no code")
    return tmp_path


def digest(package: Path, directory: PrivateDirectory | None = None) -> str:
    return Sources(directory, package).digest(NAMES)


@pytest.fixture(autouse=True)
def loaded_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """The files above are younger than this process, else."""
    monkeypatch.setattr(sources, "_LOADED", float("inf"))


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
        Sources(package=tmp_path).digest(("rules",))


# ---- remembered


@pytest.fixture
def directory(tmp_path_factory: pytest.TempPathFactory) -> PrivateDirectory:
    return PrivateDirectory.open(tmp_path_factory.mktemp("cache"))


@pytest.fixture
def settled(package: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Files that nobody has touched for a while."""
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 60.0)
    return package


def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that are read from now on."""
    seen: list[str] = []
    inner = Sources._content

    def content(self: Sources, name: str, state: os.stat_result) -> bytes:
        seen.append(name)
        return inner(self, name, state)

    monkeypatch.setattr(Sources, "_content", content)
    return seen


def test_what_is_remembered_is_not_read(
    settled: Path, directory: PrivateDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = digest(settled, directory)
    assert [name.endswith(SUFFIX) for name in directory.names()] == [True]
    seen = reads(monkeypatch)
    assert digest(settled, directory) == first == digest(settled)
    assert len(seen) == 3  # of the last call


def test_a_change_of_the_same_size_and_time_is_seen(
    settled: Path, directory: PrivateDirectory
) -> None:
    before = digest(settled, directory)
    state = (settled / "a.py").stat()
    (settled / "a.py").write_text("a = 2")
    os.utime(settled / "a.py", ns=(state.st_atime_ns, state.st_mtime_ns))
    assert digest(settled, directory) not in (before, None)
    assert len(directory.names()) == 1


def test_files_that_have_just_changed_are_not_remembered(
    package: Path, directory: PrivateDirectory
) -> None:
    digest(package, directory)
    assert directory.names() == []


def test_a_copy_has_the_same_digest(
    settled: Path, directory: PrivateDirectory, tmp_path_factory: pytest.TempPathFactory
) -> None:
    copy = shutil.copytree(settled, tmp_path_factory.mktemp("other") / "package")
    assert digest(copy, directory) == digest(settled, directory)


@pytest.mark.parametrize("damage", [b"", b"\xff", b"0" * 200, None])
def test_damage_costs_time_only(
    settled: Path, directory: PrivateDirectory, damage: bytes | None
) -> None:
    right = digest(settled, directory)
    file = directory.path / directory.names()[0]
    content = file.read_bytes()
    flipped = content.replace(right[-8:].encode(), b"00000000")
    assert flipped != content
    file.write_bytes(flipped if damage is None else damage)
    assert digest(settled, directory) == right
    assert file.read_bytes() == content


def test_a_file_that_changes_while_it_is_read(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = Sources._content

    def content(self: Sources, name: str, state: os.stat_result) -> bytes:
        (package / name).write_text("changed in between")
        return inner(self, name, state)

    monkeypatch.setattr(Sources, "_content", content)
    with pytest.raises(SourceError, match=r"a\.py is being changed"):
        digest(package)
