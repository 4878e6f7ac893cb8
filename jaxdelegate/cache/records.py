"""Small files next to programs: text under a key, preceded by a digest of both."""

import dataclasses
import hashlib
from collections.abc import Callable
from typing import Generic, TypeVar

from jaxdelegate.cache.directory import PrivateDirectory
from jaxdelegate.cache.key import Key

SIGNATURES = ".signatures"  # what is known of a model without its operators: `lm.model_file`
_DIGEST_SIZE = hashlib.sha256().digest_size

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Kind(Generic[T]):
    """A kind of records.

    Attributes:
        name: for messages.
        suffix: of its files.
        encoded: the text of a record.
        decoded: the record of a text; a ValueError, TypeError, LookupError or AttributeError: it is
            none.
    """

    name: str
    suffix: str
    encoded: Callable[[T], bytes]
    decoded: Callable[[bytes], T]


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
