"""Stored support verdicts: which operators of a graph XLA can run, and why the others stay behind.

Evaluating rules requires jax. Their verdicts are stored next to the programs, under everything
they depend on, so that a process that loads its programs from the cache does not import jax.
"""

import json
from collections.abc import Mapping

from jaxdelegate.cache.records import Kind

Verdicts = Mapping[int, str | None]  # by operator: why it stays on the host; None: it is delegated


def _encoded(verdicts: Verdicts) -> bytes:
    return json.dumps(sorted(verdicts.items())).encode()


def _decoded(text: bytes) -> Verdicts:
    return {int(index): reason for index, reason in json.loads(text)}


VERDICTS = Kind("support verdicts", ".support", _encoded, _decoded)
