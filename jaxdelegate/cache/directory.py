"""A directory of files that only their owner can have written.

Stored programs are machine code, so they are trusted by ownership alone: a directory or a file
that somebody else could write to is not used. Files appear whole or not at all: they are written
under another name, flushed to the disk and renamed.
"""

import os
import stat
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Self

TEMPORARY = ".writing-"
_ABANDONED_SECONDS = 3600.0  # a temporary file of that age belongs to a process that was killed
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


class PrivateDirectory:
    """Files by name, readable and writable by their owner."""

    def __init__(self, path: Path) -> None:
        """Use `open` instead, which checks it."""
        self.path = path

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, create: bool = True) -> Self:
        """The directory, made with mode 0700 if it is not there.

        Raises:
            PermissionError: others can write to it, or own it.
            OSError: it cannot be made, or is no directory.
        """
        directory = Path(path)
        if create:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not directory.exists():
            raise FileNotFoundError(
                f"cache directory {str(path)!r}: no such folder; a delegate makes and fills it "
                "(serialization_dir), or `jaxdelegate compile`"
            )
        state = directory.stat()
        if not stat.S_ISDIR(state.st_mode):
            raise NotADirectoryError(f"cache directory {str(path)!r} is a file")
        reason = _why_not_trusted(state)
        if reason is not None:
            raise PermissionError(
                f"cache directory {str(path)!r} {reason}; stored programs are machine code, "
                "so it must be yours alone (mode 0700)"
            )
        return cls(directory)

    def names(self) -> list[str]:
        """What lies in it, temporary files left out, sorted."""
        return sorted(n for n in os.listdir(self.path) if not n.startswith(TEMPORARY))

    def size(self, name: str) -> int:
        """Bytes of a file; 0 if it is not there."""
        try:
            return (self.path / name).lstat().st_size
        except FileNotFoundError:
            return 0

    def modified(self, name: str) -> float:
        """When a file was last written or used, in seconds of the epoch; 0: it is not there."""
        try:
            return (self.path / name).lstat().st_mtime
        except FileNotFoundError:
            return 0.0

    def descriptor(self, name: str) -> int:
        """An open file; close it.

        Raises:
            PermissionError: somebody else could have written it.
            OSError: it is not there, a link, or no regular file.
        """
        # A pipe of that name must not block.
        file = os.open(self.path / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        state = os.fstat(file)
        reason = _why_not_trusted(state)
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
        import tempfile  # noqa: PLC0415 (what only reads does without it)

        file, temporary = tempfile.mkstemp(prefix=TEMPORARY, dir=self.path)  # mode 0600
        try:
            with open(file, "wb") as stream:
                stream.writelines(parts)
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(temporary, self.path / name)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise

    def touch(self, name: str) -> None:
        """Note that a file was used, where that can be noted."""
        try:
            os.utime(self.path / name)
        except OSError:
            return

    def remove(self, name: str) -> None:
        """Remove a file that may be gone already.

        Raises:
            OSError: the directory cannot be written to.
        """
        (self.path / name).unlink(missing_ok=True)

    def abandoned(self) -> Iterator[str]:
        """Temporary files that no process is writing any more."""
        for path in self.path.glob(f"{TEMPORARY}*"):
            # Whatever the clock: one from the future was written before it was put right.
            if abs(time.time() - self.modified(path.name)) > _ABANDONED_SECONDS:
                yield path.name


def _why_not_trusted(state: os.stat_result) -> str | None:
    if state.st_uid not in (os.geteuid(), 0):
        return f"belongs to user {state.st_uid}"
    if state.st_mode & _OTHERS_WRITE:
        return f"can be written by others (mode {stat.S_IMODE(state.st_mode):04o})"
    return None
