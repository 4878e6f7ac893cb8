"""Small files next to programs: text under a key, after a digest of both."""

import hashlib

from jaxdelegate.cache.directory import PrivateDirectory
from jaxdelegate.cache.key import Key

_CHECK = hashlib.sha256().digest_size


def read(directory: PrivateDirectory, key: Key, suffix: str) -> bytes | None:
    """The text that was written under a key; None: nothing was.

    Raises:
        ValueError: the file is damaged, or another key's.
        OSError: it cannot be read, or somebody else could have written it.
    """
    try:
        content = directory.read(key.digest + suffix)
    except FileNotFoundError:
        return None
    text = content[_CHECK:]
    if _digest(key, text) != content[:_CHECK]:
        raise ValueError("its SHA-256 is wrong")
    return text


def write(directory: PrivateDirectory, key: Key, suffix: str, text: bytes) -> None:
    """Keep a text.

    Raises:
        OSError: the disk is full, or the directory cannot be written to.
    """
    directory.write(key.digest + suffix, [_digest(key, text), text])


def _digest(key: Key, text: bytes) -> bytes:
    return hashlib.sha256(key.digest.encode() + text).digest()
