"""Attackers who can write to a folder above a cache directory replace the directory."""

import contextlib
import dataclasses
import grp  # noqa: F401 (another user may not reach the standard library)
import os
import pwd  # noqa: F401
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import jaxdelegate as jd
from jaxdelegate.cache.directory import PrivateDirectory
from jaxdelegate.cache.entry import Entry, pack, unpack
from jaxdelegate.cache.maintenance import list_entries
from jaxdelegate.testing import ModelBuilder
from jaxdelegate.tools.main import main

VICTIM, ATTACKER = 61_001, 61_002
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may act as other users")


@contextlib.contextmanager
def acting_as(user: int) -> Iterator[None]:
    """Create and open files as this user, in a group of the same number."""
    groups = os.getgroups()
    os.setgroups([])
    os.setegid(user)
    os.seteuid(user)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(groups)


@pytest.fixture(autouse=True)
def may_warn() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", jd.CacheWarning)
        yield


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that every user can write to, such as a pod's volume."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)
        yield Path(folder)


def times(factor: float) -> bytes:
    builder = ModelBuilder()
    x, y = builder.input((1, 4), np.float32, "x"), builder.tensor((1, 4))
    builder.operator("MUL", [x, builder.constant(np.full(4, factor, np.float32))], [y])
    builder.outputs(y)
    return builder.build()


def ran(delegate: jd.JaxDelegate) -> str:
    """Check that 3 * 1 is 3; returns whether the program was "loaded", "stored" or neither."""
    interpreter = jd.Interpreter(model_content=times(3.0), experimental_delegates=[delegate])
    interpreter.allocate_tensors()
    interpreter.set_tensor(0, np.ones((1, 4), np.float32))
    interpreter.invoke()
    result = interpreter.get_tensor(interpreter.get_output_details()[0]["index"])
    np.testing.assert_array_equal(result, np.full((1, 4), 3.0))
    if delegate.programs is None:
        return ""
    done = delegate.programs.statistics
    return "loaded" * done.loaded + "stored" * done.stored


def delegate_of(directory: Path, **options: object) -> jd.JaxDelegate:
    return jd.JaxDelegate(platform="cpu", serialization_dir=str(directory), **options)


