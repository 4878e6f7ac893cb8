"""Encodes sounds for prompts.

Source: LiteRT-LM 0.18 (runtime/conversation/model_data_processor/gemma4_data_processor.cc).
"""

from collections.abc import Mapping, Sequence
from typing import Any

from jaxdelegate.bundles.bundle import Bundle
from jaxdelegate.bundles.metadata import SOUND_FAMILIES
from jaxdelegate.errors import OptionError
from jaxdelegate.lm.audio.audio_graph import ADAPTER, ENCODER, END, AudioGraph
from jaxdelegate.lm.audio.audio_model import AudioModel, SoundPiece
from jaxdelegate.lm.audio.decoding import samples_of
from jaxdelegate.lm.audio.spectra import log_mel_spectra
from jaxdelegate.lm.contents.content_encoder import ContentEncoder, has_parts, needed_parts
from jaxdelegate.lm.contents.content_prompts import start_token
from jaxdelegate.lm.contents.encoded_content import ContentRules
from jaxdelegate.text import printable

_PARTS = (ENCODER, ADAPTER, END)


class SoundEncoder(ContentEncoder):
    """A bundle's audio encoder. Any thread may use it.

    Attributes:
        graph: the signatures of the encoder and the adapter.
    """

    def __init__(
        self,
        bundle: Bundle,
        options: Mapping[str, Any],
        cache_dir: str | None,
        most_at_once: int = 8,
    ) -> None:
        """Open the audio parts; nothing is compiled yet.

        Args:
            bundle: with an audio encoder.
            options: of JaxDelegate.
            cache_dir: see `Engine`.
            most_at_once: pieces of sounds of a run.

        Raises:
            ModelError: an audio part is something else.
            OptionError: the bundle lacks an audio part, the model's family has no sounds here, or
                an option is wrong.
        """
        parts = needed_parts(bundle, _PARTS, "audio_backend", "sounds")
        rules = _rules(bundle)
        self._sounds = AudioModel(parts, bundle.path, options, cache_dir)
        super().__init__(rules, self._sounds, most_at_once)
        self.graph: AudioGraph = self._sounds.graph

    def _pieces(self, data: bytes) -> Sequence[SoundPiece]:
        return self._sounds.pieces(log_mel_spectra(samples_of(data)))


def takes_sounds(bundle: Bundle) -> bool:
    """Whether a bundle has audio parts of a family that is supported."""

    def needed(bundle: Bundle) -> Sequence[str]:
        _rules(bundle)
        return _PARTS

    return has_parts(bundle, needed)


def _rules(bundle: Bundle) -> ContentRules:
    metadata, where = bundle.metadata, f"audio_backend: {printable(bundle.path)}"
    if metadata.model_type not in SOUND_FAMILIES:
        known = " or ".join(SOUND_FAMILIES)
        raise OptionError(
            f"{where}: expected a model of the family {known}, got {printable(metadata.model_type)}"
        )
    if metadata.proto.llm_model_type.gemma4.skip_mel_spectrogram_extraction:
        raise OptionError(
            f"{where}: expected a model that takes mel spectra, got one that takes samples "
            "(skip_mel_spectrogram_extraction)"
        )
    placeholders = "<start_of_audio>", "<|audio|>"
    before = start_token(metadata, "start_of_audio_token", "<|audio>")
    return ContentRules("audio", "sound", placeholders, before, has_end=True)
