"""Small files next to programs: text under a key, preceded by a digest of both.

With them a process that loads its programs from the cache needs neither jax nor the model:

* Support verdicts: which operators of a graph XLA can run, and why the others stay on the host.
  Evaluating rules requires jax.
* Start records: what an interpreter needs to run one stored program. A model has one if its main
  subgraph is a single stored program. The key covers the whole model file.
* Signatures: what is known of a model without its operators (`lm.model_file`).
"""

import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from jaxdelegate.cache.directory import PrivateDirectory
from jaxdelegate.cache.key import Key
from jaxdelegate.program import StoredTensor

SIGNATURES = ".signatures"
_DIGEST_SIZE = hashlib.sha256().digest_size

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Kind(Generic[T]):
    """A kind of records."""

    name: str  # for messages
    suffix: str  # of its files
    encoded: Callable[[T], bytes]  # the text of a record
    # The record of a text; a ValueError, TypeError, LookupError or AttributeError: it is none.
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


Verdicts = Mapping[int, str | None]  # by operator: why it stays on the host; None: it is delegated


VERDICTS: Kind[Verdicts] = Kind(
    "support verdicts",
    ".support",
    lambda verdicts: json.dumps(sorted(verdicts.items())).encode(),
    lambda text: {int(index): reason for index, reason in json.loads(text)},
)


@dataclasses.dataclass(frozen=True)
class StartRecord:
    """Inputs and outputs are those of the main subgraph."""

    program: str  # its file's name
    inputs: tuple[StoredTensor, ...]
    outputs: tuple[StoredTensor, ...]
    constants: dict[int, tuple[int, int]]  # offset and bytes in the model file, by tensor
    nodes: tuple[tuple[int, str, int, int], ...]  # index, operator, its code and version


def _start(text: bytes) -> StartRecord:
    row = json.loads(text)
    return StartRecord(
        program=row["program"],
        inputs=tuple(map(_tensor, row["inputs"])),
        outputs=tuple(map(_tensor, row["outputs"])),
        constants={int(i): (start, nbytes) for i, start, nbytes in row["constants"]},
        nodes=tuple((index, op, code, version) for index, op, code, version in row["nodes"]),
    )


def _start_text(record: StartRecord) -> bytes:
    row = dataclasses.asdict(record)
    row["constants"] = [[i, *place] for i, place in record.constants.items()]
    return json.dumps(row).encode()


def _tensor(row: dict[str, Any]) -> StoredTensor:
    values: Any = {k: tuple(v) if isinstance(v, list) else v for k, v in row.items()}
    return StoredTensor(**values)


STARTS = Kind("start record", ".start", _start_text, _start)
