"""What an audio encoder takes: logarithms of mel spectra.

Source: LiteRT-LM 0.18 (runtime/components/preprocessor/audio_preprocessor_miniaudio.cc,
mel_filterbank.cc), and what gemma4_data_processor.cc configures.
"""

import functools
import math

import numpy as np

from jaxdelegate.lm.audio.decoding import RATE

BINS = 128
HOP = 160  # samples between frames
_FRAME, _FFT, _FLOOR = 320, 512, np.float32(1e-3)
_BLOCK = 1024  # frames


def log_mel_spectra(samples: np.ndarray) -> np.ndarray:
    """float32 [frames, 128]: a frame for each 10 ms, the first one around the beginning.

    A rest that does not fill a frame is left out; shorter sounds have one frame.

    Args:
        samples: float32 [n], of 16 kHz.
    """
    padded = np.pad(samples, (HOP, max(HOP - len(samples), 0)))
    frames = np.lib.stride_tricks.sliding_window_view(padded, _FRAME)[::HOP]
    blocks = [_spectra(frames[n : n + _BLOCK]) for n in range(0, len(frames), _BLOCK)]
    return np.concatenate(blocks)


def _spectra(frames: np.ndarray) -> np.ndarray:
    magnitudes = np.abs(np.fft.rfft(frames * _window(), _FFT))
    mel = (magnitudes @ _filters()).astype(np.float32)
    found: np.ndarray = np.log(mel + _FLOOR)
    return found


@functools.cache
def _window() -> np.ndarray:
    """Hann's, of which the next period would begin after the frame; in float32 as there."""
    turns = np.float32(2 * np.pi / _FRAME) * np.arange(_FRAME, dtype=np.float32)
    found: np.ndarray = np.float32(0.5) - np.float32(0.5) * np.cos(turns)
    return found


@functools.cache
def _filters() -> np.ndarray:
    """float64 [257, 128]: triangles of equal width on the mel scale, from 0 to half the rate."""
    most = math.log1p(RATE / 2 / 700)
    mel = np.log1p(np.linspace(0, RATE / 2, _FFT // 2 + 1) / 700) / most * (BINS + 1) - 1
    found: np.ndarray = np.maximum(1 - np.abs(mel[:, None] - np.arange(BINS)), 0)
    return found
