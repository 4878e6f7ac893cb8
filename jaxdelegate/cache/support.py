"""Stored support verdicts: which operators of a graph XLA can run, and why the others stay behind.

To evaluate the rules takes jax. Their verdicts are stored next to the programs, under everything
they depend on, so that a process that loads its programs from the cache does not import jax.
"""

import json
from collections.abc import Mapping

from jaxdelegate.cache import records
from jaxdelegate.cache.directory import PrivateDirectory
from jaxdelegate.cache.key import Key

SUFFIX = ".support"

Verdicts = Mapping[int, str | None]  # by operator: why it stays on the host; None: it is delegated


def read(directory: PrivateDirectory, key: Key) -> Verdicts | None:
    """The verdicts for a graph; None: none are stored."""
    text = records.read(directory, key, SUFFIX)
    if text is None:
        return None
    return {int(index): reason for index, reason in json.loads(text)}


def write(directory: PrivateDirectory, key: Key, verdicts: Verdicts) -> None:
    text = json.dumps(sorted(verdicts.items())).encode()
    records.write(directory, key, SUFFIX, text)
