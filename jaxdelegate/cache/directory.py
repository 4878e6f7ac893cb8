"""A directory of files that only their owner can have written.

Stored programs are machine code, so they are trusted by ownership alone: a directory or a file
that somebody else could write to is not used. The directory is held open from the check on, so
that its path may lead elsewhere meanwhile. Files appear whole or not at all: they are written
under another name, flushed to the disk and renamed.
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


class PrivateDirectory:
    """Files by name, readable and writable by their owner.

    Attributes:
        path: of the directory, for people.
        remark: why the files lie in a folder of this user's in it; None: they lie in it.
    """

    def __init__(self, path: Path, file: int, remark: str | None) -> None:
        """Use `open` instead, which checks it."""
        self.path, self.remark = path, remark
        self._file, self._state = file, os.fstat(file)
        weakref.finalize(self, _close, file, self._state)

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, create: bool = True) -> "PrivateDirectory":
        """The directory, made with mode 0700 if it is not there.

        Where others could change it, or put another one in its place, this is a folder inside of
        it that only this user may look into. All who open one directory share a descriptor.

        Raises:
            PermissionError: others can write to it, or own it, and this user has no folder there.
            OSError: it cannot be made, or is no directory.
        """
        given = os.fspath(path)
        if create:
            os.makedirs(given, mode=0o700, exist_ok=True)
        elif not os.path.exists(given):
            raise FileNotFoundError(
                f"cache directory {given!r}: no such folder; a delegate makes and fills it "
                "(serialization_dir), or `jaxdelegate compile`"
            )
        if not os.path.isdir(given):
            raise NotADirectoryError(f"cache directory {given!r} is a file")
        reason = why_shared(given)
        if reason is None:  # so nobody can have changed where the path leads
            file = os.open(given, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            return _only(cls(Path(given), file, None))
        file, own = _own_folder(given, reason, create=create), subfolder.folder_name()
        remark = (
            f"cache directory {given!r} {reason}, so programs are stored in "
            f"{os.path.join(given, own)!r}, which only this user can write to; what lies in "
            f"{given!r} itself is not used"
        )
        return _only(cls(Path(given), file, remark))

    def fileno(self) -> int:
        """Its descriptor, for `dir_fd`.

        Raises:
            PermissionError: others can write to it by now.
            OSError: the descriptor was closed.
        """
        state = os.fstat(self._file)
        if not os.path.samestat(state, self._state):
            raise OSError(errno.EBADF, f"the descriptor of {str(self.path)!r} was closed")
        if reason := why_not_trusted(state, self._file):
            raise PermissionError(f"cache directory {str(self.path)!r} {reason}")
        return self._file

    def names(self) -> list[str]:
        """What lies in it, temporary files left out, sorted."""
        there = subfolder.listed(self.fileno())
        return [name for name in there if not name.startswith(TEMPORARY)]

    def state(self, name: str) -> os.stat_result | None:
        """Of a file, or of a link itself; None: it is not there."""
        try:
            return os.stat(name, dir_fd=self.fileno(), follow_symlinks=False)
        except FileNotFoundError:
            return None

    def size(self, name: str) -> int:
        """Bytes of a file; 0 if it is not there."""
        state = self.state(name)
        return 0 if state is None else state.st_size

    def modified(self, name: str) -> float:
        """When a file was last written or used, in seconds of the epoch; 0: it is not there."""
        state = self.state(name)
        return 0.0 if state is None else state.st_mtime

    def descriptor(self, name: str) -> int:
        """An open file; close it.

        Raises:
            PermissionError: somebody else could have written it.
            OSError: it is not there, a link, or no regular file.
        """
        if os.path.basename(name) != name:
            raise PermissionError(f"{name!r} is no name of a file")
        # A pipe of that name must not block.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        file = os.open(name, flags, dir_fd=self.fileno())
        state = os.fstat(file)
        reason = why_not_trusted(state, file)
        if not stat.S_ISREG(state.st_mode):
            reason = "is no regular file"
        if reason is not None:
            os.close(file)
            raise PermissionError(f"{name} {reason}")
        return file

    def read(self, name: str) -> bytes:
        """A file's content.

        Raises:
            OSError: as `descriptor`.
        """
        with open(self.descriptor(name), "rb") as file:
            return file.read()

    def write(self, name: str, parts: Iterable[bytes | memoryview]) -> None:
        """Put a file there, whole, in the place of what has its name.

        Raises:
            OSError: the disk is full, or the directory cannot be written to.
        """
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
        """Note that a file was used, where that can be noted."""
        with suppress(OSError):
            os.utime(name, dir_fd=self.fileno(), follow_symlinks=False)

    def remove(self, name: str) -> None:
        """Remove a file that may be gone already.

        Raises:
            OSError: the directory cannot be written to.
        """
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self.fileno())

    def abandoned(self) -> Iterator[str]:
        """Temporary files that no process is writing any more."""
        for name in subfolder.listed(self.fileno()):
            # Whatever the clock: one from the future was written before it was put right.
            age = abs(time.time() - self.modified(name))
            if name.startswith(TEMPORARY) and age > _ABANDONED_SECONDS:
                yield name


def _own_folder(path: str, reason: str, *, create: bool) -> int:
    """A descriptor of this user's folder in a shared one."""
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
)  # by device and number


def _only(directory: PrivateDirectory) -> PrivateDirectory:
    """What has the same directory open already: a thousand delegates need one descriptor."""
    state = os.fstat(directory.fileno())
    place = state.st_dev, state.st_ino
    there = _opened.setdefault(place, directory)
    try:
        there.fileno()
    except OSError:  # somebody has closed it
        there = _opened[place] = directory
    return there


def _close(file: int, state: os.stat_result) -> None:
    with suppress(OSError):
        if os.path.samestat(os.fstat(file), state):  # else it is another file's by now
            os.close(file)
