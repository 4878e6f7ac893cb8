"""Damaged and foreign files and directories cause a CacheWarning, never wrong results."""

import dataclasses
import errno
import os
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

import jaxdelegate as jd
from jaxdelegate.cache.entry import pack, unpack
from jaxdelegate.cache.maintenance import prune


def assert_miss(run, damage: str = "") -> None:
    """The stored entry is not used, with a warning, and a sound one replaces it."""
    with pytest.warns(jd.CacheWarning, match=damage):
        assert run() == "stored"
    assert run() == "loaded"


# ---- damage


def cut(path: Path, part: int, of: int = 64) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) * part // of])


def flip(path: Path, at: float) -> None:
    content = bytearray(path.read_bytes())
    content[int(at * (len(content) - 1))] ^= 0x10
    path.write_bytes(content)


@pytest.mark.parametrize("part", [0, 1, 63])
def test_truncated_entries(run, part: int) -> None:
    run.fill()
    cut(run.programs()[0], part)
    assert_miss(run, "is not used: the file is (truncated|damaged)")


@pytest.mark.slow
@pytest.mark.parametrize("part", range(0, 64, 8))
@pytest.mark.parametrize("kind", ["*.program", "*.weights"])
def test_truncated_everywhere(run, directory: Path, part: int, kind: str) -> None:
    run()
    for path in directory.glob(kind):
        cut(path, part)
    assert_miss(run, "is not used")


@pytest.mark.parametrize("at", [0.0, 0.01, 0.5, 1.0])
@pytest.mark.parametrize("kind", ["*.program", "*.weights"])
def test_flipped_bits(run, directory: Path, kind: str, at: float) -> None:
    run.fill()
    flip(next(directory.glob(kind)), at)
    assert_miss(run, "is not used")


def test_missing_weights(run) -> None:
    run.fill()
    run.weights()[0].unlink()
    assert_miss(run, "is missing")


def test_another_programs_entry_under_this_name(run) -> None:
    run()
    (own,) = run.programs()
    run(model_token="other")
    (other,) = set(run.programs()) - {own}
    own.write_bytes(other.read_bytes())
    with pytest.warns(jd.CacheWarning, match="another program: model_token differ"):
        assert run() == "stored"


def forge(run, **changes: object) -> None:
    """Replace an entry by one with other content, but a correct header and digest."""
    (path,) = run.programs()
    entry = dataclasses.replace(unpack(path.read_bytes()), **changes)
    path.write_bytes(b"".join(pack(entry)))


@pytest.mark.parametrize("code", [b"", b"garbage", b"\0" * 4096, b"cos\nmkdir\n(S'done'\ntR."])
def test_bytes_that_are_not_machine_code(run, code: bytes) -> None:
    run.fill()
    forge(run, code=code)
    assert_miss(run, "is not used")


def test_arguments_that_do_not_match(run) -> None:
    run.fill()
    forge(run, inputs=(0, 0))
    assert_miss(run, "is not used")


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
def test_only_regular_files_are_read(run, make: Callable[[Path], object]) -> None:
    run.fill()
    (path,) = run.programs()
    path.unlink()
    make(path)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run()
    assert "is not used" in str(caught[0].message)
    assert all(issubclass(w.category, jd.CacheWarning) for w in caught)


def test_an_entry_that_others_can_write_to(run) -> None:
    run.fill()
    run.programs()[0].chmod(0o666)
    assert_miss(run, r"can be written by others \(mode 0666\)")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
@pytest.mark.parametrize("kind", ["*.program", "*.weights"])
def test_an_entry_of_another_user(run, directory: Path, kind: str) -> None:
    run.fill()
    os.chown(next(directory.glob(kind)), 65534, -1)
    with pytest.warns(jd.CacheWarning, match="belongs to user 65534"):
        assert run() == "stored"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_a_directory_of_another_user(run, directory: Path) -> None:
    directory.mkdir(mode=0o700)
    os.chown(directory, 65534, -1)
    assert_own_folder(run, directory, "'.*programs' belongs to user 65534")


