"""An image or a sound of a prompt, and its embeddings as soon as they are computed."""

import dataclasses
import hashlib
from collections.abc import Sequence
from typing import Protocol

import numpy as np


@dataclasses.dataclass(frozen=True)
class ContentRules:
    """How a family writes a kind of contents.

    Attributes:
        kind: the type of its parts in messages: "image" or "audio".
        noun: what it is called in errors.
        placeholders: the texts that stand for one in a rendered template.
        before: what replaces a placeholder, before the content.
        after: what follows the content.
        has_end: whether the embedding of another part, for example `end_of_vision`, follows it.
    """

    kind: str
    noun: str
    placeholders: tuple[str, ...]
    before: str
    after: str = ""
    has_end: bool = False


class Piece(Protocol):
    """What a row of a run of an encoder takes.

    Attributes:
        key: of the encoder's signature.
        arrays: what the row depends on.
        places: how many it has in a prompt.
    """

    @property
    def key(self) -> str: ...

    @property
    def arrays(self) -> Sequence[np.ndarray]: ...

    @property
    def places(self) -> int: ...


class EncodedContent:
    """An image or a sound whose places are in prompts; see `Embedded`.

    Attributes:
        rules: of its kind.
        pieces: what the encoder takes; None: it is encoded.
        digest: of the pieces.
        count: how many places it has, what follows it included.
        embeddings: float32 [count, size]; None: not computed yet.
    """

    def __init__(self, rules: ContentRules, pieces: Sequence[Piece]) -> None:
        """Encode nothing yet."""
        self.rules = rules
        self.pieces: Sequence[Piece] | None = pieces
        self.count = sum(piece.places for piece in pieces) + rules.has_end
        self.embeddings: np.ndarray | None = None
        found = hashlib.sha256()
        for piece in pieces:
            found.update(piece.key.encode())
            for array in piece.arrays:
                found.update(np.ascontiguousarray(array).data)
        self.digest = found.digest()[:16]
