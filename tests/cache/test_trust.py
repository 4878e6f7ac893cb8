"""Whether another user could change or replace a folder."""

import grp
import os
import pwd
import struct
from pathlib import Path

import pytest

from jaxdelegate.cache import trust
from jaxdelegate.cache.trust import why_not_trusted, why_shared

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """`c` in `b` in `a`, all private."""
    folder = tmp_path / "a" / "b" / "c"
    for path in (tmp_path / "a", tmp_path / "a" / "b", folder):
        path.mkdir(mode=0o700)
    return folder


def test_a_private_path_is_trusted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert why_shared(str(folder)) is None
    assert why_shared(f"{folder}/../c/.//") is None
    monkeypatch.chdir(folder.parent)
    assert why_shared("c") is None
    assert why_shared("../b/c") is None
    assert why_shared("/") is None
    assert why_shared("/tmp").startswith("can be written by others")  # type: ignore[union-attr]


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o2775, 0o777])
@pytest.mark.parametrize("up", [0, 1, 2])
def test_one_that_others_can_write_to(
    folder: Path, up: int, mode: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = [folder, *folder.parents][up]
    where.chmod(mode)
    reason = f"can be written by others (mode {mode:04o})"
    want = reason if up == 0 else f"is in {str(where)!r}, which {reason}"
    assert why_shared(str(folder)) == want
    monkeypatch.chdir(folder)
    assert why_shared(".") == want


@needs_root
@pytest.mark.parametrize("up", [0, 1, 2])
def test_one_of_another_user(folder: Path, up: int) -> None:
    where = [folder, *folder.parents][up]
    os.chown(where, 61_002, -1)
    assert str(why_shared(str(folder))).endswith("belongs to user 61002")
    if up:  # the sticky bit does not restrict the owner
        where.chmod(0o1777)
        assert str(why_shared(str(folder))).endswith("belongs to user 61002")


def test_the_sticky_bit_protects_folders_of_this_user(folder: Path) -> None:
    folder.parent.chmod(0o1777)
    assert why_shared(str(folder)) is None
    folder.chmod(0o1777)  # other users can add files
    assert why_shared(str(folder)) == "can be written by others (mode 1777)"


@needs_root
def test_the_sticky_bit_does_not_protect_links_of_another_user(folder: Path) -> None:
    """Their owner can change where they lead at any time."""
    folder.parent.chmod(0o1777)
    link = folder.parent / "link"
    link.symlink_to(folder)
    assert why_shared(str(link)) is None
    os.lchown(link, 61_002, -1)
    assert str(why_shared(str(link))).startswith(f"is in {str(folder.parent)!r}, which can be")


@pytest.mark.parametrize("is_absolute", [False, True])
def test_the_path_of_a_link_counts(
    folder: Path, tmp_path: Path, is_absolute: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to(folder if is_absolute else "a/b/../b/c")
    assert why_shared("link") is None
    assert why_shared("link/../c") is None
    folder.parent.chmod(0o777)
    for path in ("link", "link/../../b/c"):
        assert str(why_shared(path)).startswith(f"is in {str(folder.parent)!r}")


def test_links_that_lead_nowhere(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    (tmp_path / "c").symlink_to("gone")
    (tmp_path / "file").touch()
    for name, error in (
        ("a", OSError),
        ("c", FileNotFoundError),
        ("d", FileNotFoundError),
        ("file/d", NotADirectoryError),
    ):
        with pytest.raises(error):
            why_shared(str(tmp_path / name))


# ---- the private group that many systems give to each user


def user(monkeypatch: pytest.MonkeyPatch, members: list[str], group: str = "ann") -> None:
    """The system's user 7 is Ann, whose group is 8."""
    trust._is_own_group.cache_clear()
    ann = pwd.struct_passwd(("ann", "x", 7, 8, "", "/home/ann", "/bin/sh"))
    monkeypatch.setattr(os, "geteuid", lambda: 7)
    monkeypatch.setattr(pwd, "getpwuid", {7: ann}.__getitem__)
    monkeypatch.setattr(
        grp, "getgrgid", {8: grp.struct_group((group, "x", 8, members))}.__getitem__
    )


def state(mode: int, owner: int = 7, group: int = 8) -> os.stat_result:
    return os.stat_result((0o040000 | mode, 1, 1, 2, owner, group, 0, 0, 0, 0))


def test_a_users_private_group_may_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    user(monkeypatch, [])
    assert why_not_trusted(state(0o775), str(tmp_path)) is None
    assert why_not_trusted(state(0o775, owner=0), str(tmp_path)) is None
    assert why_not_trusted(state(0o777), str(tmp_path)) is not None
    assert why_not_trusted(state(0o775, group=9), str(tmp_path)) is not None
    assert why_not_trusted(state(0o775, owner=5), str(tmp_path)) is not None
    user(monkeypatch, ["ann"])
    assert why_not_trusted(state(0o775), str(tmp_path)) is None
    user(monkeypatch, ["ann", "bob"])
    assert why_not_trusted(state(0o775), str(tmp_path)) is not None
    user(monkeypatch, [], "staff")  # whose main group it may be, too
    assert why_not_trusted(state(0o775), str(tmp_path)) is not None


def test_group_0_is_never_a_private_group(tmp_path: Path) -> None:
    """OpenShift gives it to every user of a container."""
    assert why_not_trusted(state(0o775, owner=0, group=0), str(tmp_path)) is not None


def test_an_access_list_may_name_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mode's group bits then limit what users on the list may do."""
    rows = [(1, 7, -1), (2, 7, 9), (4, 7, -1), (16, 7, -1), (32, 5, -1)]  # user 9: rwx
    entries = b"".join(struct.pack("<HHi", *row) for row in rows)
    try:
        os.setxattr(tmp_path, "system.posix_acl_access", struct.pack("<I", 2) + entries)
    except OSError:
        pytest.skip("this file system has no access lists")
    user(monkeypatch, [])
    assert why_not_trusted(state(0o775), str(tmp_path)) is not None
