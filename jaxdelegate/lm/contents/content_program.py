"""What the programs of an encoder do, and the arrays that they take and return."""

import dataclasses
from collections.abc import Mapping
from typing import Protocol

import numpy as np

from jaxdelegate.errors import ModelError
from jaxdelegate.function.records import Signature
from jaxdelegate.lm.program_spec import Array
from jaxdelegate.op_lowering.spec import Shape
from jaxdelegate.text import printable

_FLOAT = np.dtype(np.float32)


@dataclasses.dataclass(frozen=True)
class ContentSpec:
    """What one program does.

    Attributes:
        key: of the encoder's signature.
        rows: how many pieces it encodes at once.
        is_end: it computes what follows a content instead, by the signature `key` of that part.
    """

    key: str
    rows: int = 1
    is_end: bool = False


class ContentGraph(Protocol):
    """What an encoder's models compute.

    Attributes:
        end: the key of the signature whose output follows a content; None: nothing does.
        end_part: the part that has it.
        size: how many elements an embedding has.
        encoder_keys: the encoder's signatures that programs use.
    """

    @property
    def encoder_keys(self) -> list[str]: ...

    @property
    def end(self) -> str | None: ...

    @property
    def end_part(self) -> str: ...

    @property
    def size(self) -> int: ...

    def keys(self, key: str, /) -> dict[str, str]:
        """The signatures that a run of the encoder's signature needs, by part."""

    def arguments(self, key: str, /) -> list[Array]:
        """The arrays that a piece has."""

    def shape(self, key: str, /) -> Shape:
        """[places, size] of the embeddings of a piece."""


def keys(graph: ContentGraph, spec: ContentSpec) -> dict[str, str]:
    """The signatures that a program runs, by part."""
    return {graph.end_part: spec.key} if spec.is_end else graph.keys(spec.key)


def arguments(graph: ContentGraph, spec: ContentSpec) -> list[Array]:
    """The arrays that a program takes after its weights."""
    own = [] if spec.is_end else graph.arguments(spec.key)
    return [((spec.rows, *shape), dtype) for shape, dtype in own]


def results(graph: ContentGraph, spec: ContentSpec) -> list[Array]:
    """What a program returns: float32 [rows, places, size], or [1, size] of an end."""
    if spec.is_end:
        return [((1, graph.size), _FLOAT)]
    return [((spec.rows, *graph.shape(spec.key)), _FLOAT)]


def end_signature(signatures: Mapping[str, Signature], size: int, source: str) -> str:
    """The key of the signature that computes what follows a content. A ModelError: none does.

    Args:
        signatures: of the part.
        size: how many values it returns.
        source: the part, for messages.
    """
    for key, signature in signatures.items():
        if not signature.inputs and [i.shape[-1:] for i in signature.outputs.values()] == [(size,)]:
            return key
    got = printable("; ".join(map(str, signatures.values()))) or "none"
    raise ModelError(
        f"{printable(source)}: expected a signature without inputs that returns {size} values, got "
        f"{got}"
    )
