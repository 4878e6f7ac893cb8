"""Keyword spotting in a stream: generated sounds, their features, a stateful network."""

import dataclasses
import functools

import numpy as np

from sample_tasks.tasks import packaged

RATE = 16000  # samples a second
FRAME = 320  # samples per invocation: 20 ms
BANDS = 32  # features of a frame
# A word is three tones, low (0), middle (1) or high (2) relative to the voice.
WORDS = {
    "rise": (0, 1, 2),
    "fall": (2, 1, 0),
    "peak": (0, 2, 0),
    "dip": (2, 0, 2),
    "beep": (1, 1, 1),
}
_OTHERS = ((0, 2, 1), (2, 0, 1), (1, 0, 2), (1, 2, 0), (0, 0, 2), (2, 2, 0), (1, 1, 2))
LABELS = ("silence", "unknown", *WORDS)
_MIN_FRAMES = 5  # in which a word must be the most likely one


@dataclasses.dataclass(frozen=True)
class Spoken:
    """A word and its time in seconds; `unknown` if it is not in `WORDS`."""

    name: str
    start: float
    end: float


@dataclasses.dataclass(frozen=True, eq=False)
class Sound:
    """Samples, float32 [n] from -1 to 1 at `RATE`, and the words in them."""

    samples: np.ndarray
    spoken: tuple[Spoken, ...]


@dataclasses.dataclass(frozen=True)
class Heard:
    """A word that the network heard, its time in seconds, and its best score."""

    name: str
    seconds: float
    score: float


def network() -> bytes:
    """The .tflite file: from the features of a frame [1, BANDS] to scores of `LABELS`.

    Variable tensors hold the state of earlier frames; call `reset_all_variables()` before a new
    sound.
    """
    return packaged("keywords")


def sound(seed: int, seconds: float = 6.0) -> Sound:
    """Words of random voices, with noise; equal for equal seeds."""
    rng = np.random.default_rng([5, seed])
    samples = np.zeros(int(seconds * RATE), np.float32)
    spoken, now = [], rng.uniform(0.2, 0.6)
    while True:
        name, word = _word(rng)
        begin = int(now * RATE)
        if begin + len(word) > len(samples) - RATE // 5:
            break
        samples[begin : begin + len(word)] += word
        spoken.append(Spoken(name, begin / RATE, (begin + len(word)) / RATE))
        now = spoken[-1].end + rng.uniform(0.3, 0.8)
    noise = rng.normal(0, 10 ** rng.uniform(-3, -1.7), len(samples))
    return Sound((samples + noise).astype(np.float32), tuple(spoken))


def features(samples: np.ndarray) -> np.ndarray:
    """Log energies of [n] samples in mel bands, float32 [frames, BANDS], about -1 to 1."""
    frames = samples[: len(samples) // FRAME * FRAME].reshape(-1, FRAME)
    spectrum = np.abs(np.fft.rfft(frames * np.hanning(FRAME), 512)) ** 2
    return np.asarray(np.log10(spectrum @ _bands() + 1e-4) / 3, np.float32)


def heard(scores: np.ndarray) -> tuple[Heard, ...]:
    """The words, in order, in a stream of the network's outputs [frames, labels]."""
    best = scores.argmax(axis=1)
    starts = np.flatnonzero(np.diff(best, prepend=-1))
    ends = [*starts[1:], len(best)]
    words = []
    for start, end in zip(starts, ends, strict=True):
        label = int(best[start])
        if LABELS[label] != "silence" and end - start >= _MIN_FRAMES:
            peak = int(start + scores[start:end, label].argmax())
            seconds = (peak + 1) * FRAME / RATE
            words.append(Heard(LABELS[label], seconds, float(scores[peak, label])))
    return tuple(words)


def _word(rng: np.random.Generator) -> tuple[str, np.ndarray]:
    name = str(rng.choice(LABELS[1:]))
    tones = _OTHERS[rng.integers(len(_OTHERS))] if name == "unknown" else WORDS[name]
    low, step = rng.uniform(350, 700), rng.uniform(1.3, 1.5)
    length = rng.uniform(0.1, 0.16)
    gap = np.zeros(int(RATE * rng.uniform(0.01, 0.03)), np.float32)
    parts: list[np.ndarray] = []
    for tone in tones:
        parts += [_tone(rng, low * step**tone, length * rng.uniform(0.9, 1.1)), gap]
    return name, rng.uniform(0.1, 0.8) * np.concatenate(parts[:-1])


def _tone(rng: np.random.Generator, pitch: float, seconds: float) -> np.ndarray:
    t = np.arange(int(RATE * seconds)) / RATE
    glide = 1 + rng.uniform(-0.03, 0.03) * t / seconds
    phase = 2 * np.pi * pitch * glide * t
    wave = np.sin(phase) + 0.4 * np.sin(2 * phase) + 0.2 * np.sin(3 * phase)
    envelope = np.clip(np.minimum(t, t[::-1]) / 0.01, 0, 1)
    return (0.6 * envelope * wave).astype(np.float32)


@functools.cache
def _bands() -> np.ndarray:
    """[257, BANDS]: overlapping triangles of equal width on the mel scale, 150 Hz to 4 kHz."""
    low, high = (2595 * np.log10(1 + f / 700) for f in (150, 4000))
    edges = 700 * (10 ** (np.linspace(low, high, BANDS + 2) / 2595) - 1)
    pitches = np.arange(257) * RATE / 512
    up = (pitches[:, None] - edges[:-2]) / (edges[1:-1] - edges[:-2])
    down = (edges[2:] - pitches[:, None]) / (edges[2:] - edges[1:-1])
    return np.asarray(np.clip(np.minimum(up, down), 0, 1))
