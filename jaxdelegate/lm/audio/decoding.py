"""Files of sounds to samples. They are untrusted: sizes are checked before anything is decoded.

Source: LiteRT-LM 0.18 (runtime/components/preprocessor/audio_preprocessor_miniaudio.cc), which
averages channels, then resamples.
"""

import dataclasses

import numpy as np

from jaxdelegate.errors import GenerationError
from jaxdelegate.lm.audio.mp3_file import as_miniaudio, with_all_frames
from jaxdelegate.lm.audio.resampling import resampled
from jaxdelegate.lm.audio.wave_file import WaveFile, is_wave, wave_file
from jaxdelegate.lm.contents.file_decoder import FileDecoder
from jaxdelegate.lm.contents.message_contents import MOST_BYTES
from jaxdelegate.optional import optional_module

RATE = 16000
MOST_SECONDS = 1200
MOST_VALUES = 1 << 25  # of all channels
_MOST_CHANNELS, _MOST_RATE = 254, 384000  # of miniaudio
_FORMATS = ("FLAC", "MP3", "WAV", "WAVEX")  # that soundfile decodes here
# An MP3 of the most values takes two seconds.
_DECODER = FileDecoder("audio/decoding_script.py", "sound", 10, "send a part of it")
_SIGNATURES = (b"fLaC", b"ID3", b"RIFF", *(bytes([0xFF, n]) for n in range(0xE0, 0x100)))


def samples_of(data: bytes) -> np.ndarray:
    """The samples of a sound's file: float32 [n], from -1 to 1 if it is not too loud, 16 kHz.

    Raises:
        GenerationError: the file is too large, too long or damaged, or of another format.
        OptionError: soundfile is not installed, and the format needs it.
    """
    sound = _opened(data)
    values = sound.values()
    if not len(values):
        raise _wrong("expected samples, got none")
    if not np.isfinite(values).all():
        raise _wrong("expected finite samples, got some that are infinite or not a number")
    return resampled(values.sum(axis=1) / np.float32(sound.channels), sound.rate, RATE)


def seconds_of(data: bytes) -> float:
    """How long a sound's file declares to be. Errors as `samples_of`."""
    sound = _opened(data)
    return sound.frames / sound.rate


@dataclasses.dataclass(frozen=True)
class _Encoded:
    """A file that soundfile decodes; see `WaveFile`.

    `has_all_frames`: of a file of `with_all_frames`; None: it is not an MP3.
    """

    data: bytes
    has_all_frames: bool | None
    rate: int
    channels: int
    frames: int

    def values(self) -> np.ndarray:
        _, found = _DECODER.answer(self.data, {"is_decoded": True})
        values = found.view(np.float32).reshape(-1, self.channels)
        if self.has_all_frames is None:
            return values
        return as_miniaudio(values, has_all_frames=self.has_all_frames)


def _opened(data: bytes) -> WaveFile | _Encoded:
    """A sound of which only the header is read."""
    if len(data) > MOST_BYTES:
        raise _wrong(f"expected at most {MOST_BYTES} bytes, got {len(data)}: send a smaller file")
    sound = (wave_file(data) if is_wave(data) else None) or _by_soundfile(data)
    for what, value, most in (
        ("channels", sound.channels, _MOST_CHANNELS),
        ("samples in a second", sound.rate, _MOST_RATE),
    ):
        if not 0 < value <= most:
            raise _wrong(f"expected 1 to {most} {what}, got {value}")
    if sound.frames > MOST_SECONDS * sound.rate:
        raise _wrong(
            f"expected at most {MOST_SECONDS} seconds, got {sound.frames / sound.rate:.1f}: send "
            "a part of it"
        )
    if (count := sound.frames * sound.channels) > MOST_VALUES:
        raise _wrong(
            f"expected at most {MOST_VALUES} samples of all channels, got {count}: send fewer "
            "channels, or a lower rate"
        )
    return sound


def _by_soundfile(data: bytes) -> _Encoded:
    if not data.startswith(_SIGNATURES):
        raise _wrong("expected a file of the format WAV, FLAC or MP3")
    optional_module("soundfile", "lm")
    whole = with_all_frames(data)
    data = whole or data
    (kind, *header), _ = _DECODER.answer(data, {"is_decoded": False})
    if kind not in _FORMATS:
        raise _wrong(f"expected a file of the format WAV, FLAC or MP3, got {kind}")
    return _Encoded(data, None if kind != "MP3" else whole is not None, *header)


def _wrong(problem: str) -> GenerationError:
    return GenerationError(f"the sound: {problem}")
