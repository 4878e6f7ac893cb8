"""Processes that want the same program take turns: the first compiles it, the others find it.

A turn is a lock on a file next to the programs. It ends with the process that holds it, however
that ends, on all machines that share the folder.
"""

import contextlib
import fcntl
import logging
import os
from collections.abc import Iterator

from jaxdelegate.cache.directory import TEMPORARY, PrivateDirectory

_LOGGER = logging.getLogger("jaxdelegate")


@contextlib.contextmanager
def turn(directory: PrivateDirectory, digest: str) -> Iterator[None]:
    """Hold the turn of a program. Where files cannot be locked there are none: it costs time only.

    Args:
        directory: of the programs.
        digest: of the program's key.
    """
    path = directory.path / f"{TEMPORARY}{digest}"  # what a killed process leaves is pruned
    try:
        file = _locked(path)
    except OSError as error:
        _LOGGER.debug("cache: program %.12s is compiled without a turn: %s", digest, error)
        yield
        return
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            path.unlink()  # while it is locked: who waits for it sees that it is another file
        os.close(file)


def _locked(path: os.PathLike[str]) -> int:
    """The file, open and locked, of which nobody else holds the lock."""
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            if _is_there(path, file):
                return file
        except BaseException:
            os.close(file)
            raise
        os.close(file)  # whoever had the turn has removed it


def _is_there(path: os.PathLike[str], file: int) -> bool:
    try:
        return os.path.samestat(os.stat(path, follow_symlinks=False), os.fstat(file))
    except FileNotFoundError:
        return False
