"""A user's own folder inside of one that others may write to, as volumes of pods are.

It is called `jaxdelegate-<user id>`, and only the user may look into it. Whoever may write to the
shared folder can still move it away and put another folder *of this user* in its place: one into
which the user has unpacked files of a stranger, for instance, and those could be programs. So
programs lie one level deeper, in a folder that counts only with its seal. The seal is a socket next
to it with a random name, and the folder is named after that and the time of the socket's last
change. Archives and downloads hold no sockets, a copy has another time, and nobody who cannot look
into the outer folder learns the name.
"""

import contextlib
import fcntl
import os
import re
import shutil
import stat
import time

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OURS = re.compile(r"([0-9a-f]{32})(\.[0-9]+)?")  # a seal, or a sealed folder
_PATIENCE = 1.0  # seconds: to make a sealed folder takes less than one of them


def folder_name() -> str:
    """What the outer folder is called."""
    return f"jaxdelegate-{os.geteuid()}"


def open_in(shared: int, *, create: bool) -> int:
    """A descriptor of the sealed folder.

    Args:
        shared: a descriptor of the folder that others may write to.
        create: make what is not there.

    Raises:
        FileNotFoundError: this user has none there.
        OSError: it cannot be made, or somebody else has made it.
    """
    if create:
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder_name(), 0o700, dir_fd=shared)
    outer = os.open(folder_name(), FOLDER, dir_fd=shared)
    try:
        owner = os.fstat(outer).st_uid
        if owner != os.geteuid():
            raise PermissionError(f"{folder_name()} belongs to user {owner}")
        found = _sealed(outer)
        if found is None and create:
            _wait_for_turn(outer)
            found = _sealed(outer) or _begun(outer)
        if found is None:
            raise FileNotFoundError(f"{folder_name()} has no sealed folder")
        return os.open(found, FOLDER, dir_fd=outer)
    finally:
        os.close(outer)


def listed(folder: int) -> list[str]:
    """What lies in an open folder, sorted."""
    # Opened once more: who lists one descriptor at the same time shares its position.
    again = os.open(".", FOLDER, dir_fd=folder)
    try:
        return sorted(os.listdir(again))
    finally:
        os.close(again)


def _sealed(outer: int) -> str | None:
    """The name of the folder with a seal; None: there is none, or others could have seen it."""
    if os.fstat(outer).st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        return None
    there = listed(outer)
    sealed = (_named_after(outer, seal) for seal in there if _OURS.fullmatch(seal))
    return next((folder for folder in sealed if folder in there), None)


def _named_after(outer: int, seal: str) -> str | None:
    """What the folder of a seal is called; None: it is no seal, somebody else's, or gone."""
    try:
        state = os.stat(seal, dir_fd=outer, follow_symlinks=False)
    except FileNotFoundError:
        return None
    is_seal = stat.S_ISSOCK(state.st_mode) and state.st_uid == os.geteuid()
    return f"{seal}.{state.st_ctime_ns}" if is_seal else None


def _begun(outer: int) -> str:
    """A new sealed folder, in the place of what has lost its seal.

    Kubernetes opens a volume with an `fsGroup` to the group whenever a pod starts.
    """
    if foreign := [found for found in listed(outer) if not _OURS.fullmatch(found)]:
        raise PermissionError(f"{folder_name()} holds other files, such as {foreign[0]!r}")
    os.fchmod(outer, 0o700)
    for old in filter(_OURS.fullmatch, listed(outer)):
        if stat.S_ISDIR(os.stat(old, dir_fd=outer, follow_symlinks=False).st_mode):
            shutil.rmtree(old, ignore_errors=True, dir_fd=outer)
        else:
            os.unlink(old, dir_fd=outer)
    seal = os.urandom(16).hex()
    os.mknod(seal, stat.S_IFSOCK | 0o600, dir_fd=outer)
    folder = _named_after(outer, seal)
    if folder is None:
        raise OSError("this file system makes no sockets")
    os.mkdir(folder, 0o700, dir_fd=outer)
    return folder


def _wait_for_turn(outer: int) -> None:
    """Have the lock of a folder until its descriptor is closed, if it can be had in a while."""
    deadline = time.monotonic() + _PATIENCE
    with contextlib.suppress(OSError):  # a file system without locks
        while time.monotonic() < deadline:
            try:
                fcntl.flock(outer, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(0.01)
            else:
                return
