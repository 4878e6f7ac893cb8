"""File locks that let one process compile a program while others wait and then load it.

The lock is on a file next to the programs, and works across machines that share the folder. The
system releases it when its process ends, however that happens.
"""

import contextlib
import fcntl
import logging
import os
from collections.abc import Iterator

from jaxdelegate.cache.directory import TEMPORARY, PrivateDirectory

_LOGGER = logging.getLogger("jaxdelegate")


@contextlib.contextmanager
def program_lock(directory: PrivateDirectory, digest: str) -> Iterator[None]:
    """Hold the lock of a program's key; if files cannot be locked, continue without it."""
    name = f"{TEMPORARY}{digest}"  # what a killed process leaves is pruned
    try:
        file = _locked(directory, name)
    except OSError as error:
        _LOGGER.debug("cache: program %.12s is compiled without a lock: %s", digest, error)
        yield
        return
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            directory.remove(name)  # while locked: a waiting process sees that its file is gone
        os.close(file)


def _locked(directory: PrivateDirectory, name: str) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    while True:
        file = os.open(name, flags, 0o600, dir_fd=directory.fileno())
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            current = directory.state(name)
            if current is not None and os.path.samestat(current, os.fstat(file)):
                return file
        except BaseException:
            os.close(file)
            raise
        os.close(file)  # the previous holder has removed this file
