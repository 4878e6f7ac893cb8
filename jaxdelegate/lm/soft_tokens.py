"""Places of a prompt that have no token: their embeddings are a part of an image."""

from collections.abc import Iterator, Sequence
from typing import Protocol, Self

import numpy as np

_ROW_BITS = 20


class Embedded(Protocol):
    """What soft tokens are the places of.

    Attributes:
        digest: equal for equal content.
        count: how many places it has.
        embeddings: float32 [count, size]; None: not computed yet.
    """

    digest: bytes
    count: int
    embeddings: np.ndarray | None


class SoftToken(int):
    """One place: a negative number among ids, equal for equal places of equal content.

    So caches compare content where they compare ids.
    """

    _content: Embedded
    _row: int

    @classmethod
    def of(cls, content: Embedded, row: int) -> Self:
        """The place of a row of the embeddings."""
        token = cls(~(int.from_bytes(content.digest) << _ROW_BITS | row))
        token._content, token._row = content, row
        return token

    @property
    def content(self) -> Embedded:
        """What it is a place of."""
        return self._content

    @property
    def embedding(self) -> np.ndarray:
        """float32 [size]; the content's embeddings are computed before a program needs them."""
        assert self._content.embeddings is not None
        row: np.ndarray = self._content.embeddings[self._row]
        return row


def soft_tokens(content: Embedded) -> Iterator[SoftToken]:
    """All places of a content, in order."""
    return (SoftToken.of(content, row) for row in range(content.count))


def fill_embeddings(rows: np.ndarray, ids: Sequence[int]) -> None:
    """Write the embeddings of those ids that are soft tokens: float32 [len(ids) or more, size]."""
    for row, token in zip(rows, ids, strict=False):
        if isinstance(token, SoftToken):
            row[:] = token.embedding


def as_tokens(ids: Sequence[int]) -> list[int]:
    """The ids as programs have them: -1 stands for each soft token."""
    return [max(i, -1) for i in ids]
