"""The key of a stored program: named parts, so that a miss can report which of them changed."""

import dataclasses
import enum
import functools
import hashlib
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxdelegate.digests import array_digests

_TEXT = 100  # characters of a part's text that are kept, for people


@dataclasses.dataclass(frozen=True)
class Part:
    digest: str
    text: str

    @classmethod
    def of(cls, value: Any) -> "Part":
        """The part for a value of types that JSON or `_plain` knows; a TypeError for others."""
        text = json.dumps(value, default=_plain, sort_keys=True, separators=(",", ":"))
        return cls(hashlib.sha256(text.encode()).hexdigest()[:32], text[:_TEXT])


@dataclasses.dataclass(frozen=True)
class Key:
    parts: Mapping[str, Part]

    @functools.cached_property
    def digest(self) -> str:
        """The entry's name: 64 hexadecimal digits."""
        lines = [f"{name}={part.digest}" for name, part in sorted(self.parts.items())]
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()

    def differing_parts(self, other: "Key") -> list[str]:
        names = {*self.parts, *other.parts}
        return sorted(n for n in names if self._digest_of(n) != other._digest_of(n))

    def _digest_of(self, name: str) -> str | None:
        part = self.parts.get(name)
        return None if part is None else part.digest

    def as_json(self) -> dict[str, list[str]]:
        """Digest and text of each part by name, as an entry stores them."""
        return {name: [part.digest, part.text] for name, part in self.parts.items()}

    @classmethod
    def from_json(cls, value: Any) -> "Key":
        """A ValueError, AttributeError or TypeError if the value has another form."""
        return cls({str(n): Part(str(digest), str(text)) for n, (digest, text) in value.items()})


def _plain(value: Any) -> Any:
    """A JSON value for a type that JSON does not know, the same in every process.

    A TypeError for other types, which might print differently next time.
    """
    if isinstance(value, np.dtype):  # the most frequent type
        return dtype_name(value)
    if isinstance(value, np.generic | np.ndarray):
        return _plain_numbers(value)
    if isinstance(value, frozenset | set | Mapping):
        return _plain_collection(value)
    if isinstance(value, bytes | memoryview):
        return {"bytes": hashlib.sha256(value).hexdigest()}
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    if dataclasses.is_dataclass(value):
        return _plain_record(value)
    raise TypeError(f"{type(value).__name__} cannot be part of a cache key")


def _plain_numbers(value: np.generic | np.ndarray) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    return [dtype_name(value.dtype), list(value.shape), array_digests([value])[0]]


def _plain_collection(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    return sorted(json.dumps(v, default=_plain) for v in value)


def _plain_record(record: Any) -> list[Any]:
    cls: Any = type(record)
    return [cls.__qualname__, {name: getattr(record, name) for name in field_names(cls)}]


@functools.cache
def field_names(cls: type) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(cls))


@functools.cache
def dtype_name(dtype: np.dtype) -> str:
    """`str(dtype)`, cached: keys contain many."""
    return str(dtype)
