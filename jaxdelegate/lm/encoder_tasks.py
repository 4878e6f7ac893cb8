"""What the programs of a text encoder do, and the arrays that they take and return."""

import dataclasses

import numpy as np

from jaxdelegate.lm.encoder_graph import EncoderGraph
from jaxdelegate.lm.tasks import Array

_INT, _FLOAT = np.dtype(np.int32), np.dtype(np.float32)


@dataclasses.dataclass(frozen=True)
class EncoderTask:
    """What one program does.

    Attributes:
        key: of the signature that it runs.
        rows: the number of texts.
    """

    key: str
    rows: int


def arguments(graph: EncoderGraph, task: EncoderTask) -> list[Array]:
    """Tokens [rows, length], zeros after those of a text, and how many each text has."""
    return [((task.rows, graph.of_key(task.key).length), _INT), ((task.rows,), _INT)]


def results(graph: EncoderGraph, task: EncoderTask) -> list[Array]:
    """The embeddings [rows, size]."""
    return [((task.rows, graph.of_key(task.key).size), _FLOAT)]
