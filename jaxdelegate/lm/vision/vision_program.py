"""What the programs of a vision encoder do, and the arrays that they take and return."""

import dataclasses

import numpy as np

from jaxdelegate.lm.program_spec import Array
from jaxdelegate.lm.vision.vision_graph import ADAPTER, END, VisionGraph

_INT, _FLOAT = np.dtype(np.int32), np.dtype(np.float32)


@dataclasses.dataclass(frozen=True)
class VisionSpec:
    """What one program does.

    Attributes:
        key: of the encoder's signature.
        rows: how many images it encodes at once.
        is_end: it computes what follows an image instead, by the signature `key` of that part.
    """

    key: str
    rows: int = 1
    is_end: bool = False


def keys(graph: VisionGraph, spec: VisionSpec) -> dict[str, str]:
    """The signatures that a program runs, by part."""
    if spec.is_end:
        return {END: spec.key}
    return {"": spec.key, ADAPTER: graph.step(spec.key).adapter}


def arguments(graph: VisionGraph, spec: VisionSpec) -> list[Array]:
    """The arrays that a program takes after its weights: counts, images, positions of patches."""
    if spec.is_end:
        return []
    step = graph.step(spec.key)
    own = [((), _INT), (step.images.shape[1:], _FLOAT)]
    if step.positions is not None:
        own.append((step.positions.shape[1:], _INT))
    return [((spec.rows, *shape), dtype) for shape, dtype in own]


def results(graph: VisionGraph, spec: VisionSpec) -> list[Array]:
    """What a program returns: float32 [rows, places, size], or [1, size] of an end."""
    if spec.is_end:
        return [((1, graph.size), _FLOAT)]
    return [((spec.rows, *graph.step(spec.key).embeddings.shape[-2:]), _FLOAT)]
