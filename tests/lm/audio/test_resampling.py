"""Sounds of other rates, as miniaudio computes them."""

import math

import numpy as np
import pytest

from jaxdelegate.lm.audio.resampling import resampled
from tests.support.audio_models import tone


class _Filter:
    """Two filters of order 2, sample by sample."""

    def __init__(self, share: float) -> None:
        self.parts = []
        w = math.pi * share
        for n in (0, 1):
            q = 1 / (2 * math.cos((1 + 2 * n) * math.pi / 8))
            a = math.sin(w) / (2 * q)
            b = [(1 - math.cos(w)) / 2, 1 - math.cos(w), (1 - math.cos(w)) / 2]
            numbers = np.array([*b, -2 * math.cos(w), 1 - a]) / (1 + a)
            self.parts.append([*numbers.astype(np.float32), np.float32(0), np.float32(0)])

    def __call__(self, x: np.float32) -> np.float32:
        for part in self.parts:
            b0, b1, b2, a1, a2, r1, r2 = part
            y = b0 * x + r1
            part[5], part[6] = b1 * x - a1 * y + r2, b2 * x - a2 * y
            x = y
        return x


def _one_by_one(samples: np.ndarray, old: int, new: int) -> list[np.float32]:
    divisor = math.gcd(old, new)
    step, parts = old // divisor, new // divisor
    low_pass, found = _Filter(min(old, new) / max(old, new)), []
    rest, wait, share, before, after = list(samples), 1, 0, np.float32(0), np.float32(0)
    while True:
        while wait and rest:
            before, after = after, rest.pop(0)
            after = low_pass(after) if old > new else after
            wait -= 1
        if wait:
            return found
        value = before + (after - before) * (np.float32(share) / np.float32(parts))
        found.append(value if old > new else low_pass(value))
        wait, share = divmod(share + step, parts)


@pytest.mark.parametrize("rate", [1000, 8000, 11025, 15999, 22050, 44100, 48000, 96000])
def test_samples_equal_those_of_the_algorithm(rate: int):
    samples = tone(700, rate)[:, 0].astype(np.float32)
    wanted = _one_by_one(samples, rate, 16000)
    found = resampled(samples, rate, 16000)
    assert found.dtype == np.float32
    assert 0 <= len(wanted) - len(found) <= 1
    np.testing.assert_allclose(found, wanted[: len(found)], rtol=0, atol=2e-6)


def test_blocks(monkeypatch: pytest.MonkeyPatch):
    samples = tone(700, 44100)[:, 0].astype(np.float32)
    wanted = resampled(samples, 44100, 16000)
    monkeypatch.setattr("jaxdelegate.lm.audio.resampling._BLOCK", 100)
    np.testing.assert_array_equal(resampled(samples, 44100, 16000), wanted)


# 800 samples have a place more than 799: the places that litert_lm 0.18.1 counts say which it has.
@pytest.mark.parametrize(
    ("rate", "frames", "is_more"),
    [
        (16000, 799, False),
        (16000, 800, True),
        (96000, 4794, False),
        (96000, 4799, True),
        (96000, 4800, True),
        (44100, 2203, False),
        (44100, 2204, False),
        (44100, 2205, True),
        (48000, 2397, False),
        (48000, 2398, True),
        (24000, 1197, False),
        (8000, 399, False),
        (8000, 400, True),
        (11025, 551, False),
        (11025, 552, True),
    ],
)
def test_how_many_samples_there_are(rate: int, frames: int, is_more: bool):
    assert (len(resampled(np.zeros(frames, np.float32), rate, 16000)) >= 800) == is_more
