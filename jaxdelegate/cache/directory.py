"""A directory of files that only their owner can have written.

Stored programs are machine code, so they are trusted by ownership alone: a directory or a file
that another user could write to is not used. The directory stays open after the check, and is used
through its descriptor, so a change of the path does no harm. Files appear whole or not at all: they
are written under another name, flushed to the disk and renamed.
"""

import errno
import os
import stat
import time
import weakref
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from jaxdelegate.cache import subfolder
from jaxdelegate.cache.trust import why_not_trusted, why_shared

TEMPORARY = ".writing-"
_ABANDONED_SECONDS = 3600.0  # a temporary file of that age belongs to a process that was killed
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def default_folder() -> str:
    """Where language models keep their programs unless the user names another directory."""
    root = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return os.path.join(root, "jaxdelegate")


class PrivateDirectory:
    """Files by name, readable and writable by their owner.

    `remark` says why they are in this user's subfolder; None: they are in the directory itself.
    """

    def __init__(self, path: Path, file: int, remark: str | None) -> None:
        """Use `open` instead, which checks the directory."""
        self.path, self.remark = path, remark
        self._file, self._state = file, os.fstat(file)
        weakref.finalize(self, _close, file, self._state)

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, create: bool = True) -> "PrivateDirectory":
        """The directory, created with mode 0700 if it is missing.

        Where other users could change or replace it, this is a subfolder that only this user can
        read. Callers that open the same directory share a descriptor. A PermissionError if others
        can write to it, or own it, and this user has no subfolder.
        """
        given = os.fspath(path)
        if create:
            os.makedirs(given, mode=0o700, exist_ok=True)
        elif not os.path.exists(given):
            raise FileNotFoundError(
                f"cache directory {given!r}: no such folder; a delegate creates and fills it "
                "(serialization_dir), or `jaxdelegate compile`"
            )
        if not os.path.isdir(given):
            raise NotADirectoryError(f"cache directory {given!r} is a file")
        reason = why_shared(given)
        if reason is None:  # so the path still leads to the directory that was checked
            file = os.open(given, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            return _shared(cls(Path(given), file, None))
        file, own = _own_folder(given, reason, create=create), subfolder.folder_name()
        remark = (
            f"cache directory {given!r} {reason}, so programs are stored in "
            f"{os.path.join(given, own)!r}, which only this user can write to; files in "
            f"{given!r} itself are not used"
        )
        return _shared(cls(Path(given), file, remark))

    def fileno(self) -> int:
        """The descriptor, for `dir_fd`; a PermissionError if others can write to it now."""
        state = os.fstat(self._file)
        if not os.path.samestat(state, self._state):
            raise OSError(errno.EBADF, f"the descriptor of {str(self.path)!r} was closed")
        if reason := why_not_trusted(state, self._file):
            raise PermissionError(f"cache directory {str(self.path)!r} {reason}")
        return self._file

    def names(self) -> list[str]:
        """The names of its files, sorted, without temporary ones."""
        found = subfolder.listed(self.fileno())
        return [name for name in found if not name.startswith(TEMPORARY)]

    def state(self, name: str) -> os.stat_result | None:
        """The status of a file, or of a link itself; None: it does not exist."""
        try:
            return os.stat(name, dir_fd=self.fileno(), follow_symlinks=False)
        except FileNotFoundError:
            return None

    def size(self, name: str) -> int:
        """Bytes of a file; 0 if it does not exist."""
        state = self.state(name)
        return 0 if state is None else state.st_size

    def modified(self, name: str) -> float:
        """When a file was last written or used, in seconds since the epoch; 0: it is missing."""
        state = self.state(name)
        return 0.0 if state is None else state.st_mtime

    def descriptor(self, name: str) -> int:
        """The descriptor of an opened file; the caller closes it.

        A PermissionError if another user could have written it, or it is not a regular file;
        another OSError if it does not exist, or is a link.
        """
        if os.path.basename(name) != name:
            raise PermissionError(f"{name!r} is not a file name")
        # O_NONBLOCK: opening a pipe must not block.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        file = os.open(name, flags, dir_fd=self.fileno())
        state = os.fstat(file)
        reason = why_not_trusted(state, file)
        if not stat.S_ISREG(state.st_mode):
            reason = "is not a regular file"
        if reason is not None:
            os.close(file)
            raise PermissionError(f"{name} {reason}")
        return file

    def read(self, name: str) -> bytes:
        """Raises the errors of `descriptor`."""
        with open(self.descriptor(name), "rb") as file:
            return file.read()

    def write(self, name: str, parts: Iterable[bytes | memoryview]) -> None:
        """Write a file, or replace it, atomically."""
        folder = self.fileno()
        temporary = f"{TEMPORARY}{os.urandom(8).hex()}"
        file = os.open(temporary, _NEW, 0o600, dir_fd=folder)
        try:
            with open(file, "wb") as stream:
                stream.writelines(parts)
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            self.remove(temporary)
            raise

    def touch(self, name: str) -> None:
        """Set the modification time to now, if the directory is writable."""
        with suppress(OSError):
            os.utime(name, dir_fd=self.fileno(), follow_symlinks=False)

    def remove(self, name: str) -> None:
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self.fileno())

    def abandoned(self) -> Iterator[str]:
        """Temporary files that no process writes any more."""
        for name in subfolder.listed(self.fileno()):
            # A time in the future comes from a clock that has been corrected since.
            age = abs(time.time() - self.modified(name))
            if name.startswith(TEMPORARY) and age > _ABANDONED_SECONDS:
                yield name


def _own_folder(path: str, reason: str, *, create: bool) -> int:
    try:
        shared = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            return subfolder.open_in(shared, create=create)
        finally:
            os.close(shared)
    except OSError as error:
        raise PermissionError(
            f"cache directory {path!r} {reason}; stored programs are machine code, so it must be "
            f"yours alone (mode 0700), or have a folder of yours: {error}"
        ) from error


_opened: weakref.WeakValueDictionary[tuple[int, int], PrivateDirectory] = (
    weakref.WeakValueDictionary()
)  # by device and inode


def _shared(directory: PrivateDirectory) -> PrivateDirectory:
    """The instance that has the same directory open already: many delegates share a descriptor."""
    state = os.fstat(directory.fileno())
    identity = state.st_dev, state.st_ino
    first = _opened.setdefault(identity, directory)
    try:
        first.fileno()
    except OSError:  # its descriptor was closed
        first = _opened[identity] = directory
    return first


def _close(file: int, state: os.stat_result) -> None:
    with suppress(OSError):
        if os.path.samestat(os.fstat(file), state):  # otherwise the number was reused
            os.close(file)