@pytest.fixture(scope="module")
def forged(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Files that hold another network's machine code, under the key of this one's program."""
    folders = [tmp_path_factory.mktemp("forged") / name for name in ("ours", "others")]
    for folder, factor in zip(folders, (3.0, 5.0), strict=True):
        delegate = jd.JaxDelegate(platform="cpu", serialization_dir=str(folder))
        content = times(factor)
        jd.Interpreter(model_content=content, experimental_delegates=[delegate]).allocate_tensors()
    ours, others = (unpack(next(f.glob("*.program")).read_bytes()) for f in folders)
    keep = ("inputs", "outputs", "states", "donated", "weights", "weights_digest", "code")
    changes = {name: getattr(others, name) for name in (*keep, "call_lists")}
    entry: Entry = dataclasses.replace(ours, **changes)
    weights = [w for f in folders for w in f.glob("*.weights")]
    return {entry.file: b"".join(pack(entry))} | {w.name: w.read_bytes() for w in weights}


def plant(folder: Path, files: dict[str, bytes]) -> Path:
    """Write files that pass every check of single files: whole, private, owned by this user."""
    folder.mkdir(mode=0o700, parents=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
        (folder / name).chmod(0o600)
    return folder


def test_planted_files_would_be_run(tmp_path: Path, forged: dict[str, bytes]) -> None:
    """Otherwise the other tests prove nothing."""
    planted = plant(tmp_path / "programs", forged)
    with pytest.raises(AssertionError, match="Mismatched elements"):
        ran(delegate_of(planted))


# ---- while a delegate lives


def test_a_folder_swapped_while_a_delegate_lives(tmp_path: Path, forged: dict[str, bytes]) -> None:
    """The delegate reads and writes in the folder that it has checked."""
    directory, away = tmp_path / "above" / "programs", tmp_path / "above" / "away"
    delegate, later = delegate_of(directory), delegate_of(directory)
    directory.rename(away)
    plant(directory, forged)
    before = sorted(directory.iterdir())
    assert ran(delegate) == "stored"
    assert ran(later) == "loaded"
    assert sorted(directory.iterdir()) == before
    assert len(list_entries(away)) == 1


def test_a_removed_folder_stores_nothing(tmp_path: Path) -> None:
    directory = tmp_path / "programs"
    delegate = delegate_of(directory)
    directory.rmdir()
    plant(directory, {})
    with pytest.warns(jd.CacheWarning, match="is not stored: .*No such file or directory"):
        assert ran(delegate) == ""
    assert list(directory.iterdir()) == []


# ---- between processes, by another user


def as_is(shared: Path, forged: dict[str, bytes]) -> Path:
    return plant(shared / "planted", forged)


def as_own_folder(shared: Path, forged: dict[str, bytes]) -> Path:
    plant(shared / "planted" / f"jaxdelegate-{os.geteuid()}", forged)
    return shared / "planted"


def as_sealed_folder(shared: Path, forged: dict[str, bytes]) -> Path:
    """What the victim could have unpacked if the archive knew the names; the socket is a copy."""
    own = shared / "planted" / f"jaxdelegate-{os.geteuid()}"
    own.mkdir(mode=0o700, parents=True)
    os.mknod(own / ("0" * 32), 0o140600)
    plant(own / f"{'0' * 32}.{1_700_000_000_000_000_000}", forged)
    return shared / "planted"


def by_link(shared: Path, forged: dict[str, bytes]) -> Path:
    (shared / "planted").symlink_to(plant(shared / "elsewhere", forged))
    return shared / "planted"


@needs_root
@pytest.mark.parametrize("made", [as_is, as_own_folder, as_sealed_folder, by_link])
@pytest.mark.parametrize("is_first", [False, True])
def test_another_user_swaps_the_folder(
    shared: Path,
    forged: dict[str, bytes],
    made: Callable[[Path, dict[str, bytes]], Path],
    is_first: bool,
) -> None:
    """Even a folder that the victim created, with the victim's files, is not used."""
    directory = shared / "programs"
    with acting_as(VICTIM):
        planted = made(shared, forged)
        directory.mkdir(mode=0o700)
        if not is_first:
            assert ran(delegate_of(directory)) == "stored"
            assert ran(delegate_of(directory)) == "loaded"
        alive = delegate_of(directory)
    with acting_as(ATTACKER):
        directory.rename(shared / "away")
        planted.rename(directory)
    with acting_as(VICTIM):
        assert ran(alive) == ("stored" if is_first else "loaded")
        after = [ran(delegate_of(directory)) for _ in "ab"]
        assert after == (["", ""] if made is as_own_folder else ["stored", "loaded"])


@needs_root
@pytest.mark.parametrize("made", [as_is, as_sealed_folder])
def test_another_user_swaps_the_folder_in_a_shared_one(
    shared: Path, forged: dict[str, bytes], made: Callable[[Path, dict[str, bytes]], Path]
) -> None:
    """The attacker replaces the user's subfolder by another folder of the user."""
    with acting_as(VICTIM):
        planted = made(shared, forged)
        if made is as_sealed_folder:
            planted = planted / f"jaxdelegate-{VICTIM}"
            planted = planted.rename(shared / "unpacked")
        own = shared / f"jaxdelegate-{VICTIM}"
        assert ran(delegate_of(shared)) == "stored"
        alive = delegate_of(shared)
    with acting_as(ATTACKER):
        own.rename(shared / "away")
        planted.rename(own)
    with acting_as(VICTIM):
        assert ran(alive) == "loaded"
        assert ran(delegate_of(shared)) == ("" if made is as_is else "stored")


@needs_root
@pytest.mark.parametrize("make", [Path.mkdir, lambda p: p.symlink_to(p.parent / "mine")])
def test_another_user_is_first(shared: Path, make: Callable[[Path], object]) -> None:
    with acting_as(ATTACKER):
        (shared / "mine").mkdir(mode=0o777)
        make(shared / f"jaxdelegate-{VICTIM}")
    with acting_as(VICTIM), pytest.warns(jd.CacheWarning, match="must be yours alone"):
        assert ran(delegate_of(shared)) == ""


@needs_root
def test_a_link_of_another_user_in_a_sticky_folder(shared: Path, forged: dict[str, bytes]) -> None:
    """In /tmp, users cannot rename other users' files, but an attacker can be the first."""
    shared.chmod(0o1777)
    with acting_as(VICTIM):
        planted = plant(shared / "planted", forged)
    with acting_as(ATTACKER):
        (shared / "programs").symlink_to(planted)
    with acting_as(VICTIM):
        assert ran(delegate_of(shared / "programs")) == "stored"
        assert ran(delegate_of(shared / "programs")) == "loaded"
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert ran(delegate_of(shared / "own")) == "stored"


# ---- a user's own folder in a shared one


@pytest.fixture
def own(shared: Path) -> Path:
    """The user's subfolder, with a program in it."""
    assert ran(delegate_of(shared)) == "stored"
    (own,) = shared.iterdir()
    return own


def sealed(own: Path) -> Path:
    (folder,) = (path for path in own.iterdir() if path.is_dir())
    return folder


@pytest.mark.usefixtures("own")
def test_the_tools_find_it(shared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cache", "verify", f"--jax_serialization_dir={shared}"]) == 0
    assert "1 program," in capsys.readouterr().out
    assert [row.problem for row in list_entries(shared)] == [None]
    assert ran(delegate_of(shared)) == "loaded"


def open_to_the_group(own: Path) -> None:
    """What Kubernetes does to volumes that have an `fsGroup` whenever a pod starts."""
    for path in (own, *own.rglob("*")):
        path.chmod(path.lstat().st_mode | (0o2770 if path.is_dir() else 0o660))


def copy(own: Path) -> None:
    before = own.rename(own.with_name("before"))
    own.mkdir(mode=0o700)
    seal = next(path for path in before.iterdir() if path.is_socket())
    os.mknod(own / seal.name, seal.lstat().st_mode)
    shutil.copytree(sealed(before), own / sealed(before).name)
    shutil.rmtree(before)


@pytest.mark.parametrize("change", [open_to_the_group, copy])
def test_a_folder_that_others_could_have_changed_is_replaced(
    shared: Path, own: Path, change: Callable[[Path], None]
) -> None:
    before = sealed(own)
    change(own)
    assert ran(delegate_of(shared)) == "stored"
    assert ran(delegate_of(shared)) == "loaded"
    assert own.stat().st_mode & 0o777 == 0o700
    assert sealed(own) != before  # `sealed` also checks that only one is left


def test_a_folder_of_that_name_with_other_files_is_left_alone(shared: Path) -> None:
    own = plant(shared / f"jaxdelegate-{os.geteuid()}", {"notes.txt": b"mine"})
    own.chmod(0o755)
    with pytest.warns(jd.CacheWarning, match="holds other files, such as 'notes.txt'"):
        assert ran(delegate_of(shared)) == ""
    assert own.stat().st_mode & 0o777 == 0o755


def test_many_threads_create_one_folder(shared: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(8) as pool:
        opened = list(pool.map(lambda _: PrivateDirectory.open(shared), range(32)))
    assert len({os.fstat(directory.fileno()).st_ino for directory in opened}) == 1


# ---- descriptors


def test_delegates_share_a_descriptor_and_the_last_closes_it(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    many = [delegate_of(tmp_path / "programs") for _ in range(1000)]
    assert len(os.listdir("/proc/self/fd")) == before + 1
    del many
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_closed_descriptor_that_is_reused_is_not_trusted(
    tmp_path: Path, forged: dict[str, bytes]
) -> None:
    """Daemons close all descriptors; then the number may be reused for another folder."""
    delegate = delegate_of(tmp_path / "programs")
    assert delegate.programs is not None
    file = delegate.programs._store.directory.fileno()
    planted = os.open(plant(tmp_path / "planted", forged), os.O_RDONLY)
    os.dup2(planted, file)
    os.close(planted)
    try:
        with pytest.warns(jd.CacheWarning, match="was closed"):
            assert ran(delegate) == ""
        assert ran(delegate_of(tmp_path / "programs")) == "stored"
        del delegate
        os.fstat(file)  # it is not ours to close
    finally:
        os.close(file)
