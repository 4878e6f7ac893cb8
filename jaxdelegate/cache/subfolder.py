"""A user's own folder inside a directory that others can write to, such as a pod's volume.

It is called `jaxdelegate-<user id>`, and only the user can read it. A user who can write to the
shared directory can still move it away and put another folder *of this user* in its place: for
instance one into which the user has unpacked an untrusted archive, whose files could be programs.
So programs are one level deeper, in a folder that is used only with its seal. The seal is a socket
next to it with a random name, and the folder is named after that and the time of the socket's last
change. Archives and downloads contain no sockets, a copy has another time, and the name is visible
only to users who can read the outer folder.
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
_TIMEOUT_S = 1.0  # creating a sealed folder takes less


def folder_name() -> str:
    """The outer folder's."""
    return f"jaxdelegate-{os.geteuid()}"


def open_in(shared: int, *, create: bool) -> int:
    """A descriptor of the sealed folder.

    A FileNotFoundError if this user has none there, an OSError if it cannot be created, or another
    user has created it.
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
            _lock(outer)
            found = _sealed(outer) or _created(outer)
        if found is None:
            raise FileNotFoundError(f"{folder_name()} has no sealed folder")
        return os.open(found, FOLDER, dir_fd=outer)
    finally:
        os.close(outer)


def listed(folder: int) -> list[str]:
    # Opened again: threads that list the same descriptor would share its position.
    again = os.open(".", FOLDER, dir_fd=folder)
    try:
        return sorted(os.listdir(again))
    finally:
        os.close(again)


def _sealed(outer: int) -> str | None:
    """The name of the sealed folder; None: none exists, or others could have read its name."""
    if os.fstat(outer).st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        return None
    found = listed(outer)
    sealed = (_named_after(outer, seal) for seal in found if _OURS.fullmatch(seal))
    return next((folder for folder in sealed if folder in found), None)


def _named_after(outer: int, seal: str) -> str | None:
    """The name of a seal's folder; None: it is not a seal, is another user's, or does not exist."""
    try:
        state = os.stat(seal, dir_fd=outer, follow_symlinks=False)
    except FileNotFoundError:
        return None
    is_seal = stat.S_ISSOCK(state.st_mode) and state.st_uid == os.geteuid()
    return f"{seal}.{state.st_ctime_ns}" if is_seal else None


def _created(outer: int) -> str:
    """A new sealed folder; folders with a broken seal are removed.

    Seals break: Kubernetes opens a volume with an `fsGroup` to the group whenever a pod starts.
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
        raise OSError("this file system does not support sockets")
    os.mkdir(folder, 0o700, dir_fd=outer)
    return folder


def _lock(outer: int) -> None:
    """Lock a folder until its descriptor is closed; after a timeout, continue without the lock."""
    deadline = time.monotonic() + _TIMEOUT_S
    with contextlib.suppress(OSError):  # a file system without locks
        while time.monotonic() < deadline:
            try:
                fcntl.flock(outer, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(0.01)
            else:
                return
