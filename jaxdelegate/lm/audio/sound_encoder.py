"""Encodes sounds for prompts.

Source: LiteRT-LM 0.18 (runtime/conversation/model_data_processor/gemma4_data_processor.cc).
"""

from collections.abc import Mapping, Sequence
from typing import Any

from jaxdelegate.bundles.bundle import Bundle
from jaxdelegate.bundles.metadata import SOUND_FAMILIES
from jaxdelegate.errors import OptionError
from jaxdelegate.lm.audio.audio_graph import ADAPTER, ENCODER, END
from jaxdelegate.lm.audio.audio_model import AudioModel, SoundPiece
from jaxdelegate.lm.audio.decoding import samples_of
from jaxdelegate.lm.audio.spectra import log_mel_spectra
from jaxdelegate.lm.contents.content_encoder import ContentEncoder, has_parts, needed_parts
from jaxdelegate.lm.contents.content_prompts import embedding_family, start_token
from jaxdelegate.lm.contents.encoded_content import ContentRules
from jaxdelegate.text import printable


class SoundEncoder(ContentEncoder):
    """A bundle's audio encoder. Any thread may use it."""

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
        needed_parts(bundle, [ENCODER, ADAPTER], "audio_backend", "sounds")
        rules = _rules(bundle)
        parts = needed_parts(bundle, _needed(bundle), "audio_backend", "sounds")
        self._sounds = AudioModel(parts, bundle.path, options, cache_dir)
        super().__init__(rules, self._sounds, most_at_once)

    def _pieces(self, data: bytes, most_places: int | None) -> Sequence[SoundPiece]:  # noqa: ARG002
        return self._sounds.pieces(log_mel_spectra(samples_of(data)))


def takes_sounds(bundle: Bundle) -> bool:
    """Whether a bundle has audio parts of a family that is supported."""
    return has_parts(bundle, _needed)


def _needed(bundle: Bundle) -> Sequence[str]:
    return [ENCODER, ADAPTER, *([END] if _rules(bundle).has_end else [])]


def _rules(bundle: Bundle) -> ContentRules:
    where = f"audio_backend: {printable(bundle.path)}"
    if (embeds := embedding_family(bundle, "audio_backend")) is not None:
        _check(embeds, where)
        if bundle.embedding_metadata().HasField("audio_preprocessor"):
            raise OptionError(f"{where}: expected spectra as of gemma4, got an audio_preprocessor")
        return ContentRules("audio", "sound", (), "", has_end=END in bundle.models)
    metadata = bundle.metadata
    if metadata.model_type not in SOUND_FAMILIES:
        known = " or ".join(SOUND_FAMILIES)
        raise OptionError(
            f"{where}: expected a model of the family {known}, got {printable(metadata.model_type)}"
        )
    _check(metadata.proto.llm_model_type.gemma4, where)
    placeholders = "<start_of_audio>", "<|audio|>"
    before = start_token(metadata, "start_of_audio_token", "<|audio>")
    return ContentRules("audio", "sound", placeholders, before, has_end=True)


def _check(declared: Any, where: str) -> None:
    if declared.skip_mel_spectrogram_extraction:
        raise OptionError(
            f"{where}: expected a model that takes mel spectra, got one that takes samples "
            "(skip_mel_spectrogram_extraction)"
        )
