"""The file format of one stored program: header, description, machine code.

Layout, little endian: magic [8], format version u32, length of the description u32, length of the
rest u64, SHA-256 of the description [32]; then the description as JSON, with the digest of the
rest; then the rest: machine code, and the concatenated call lists of call batches
(call_batching.py).
"""

import dataclasses
import hashlib
import itertools
import json
import math
import struct
import time
from typing import Any

import ml_dtypes  # noqa: F401  (np.dtype("bfloat16") and others)
import numpy as np

from jaxdelegate.cache.key import Key
from jaxdelegate.digests import algorithm_of, digests, is_known

_MAGIC = b"JAXDLGT\0"
_VERSION = 7
_HEADER = struct.Struct("<8sIIQ32s")


class EntryError(ValueError):
    """A file is not an entry, is damaged, or has another format version."""


class UncheckedError(EntryError):
    """A file cannot be read or checked at the moment: it may be a sound entry."""


@dataclasses.dataclass(frozen=True)
class StoredWeight:
    """An argument of the program: a constant as the model stores it, or in another layout.

    `tensor` is the constant's index; None: the elements are in the entry's file of weights.
    """

    digest: str
    dtype: np.dtype
    shape: tuple[int, ...]
    tensor: int | None

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


@dataclasses.dataclass(frozen=True)
class Entry:
    """A program without its weights' elements. Tensors are indices in the subgraph."""

    key: Key
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    states: tuple[int, ...]
    donated: tuple[int, ...]  # positions in `inputs`
    weights: tuple[StoredWeight, ...]
    weights_digest: str | None  # of their file's content; None: all are constants of the model
    code: bytes | memoryview
    call_lists: tuple[bytes | memoryview, ...] = ()  # arguments of the program before the weights
    model_name: str = ""  # for people: of the file that it was first compiled for
    operators: str = ""  # for people: what it computes
    created: float = dataclasses.field(default_factory=time.time)  # seconds since the epoch

    @property
    def file(self) -> str:
        return file_of(self.key)

    @property
    def weights_file(self) -> str | None:
        """The name of the file with its weights; None: it needs none."""
        return None if self.weights_digest is None else f"{self.weights_digest}.weights"


def file_of(key: Key) -> str:
    return f"{key.digest}.program"


def pack(entry: Entry) -> list[bytes]:
    rest = b"".join([entry.code, *entry.call_lists])
    description = {
        "key": entry.key.as_json(),
        "model_name": entry.model_name,
        "operators": entry.operators,
        "created": entry.created,
        "inputs": entry.inputs,
        "outputs": entry.outputs,
        "states": entry.states,
        "donated": entry.donated,
        "weights": [[w.digest, str(w.dtype), w.shape, w.tensor] for w in entry.weights],
        "weights_digest": entry.weights_digest,
        "call_lists": [len(call_list) for call_list in entry.call_lists],
        "digest": digests([memoryview(rest)])[0],
    }
    text = json.dumps(description).encode()
    digest = hashlib.sha256(text).digest()
    header = _HEADER.pack(_MAGIC, _VERSION, len(text), len(rest), digest)
    return [header, text, rest]


def has_another_version(head: bytes) -> bool:
    """Whether a file with this head is an entry of another format version."""
    if len(head) < _HEADER.size:
        return False
    magic, version, *_ = _HEADER.unpack_from(head)
    return bool(magic == _MAGIC and version != _VERSION)


def unpack(content: bytes) -> Entry:
    """An EntryError if it is not an entry, is damaged, or has another format version."""
    if len(content) < _HEADER.size:
        raise EntryError(f"the file is truncated: {len(content)} bytes are shorter than a header")
    magic, version, text_size, rest_size, digest = _HEADER.unpack_from(content)
    if magic != _MAGIC:
        raise EntryError("it is not a stored program")
    if version != _VERSION:
        raise EntryError(f"its format version is {version}, this is version {_VERSION}")
    if len(content) != _HEADER.size + text_size + rest_size:
        raise EntryError(
            f"the file is damaged: it has {len(content)} bytes, but its header says "
            f"{_HEADER.size + text_size + rest_size}"
        )
    body = memoryview(content)[_HEADER.size :]
    if hashlib.sha256(body[:text_size]).digest() != digest:
        raise EntryError("the SHA-256 of its description is wrong")
    try:
        description = json.loads(bytes(body[:text_size]))
        _check_digest(str(description["digest"]), body[text_size:])
        return _entry(description, body[text_size:])
    except EntryError:
        raise
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise EntryError(f"its description cannot be read: {error}") from error


def _check_digest(digest: str, rest: memoryview) -> None:
    algorithm = algorithm_of(digest)
    if not is_known(algorithm):
        raise UncheckedError(f"it cannot be checked: {algorithm} is not installed here")
    if digests([rest], algorithm) != [digest]:
        raise EntryError("the digest of its code is wrong")


def _entry(description: Any, rest: memoryview) -> Entry:
    """Code and call lists are views, since they may be large."""

    def indices(name: str) -> tuple[int, ...]:
        return tuple(int(i) for i in description[name])

    code_size = len(rest) - sum(sizes := indices("call_lists"))
    if code_size < 0 or min(sizes, default=0) < 0:
        raise ValueError("its call lists do not fit the file")
    starts = itertools.accumulate(sizes, initial=code_size)
    call_lists = tuple(rest[at : at + size] for at, size in zip(starts, sizes, strict=False))
    return Entry(
        key=Key.from_json(description["key"]),
        inputs=indices("inputs"),
        outputs=indices("outputs"),
        states=indices("states"),
        donated=indices("donated"),
        weights=tuple(_weight(*row) for row in description["weights"]),
        weights_digest=_checked(description["weights_digest"]),
        code=rest[:code_size],
        call_lists=call_lists,
        model_name=str(description["model_name"]),
        operators=str(description["operators"]),
        created=float(description["created"]),
    )


def _weight(digest: str, dtype: str, shape: list[int], tensor: int | None) -> StoredWeight:
    algorithm_of(digest)
    return StoredWeight(
        digest,
        np.dtype(dtype),
        tuple(int(n) for n in shape),
        None if tensor is None else int(tensor),
    )


def _checked(text: str | None) -> str | None:
    """The digest, which becomes a file's name, after a check that it is one."""
    if text is not None:
        algorithm_of(text)
    return text
