"""Resamples sounds as LiteRT-LM does: by lines between samples, and a low-pass filter.

Source: miniaudio 0.11 (ma_linear_resampler), which LiteRT-LM's audio preprocessor calls. The filter
is a Butterworth filter of order 4 at half of the lower rate, before the lines if that is the new
one, after them otherwise.
"""

import math

import numpy as np

_BLOCK = 1 << 20


def resampled(samples: np.ndarray, old: int, new: int) -> np.ndarray:
    """A sound of another rate: float32 [n].

    Args:
        samples: float32 [n].
        old: samples in a second.
        new: as many as it gets.
    """
    if old == new:
        return samples
    if old > new:
        samples = _low_pass(samples, new / old)
    count, divisor = _count(len(samples), old, new), math.gcd(old, new)
    step, parts = old // divisor, new // divisor
    found = np.empty(count, np.float32)
    for begin in range(0, count, _BLOCK):
        places = np.arange(begin, min(begin + _BLOCK, count), dtype=np.int64) * step
        index, rest = np.divmod(places, parts)
        after, before = samples[index], np.where(index > 0, samples[index - 1], np.float32(0))
        share = rest.astype(np.float32) / np.float32(parts)
        found[begin : begin + _BLOCK] = before + (after - before) * share
    return found if old > new else _low_pass(found, old / new)


def _count(frames: int, old: int, new: int) -> int:
    """How many samples miniaudio returns: as many as there are, but not more than it announces."""
    announced = frames * new // old
    needed = announced * (old % new) + announced * (old // new) // new
    return min(announced + (needed <= frames), -(-frames * new // old))


def _low_pass(samples: np.ndarray, share: float) -> np.ndarray:
    """Without frequencies above a share of half the rate; other threads run between blocks."""
    from scipy import signal  # noqa: PLC0415 (rarely used)

    sections = np.stack([_section(share, order) for order in (1, 3)]).astype(np.float32)
    found, state = np.empty_like(samples), np.zeros((2, 2), np.float32)
    for begin in range(0, len(samples), _BLOCK):
        block = slice(begin, begin + _BLOCK)
        found[block], state = signal.sosfilt(sections, samples[block], zi=state)
    return found


def _section(share: float, order: int) -> np.ndarray:
    """Two poles of the filter: their polynomials, the denominator's first coefficient being 1."""
    sine, cosine = math.sin(math.pi * share), math.cos(math.pi * share)
    width = sine * math.cos(order * math.pi / 8)
    zeros = (1 - cosine) / 2
    return np.array([zeros, 2 * zeros, zeros, 1 + width, -2 * cosine, 1 - width]) / (1 + width)
