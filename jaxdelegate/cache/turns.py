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
    name = f"{TEMPORARY}{digest}"  # what a killed process leaves is pruned
    try:
        file = _locked(directory, name)
    except OSError as error:
        _LOGGER.debug("cache: program %.12s is compiled without a turn: %s", digest, error)
        yield
        return
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            directory.remove(name)  # while it is locked: who waits sees that it is another file
        os.close(file)


def _locked(directory: PrivateDirectory, name: str) -> int:
    """The file, open and locked, of which nobody else holds the lock."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    while True:
        file = os.open(name, flags, 0o600, dir_fd=directory.fileno())
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            there = directory.state(name)
            if there is not None and os.path.samestat(there, os.fstat(file)):
                return file
        except BaseException:
            os.close(file)
            raise
        os.close(file)  # whoever had the turn has removed it
