"""What a delegate's rules have answered of a graph: which of its operators XLA can run.

To ask them takes jax. The answers are kept next to the programs, under all that they depend on, so
that a process which finds its programs there needs neither.
"""

import json
from collections.abc import Mapping

from jaxdelegate.cache import records
from jaxdelegate.cache.directory import PrivateDirectory
from jaxdelegate.cache.key import Key

SUFFIX = ".answers"

Answers = Mapping[int, str | None]  # by operator: why it stays on the host; None: it does not


def read(directory: PrivateDirectory, key: Key) -> Answers | None:
    """The answers for a graph; None: there are none.

    Raises:
        ValueError: the file is damaged.
        OSError: it cannot be read, or somebody else could have written it.
    """
    text = records.read(directory, key, SUFFIX)
    if text is None:
        return None
    return {int(index): reason for index, reason in json.loads(text)}


def write(directory: PrivateDirectory, key: Key, answers: Answers) -> None:
    """Keep them.

    Raises:
        OSError: the disk is full, or the directory cannot be written to.
    """
    text = json.dumps(sorted(answers.items())).encode()
    records.write(directory, key, SUFFIX, text)
