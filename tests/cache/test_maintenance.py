"""Listing, verifying and pruning a directory of programs."""

import errno
import os
import shutil
import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from jaxdelegate.cache import weights
from jaxdelegate.cache.directory import PrivateDirectory
from jaxdelegate.cache.maintenance import foreign_files, list_entries, prune, verify
from jaxdelegate.cache.store import ProgramStore
from jaxdelegate.digests import PREFERRED
from jaxdelegate.tools.main import main
from tests.cache.conftest import Runner


@pytest.fixture(scope="module")
def three(
    network: bytes, x: np.ndarray, want: np.ndarray, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Three programs that share their weights, last used three, two and one hours ago."""
    folder = tmp_path_factory.mktemp("three") / "programs"
    run = Runner(network, x, want, folder)
    for age, token in ((3, "a"), (2, "b"), (1, "c")):
        before = set(folder.glob("*.program"))
        run(model_token=token)
        (new,) = set(folder.glob("*.program")) - before
        os.utime(new, (time.time() - 3600 * age,) * 2)
    return folder


@pytest.fixture
def filled(three: Path, directory: Path) -> Path:
    shutil.copytree(three, directory)
    return directory


def tokens(directory: Path) -> list[str]:
    return [row.parts["model_token"].text.strip('"') for row in list_entries(directory)]


def test_entries_are_listed_with_their_parts(filled: Path) -> None:
    rows = list_entries(filled)
    assert tokens(filled) == ["c", "b", "a"]
    assert [round(row.unused / 3600) for row in rows] == [1, 2, 3]
    assert all(row.age < 600 and row.problem is None for row in rows)
    assert {row.nbytes for row in rows} == {p.stat().st_size for p in filled.glob("*.program")}
    sizes = [p.stat().st_size for p in filled.glob("*.weights")]
    assert [row.weight_bytes for row in rows] == sizes * 3


def test_loading_makes_an_entry_the_latest(run, filled: Path) -> None:
    run(model_token="a")
    assert tokens(filled) == ["a", "c", "b"]


def test_pruning_removes_the_least_recently_used(run, filled: Path) -> None:
    sizes = {row.parts["model_token"].text: row for row in list_entries(filled)}
    room = sum(row.nbytes for row in sizes.values()) + sizes['"a"'].weight_bytes
    assert prune(filled, room).removed == ()
    done = prune(filled, room - 1)
    assert tokens(filled) == ["c", "b"]
    assert [Path(name).suffix for name in done.removed] == [".program"]
    assert done.before - done.after == sizes['"a"'].nbytes
    assert verify(filled)[0].problem is None
    assert run(model_token="b") == "loaded"


def test_pruning_everything_removes_the_weights_too(filled: Path) -> None:
    assert prune(filled, 0).after == 0
    assert list(filled.iterdir()) == []


def test_pruning_removes_what_cannot_be_used(filled: Path) -> None:
    (filled / f"{'0' * 64}.program").write_bytes(b"damaged")
    (filled / f"{'0' * 64}.weights").write_bytes(b"unused")
    (filled / "notes.txt").write_text("mine")
    assert foreign_files(filled) == ["notes.txt"]
    done = prune(filled, 1 << 30)
    assert sorted(done.removed) == [f"{'0' * 64}.program", f"{'0' * 64}.weights"]
    assert (filled / "notes.txt").exists()
    assert tokens(filled) == ["c", "b", "a"]


def test_an_entry_under_a_wrong_name(filled: Path) -> None:
    (first, *_) = filled.glob("*.program")
    first.rename(filled / f"{'1' * 64}.program")
    (row,) = [row for row in list_entries(filled) if row.problem]
    assert row.problem == f"it belongs under the name {first.name}"


def test_verify_reads_weights(filled: Path) -> None:
    path = next(filled.glob("*.weights"))
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert [row.problem for row in list_entries(filled)] == [None] * 3
    problems = [row.problem for row in verify(filled)]
    assert problems == [f"the digest of {path.name} is wrong"] * 3


@pytest.mark.parametrize("action", [list_entries, verify, foreign_files])
def test_a_directory_that_does_not_exist(action, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        action(tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_verify_without_the_digests_algorithm(
    filled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files were written with BLAKE3, which is not installed."""
    monkeypatch.setattr(weights, "is_known", lambda algorithm: algorithm == "none")
    (path,) = filled.glob("*.weights")
    assert [row.problem for row in list_entries(filled)] == [None] * 3
    assert {row.problem for row in verify(filled)} == {
        f"{path.name} cannot be checked: {PREFERRED} is not installed here"
    }


# ---- the tool


def tool(*arguments: str) -> int:
    return main(["cache", *arguments])


def test_the_tool_lists(filled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tool("list", f"--jax_serialization_dir={filled}") == 0
    printed = capsys.readouterr().out
    assert printed.startswith("<bytes>\n  ")  # one model, then its programs
    assert max(map(len, printed.splitlines())) <= 100
    rows = " ".join(printed.split())
    assert rows.count("4 operators, CONV_2D .. FULLY_CONNECTED, of float32 [1, 4, 4, 128]") == 3
    assert "model_token" not in printed
    assert tool("list", "--parts", f"--jax_serialization_dir={filled}") == 0
    printed = capsys.readouterr().out
    assert printed.count("    model_token ") == 3
    assert printed.count("    host_cpu ") == 3
    assert "used 2 h ago" in printed
    assert printed.splitlines()[-1].startswith("3 programs, ")
    assert printed.splitlines()[-1].endswith("; 0 cannot be used.")


def test_the_tool_verifies(filled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tool("verify", f"--jax_serialization_dir={filled}") == 0
    assert capsys.readouterr().out.count("  ok  4 operators") == 3
    next(filled.glob("*.weights")).unlink()
    assert tool("verify", f"--jax_serialization_dir={filled}") == 1
    assert "3 cannot be used." in capsys.readouterr().out


def test_without_a_directory_the_tool_lists_programs_of_language_models(
    filled: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert tool("list") == 1
    assert f"'{tmp_path}/jaxdelegate': no such folder" in capsys.readouterr().err
    filled.rename(tmp_path / "jaxdelegate")
    assert tool("list") == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert f"Programs of language models in {tmp_path}/jaxdelegate:" in printed
    assert "3 programs, " in printed


def test_the_tool_prunes(filled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tool("prune", f"--jax_serialization_dir={filled}", "--max_size=1G") == 0
    assert capsys.readouterr().out.startswith("0 files removed; ")
    assert tool("prune", f"--jax_serialization_dir={filled}", "--max_size=1K") == 0
    assert "-> 0.0 kB." in capsys.readouterr().out
    assert list(filled.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "cache: expected one of list, verify, prune, got none"),
        (["show"], "cache: expected one of list, verify, prune, got show"),
        (["list", "--jax_serialization_dir=/nowhere/at/all"], "/nowhere/at/all"),
        (["list", "--delegate_serialize_dir=/nowhere/at/all"], "/nowhere/at/all"),
        (
            ["list", "--jax_serialization_dir=a", "--delegate_serialize_dir=b"],
            "--delegate_serialize_dir=b and --jax_serialization_dir=a are two names of one option",
        ),
        (["prune", "--jax_serialization_dir=."], "max_size: expected bytes, or a number with"),
        (["prune", "--jax_serialization_dir=.", "--max_size=-1"], "max_size: expected bytes"),
        (["prune", "--jax_serialization_dir=.", "--max_size=2Q"], "got '2Q'"),
    ],
)
def test_mistakes_are_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tool(*arguments) == 1
    printed = capsys.readouterr().err
    assert message in printed
    assert len(printed.splitlines()) == 1


def test_the_tool_refuses_a_directory_that_all_users_can_write_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tmp_path.chmod(0o777)
    assert tool("list", f"--jax_serialization_dir={tmp_path}") == 1
    assert "can be written by others (mode 0777)" in capsys.readouterr().err


# ---- disks and clocks that fail


def test_pruning_keeps_what_cannot_be_read_at_the_moment(
    filled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A temporary disk error costs no program and no weights."""
    before = sorted(path.name for path in filled.iterdir())
    real = PrivateDirectory.descriptor

    def fails(self: PrivateDirectory, name: str) -> int:
        if name.endswith(".program"):
            raise OSError(errno.EIO, "Input/output error")
        return real(self, name)

    with monkeypatch.context() as patch:
        patch.setattr(PrivateDirectory, "descriptor", fails)
        assert prune(filled, 0).removed == ()
        assert {row.problem for row in list_entries(filled)} == {"[Errno 5] Input/output error"}
    assert sorted(path.name for path in filled.iterdir()) == before


def test_pruning_keeps_what_another_installation_can_check(
    filled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("blake3")
    with monkeypatch.context() as patch:
        patch.setattr("jaxdelegate.cache.entry.is_known", lambda name: name == "sha256")
        assert prune(filled, 1 << 30).removed == ()
    assert tokens(filled) == ["c", "b", "a"]


def test_a_clock_that_was_ahead(run, filled: Path) -> None:
    """A time of use in the future does not make an entry the latest forever."""
    ahead = time.time() + 10 * 365 * 86400
    latest = list_entries(filled)[0]
    os.utime(filled / latest.name, (ahead, ahead))
    assert tokens(filled) == ["b", "a", "c"]
    run(model_token="c")
    assert tokens(filled) == ["c", "b", "a"]
    temporary = filled / ".writing-abandoned"
    temporary.touch()
    os.utime(temporary, (ahead, ahead))
    assert prune(filled, 1 << 30).removed == (temporary.name,)


@pytest.mark.parametrize("stamp", [0, -(10**9), 2**33])
def test_any_time_of_a_file(run, filled: Path, stamp: int) -> None:
    for path in filled.iterdir():
        os.utime(path, (stamp, stamp))
    assert run(model_token="a") == "loaded"
    assert tokens(filled)[0] == "a"
    assert main(["cache", "list", f"--jax_serialization_dir={filled}"]) == 0
    one = max(row.nbytes + row.weight_bytes for row in list_entries(filled))
    prune(filled, one)
    assert run(model_token="a") == "loaded"


def test_weights_that_a_new_program_may_use_stay(
    run, filled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process stores a program with the same weights while another one prunes."""
    for path in filled.glob("*.program"):
        path.unlink()
    real = ProgramStore.entries

    def entries(self: ProgramStore, names: object = None) -> object:
        found = list(real(self, names))
        run()
        return iter(found)

    monkeypatch.setattr(ProgramStore, "entries", entries)
    prune(filled, 0)
    monkeypatch.undo()
    assert run() == "loaded"


def test_weights_that_are_pruned_while_their_program_is_written(
    run, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = PrivateDirectory.write

    def write(self: PrivateDirectory, name: str, parts: Iterable[bytes]) -> None:
        if name.endswith(".program"):
            prune(directory, 1 << 30)
        real(self, name, parts)

    monkeypatch.setattr(PrivateDirectory, "write", write)
    assert run() == "stored"
    monkeypatch.undo()
    assert run() == "loaded"
