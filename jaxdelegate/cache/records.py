"""Small files next to programs: text under a key, preceded by a digest of both."""

import hashlib

from jaxdelegate.cache.directory import PrivateDirectory
from jaxdelegate.cache.key import Key

_DIGEST_SIZE = hashlib.sha256().digest_size


def read(directory: PrivateDirectory, key: Key, suffix: str) -> bytes | None:
    """The text that is stored under a key; None: nothing is.

    A ValueError if the file is damaged, or another key's, an OSError if it cannot be read, or
    another user could have written it.
    """
    try:
        content = directory.read(key.digest + suffix)
    except FileNotFoundError:
        return None
    text = content[_DIGEST_SIZE:]
    if _digest(key, text) != content[:_DIGEST_SIZE]:
        raise ValueError("its SHA-256 is wrong")
    return text


def write(directory: PrivateDirectory, key: Key, suffix: str, text: bytes) -> None:
    directory.write(key.digest + suffix, [_digest(key, text), text])


def _digest(key: Key, text: bytes) -> bytes:
    return hashlib.sha256(key.digest.encode() + text).digest()
