"""A bundle's audio encoder on a device."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxdelegate.device_weights import DeviceWeights
from jaxdelegate.lm.audio.audio_graph import ENCODER, AudioGraph, audio_graph
from jaxdelegate.lm.audio.spectra import BINS
from jaxdelegate.lm.contents.content_model import ContentModel


class SoundPiece(NamedTuple):
    """A part of a sound, as long as a run of the encoder takes, or the rest.

    Attributes:
        key: of the encoder's signature.
        spectra: float32 [frames, bins].
        places: how many it has in a prompt.
    """

    key: str
    spectra: np.ndarray
    places: int

    @property
    def arrays(self) -> list[np.ndarray]:
        """What the embeddings depend on."""
        return [self.spectra]


class AudioModel(ContentModel[AudioGraph]):
    """The encoder with its adapter, and their programs."""

    def __init__(
        self, parts: Mapping[str, Any], name: str, options: Mapping[str, Any], cache_dir: str | None
    ) -> None:
        """Read the models; arguments and errors as `ContentModel`."""
        super().__init__(
            ENCODER,
            parts,
            name,
            options,
            cache_dir,
            lambda signatures: audio_graph(signatures, name, BINS),
        )

    def pieces(self, spectra: np.ndarray) -> list[SoundPiece]:
        """The parts of a sound: float32 [frames, bins]."""
        graph = self.graph
        parts = [spectra[n : n + graph.frames] for n in range(0, len(spectra), graph.frames)]
        return [SoundPiece(graph.key, p, -(-len(p) // graph.frames_of_place)) for p in parts]

    def _columns(self, pieces: Sequence[SoundPiece]) -> list[np.ndarray]:
        spectra = np.zeros((len(pieces), *self.graph.inputs[1:]), np.float32)
        for row, piece in zip(spectra, pieces, strict=True):
            row[: len(piece.spectra)] = piece.spectra
        return [np.array([len(piece.spectra) for piece in pieces], np.int32), spectra]

    def _new_computation(self, weights: DeviceWeights) -> Any:
        from jaxdelegate.lm.audio.audio_computation import AudioComputation  # noqa: PLC0415

        return AudioComputation(self._models, self._view, self.graph, weights)
