"""Logarithms of mel spectra."""

import math
from collections.abc import Sequence

import numpy as np
import pytest

from jaxdelegate.lm.audio import spectra
from jaxdelegate.lm.audio.spectra import log_mel_spectra
from tests.support.audio_models import tone

TIME = np.arange(4000) / 16000
SWEEP = 0.3 * np.sin(2 * np.pi * 440 * TIME)
SWEEP = (SWEEP + 0.2 * np.sin(2 * np.pi * (1200 + 900 * TIME) * TIME)).astype(np.float32)
AT = [0, 7, 19, 40, 77, 126, 127]
# What Gemma4AudioFeatureExtractor of transformers 5.20 computes: its triangles are straight over
# frequencies, those of LiteRT-LM over mels, which changes magnitudes by half a percent.
TRANSFORMERS = {
    0: [-6.907755, 0.322538, 1.255688, -1.451653, -0.942201, -1.633998, -1.620788],
    1: [-6.907755, -4.07215, -1.661249, -4.368361, -6.582985, -6.89762, -6.897712],
    12: [-6.907755, -4.270862, -1.656704, -4.798322, -6.357022, -6.901808, -6.902845],
    20: [-6.907755, -3.979329, -1.666187, -4.922745, -6.222788, -6.895302, -6.895437],
}


def test_spectra_are_near_those_of_transformers():
    found = log_mel_spectra(SWEEP)
    assert found.dtype == np.float32
    assert found.shape == (25, 128)
    for frame, values in TRANSFORMERS.items():
        np.testing.assert_allclose(np.exp(found[frame, AT]), np.exp(values), rtol=0.006)


def assert_equal_magnitudes(found: np.ndarray, wanted: Sequence[float]) -> None:
    """Sums of float32 differ by their rounding, of which logarithms of quiet bins are many times.

    The loudest bin has a magnitude of 30.
    """
    np.testing.assert_allclose(np.exp(found), np.exp(wanted), rtol=1e-5, atol=2e-6)


def _mel(frequency: float) -> float:
    return 2595 * math.log10(1 + frequency / 700)


def _triangle(bin_: int, frequency: float) -> float:
    low, middle, high = ((bin_ + n) * _mel(8000) / 129 for n in range(3))
    at = _mel(frequency)
    return max(0, min((at - low) / (middle - low), (high - at) / (high - middle)))


def _by_definition(samples: np.ndarray, frame: int) -> list[float]:
    begin = 160 * frame - 160
    part = [samples[n] if 0 <= n < len(samples) else 0.0 for n in range(begin, begin + 320)]
    part = part * (0.5 - 0.5 * np.cos(np.pi * np.arange(320) / 160))
    turns = np.exp(-2j * np.pi * np.outer(np.arange(257), np.arange(320)) / 512)
    magnitudes = np.abs(turns @ part)
    filters = [[_triangle(b, f * 31.25) for f in range(257)] for b in range(128)]
    return [math.log(np.dot(row, magnitudes) + 1e-3) for row in filters]


@pytest.mark.parametrize("frame", [0, 3, 24])
def test_spectra_equal_the_definition(frame: int):
    found = log_mel_spectra(SWEEP)[frame]
    assert_equal_magnitudes(found, _by_definition(SWEEP, frame))


@pytest.mark.parametrize(
    ("samples", "frames"), [(1, 1), (159, 1), (160, 1), (319, 1), (320, 2), (799, 4), (800, 5)]
)
def test_how_many_frames_there_are(samples: int, frames: int):
    assert log_mel_spectra(np.ones(samples, np.float32)).shape == (frames, 128)


def test_blocks(monkeypatch: pytest.MonkeyPatch):
    sound = tone(5000)[:, 0].astype(np.float32)
    wanted = log_mel_spectra(sound)
    monkeypatch.setattr(spectra, "_BLOCK", 7)
    np.testing.assert_allclose(log_mel_spectra(sound), wanted, rtol=1e-6)
