"""What a delegate's rules have answered of a graph: which of its operators XLA can run.

To ask them takes jax. The answers are kept next to the programs, under all that they depend on, so
that a process which finds its programs there needs neither.
"""

import hashlib
import json
from collections.abc import Mapping

from jaxdelegate.cache.directory import PrivateDirectory
from jaxdelegate.cache.key import Key

SUFFIX = ".answers"
_CHECK = hashlib.sha256().digest_size

Answers = Mapping[int, str | None]  # by operator: why it stays on the host; None: it does not


def read(directory: PrivateDirectory, key: Key) -> Answers | None:
    """The answers for a graph; None: there are none.

    Raises:
        ValueError: the file is damaged.
        OSError: it cannot be read, or somebody else could have written it.
    """
    try:
        content = directory.read(_file(key))
    except FileNotFoundError:
        return None
    check, text = content[:_CHECK], content[_CHECK:]
    if hashlib.sha256(text).digest() != check:
        raise ValueError("its SHA-256 is wrong")
    return {int(index): reason for index, reason in json.loads(text)}


def write(directory: PrivateDirectory, key: Key, answers: Answers) -> None:
    """Keep them.

    Raises:
        OSError: the disk is full, or the directory cannot be written to.
    """
    text = json.dumps(sorted(answers.items())).encode()
    directory.write(_file(key), [hashlib.sha256(text).digest(), text])


def _file(key: Key) -> str:
    return key.digest + SUFFIX