def assert_own_folder(run, directory: Path, reason: str) -> None:
    """Programs are stored in, and loaded from, this user's subfolder, with a warning."""
    for outcome in ("stored", "loaded"):
        with pytest.warns(jd.CacheWarning, match=f"{reason}, so programs are stored in"):
            assert run() == outcome
    (own,) = directory.iterdir()
    assert own.name == f"jaxdelegate-{os.geteuid()}"
    assert own.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o1777, 0o2775])
def test_a_directory_that_others_can_write_to(run, directory: Path, mode: int) -> None:
    """Volumes of pods have such modes: emptyDir, fsGroup, group 0 of OpenShift."""
    directory.mkdir()
    directory.chmod(mode)
    assert_own_folder(run, directory, rf"can be written by others \(mode {mode:04o}\)")


def test_a_parent_folder_that_others_can_write_to(run, directory: Path) -> None:
    directory.parent.chmod(0o777)
    reason = rf"is in '{directory.parent}', which can be written by others \(mode 0777\)"
    assert_own_folder(run, directory, reason)


def test_a_directory_by_a_link_is_that_directory(run, tmp_path: Path) -> None:
    """The owner and mode of a link's target count."""
    (tmp_path / "target").mkdir(mode=0o700)
    (tmp_path / "programs").symlink_to(tmp_path / "target")
    assert run() == "stored"
    assert run() == "loaded"
    (tmp_path / "target").chmod(0o777)
    with pytest.warns(jd.CacheWarning, match="can be written by others"):
        assert run() == "stored"


def test_a_directory_that_becomes_writable_by_others_is_not_used(run, directory: Path) -> None:
    delegate = jd.JaxDelegate(serialization_dir=str(directory))
    directory.chmod(0o777)
    with pytest.warns(jd.CacheWarning, match=r"can be written by others \(mode 0777\)"):
        run.run_with(delegate)
    assert list(directory.iterdir()) == []


def test_foreign_files_are_left_alone(run, directory: Path) -> None:
    directory.mkdir(mode=0o700)
    (directory / "README").write_text("mine")
    (directory / "0.program").write_text("not one of ours")
    assert run() == "stored"
    assert run() == "loaded"
    assert (directory / "README").read_text() == "mine"


def test_entries_of_another_format_are_reported_once(run, directory: Path) -> None:
    """Programs of an earlier version are compiled again, and can be pruned."""
    directory.mkdir(mode=0o700)
    older = b"JAXDLGT\0" + (4).to_bytes(4, "little") + bytes(100)
    for name in "ab":
        (directory / f"{name * 64}.program").write_bytes(older)
    with pytest.warns(jd.CacheWarning, match="has 2 programs of another version"):
        assert run() == "stored"
    assert run(model_token="other") == "stored"
    assert run() == "loaded"
    assert len(prune(directory, 1 << 30).removed) == 2


# ---- directories


def test_a_file_instead_of_a_directory(run, directory: Path) -> None:
    directory.write_text("")
    with pytest.warns(jd.CacheWarning, match="compiled programs are not stored"):
        run()


def test_a_read_only_directory_is_read(run, monkeypatch: pytest.MonkeyPatch) -> None:
    run.fill()

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "replace", refuse)
    monkeypatch.setattr(os, "utime", refuse)
    assert run() == "loaded"
    with pytest.warns(jd.CacheWarning, match="is not stored: .*Permission denied"):
        run(model_token="new")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_directory_without_write_permission(run, directory: Path) -> None:
    run()
    directory.chmod(0o500)
    assert run() == "loaded"
    with pytest.warns(jd.CacheWarning, match="is not stored"):
        run(model_token="new")
    directory.chmod(0o700)


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_full_disk(run, directory: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, call, full)
        with pytest.warns(jd.CacheWarning, match="is not stored: .*No space left on device"):
            assert run() == "neither"
    assert list(directory.iterdir()) == []
    assert run() == "stored"
