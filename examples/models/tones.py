"""An audio model without training, built in memory, for examples and tests."""

import numpy as np

from jaxdelegate.op_lowering.options import FullyConnectedOptions, ReducerOptions, ReshapeOptions
from jaxdelegate.testing.builder import ModelBuilder

_FRAME, _FFT = 1000, 1024  # samples; LiteRT's transform requires a power of two
_BINS = _FFT // 2 + 1
_GAIN, _THRESHOLD = 0.05, 200.0  # of magnitudes summed over a band; noise and leakage stay below


def tone_detector(*, samples: int = 144000, bands: int = 16) -> bytes:
    """A classifier of audio: which bands of frequency contain a tone; the file fixes batch 1.

    Samples [1, samples] in [-1, 1] to scores [1, bands] in [0, 1], both float32. Band i of audio at
    `rate` Hz is centered at (i + 0.5) / bands * rate / 2 Hz. A sine wave of amplitude 0.5 that
    fills the window scores above 0.9 in its band.

    Args:
        samples: the window, a multiple of 1000; 144000 are 3 s at 48 kHz.
        bands: how many, a divisor of 512.

    Returns:
        The file's content: 6 operators.
    """
    builder, frames = ModelBuilder("tone detector"), samples // _FRAME
    audio = builder.input((1, samples), np.float32, "audio")
    framed = builder.tensor((frames, 1, _FRAME), name="frames")
    spectrum = builder.tensor((frames, 1, _BINS), np.complex64, "spectrum")
    magnitudes = builder.tensor((frames, 1, _BINS), name="magnitudes")
    mean = builder.tensor((1, _BINS), name="mean_magnitudes")
    logits, scores = (builder.tensor((1, bands), name=name) for name in ("logits", "scores"))
    shape = (frames, 1, _FRAME)
    target = builder.constant(np.array(shape, np.int32))
    length = builder.constant(np.array([1, _FFT], np.int32))
    axis = builder.constant(np.array([0], np.int32))
    weights = builder.constant(_weights(bands), "bands")
    bias = builder.constant(np.full(bands, -_GAIN * _THRESHOLD, np.float32), "threshold")
    builder.operator("RESHAPE", [audio, target], [framed], ReshapeOptions(new_shape=shape))
    builder.operator("RFFT2D", [framed, length], [spectrum])
    builder.operator("COMPLEX_ABS", [spectrum], [magnitudes])
    builder.operator("MEAN", [magnitudes, axis], [mean], ReducerOptions(keep_dims=False))
    builder.operator("FULLY_CONNECTED", [mean, weights, bias], [logits], FullyConnectedOptions())
    builder.operator("LOGISTIC", [logits], [scores])
    builder.outputs(scores)
    return builder.build()


def tones(*, seconds: int, rate: int = 48000, bands: int = 16) -> np.ndarray:
    """Audio for the detector: sine waves of 3 s, one after the other in the middle of each band.

    Returns:
        [seconds * rate], float64, in [-1, 1].
    """
    t = np.arange(seconds * rate) / rate
    band = t // 3 % bands
    return np.sin(2 * np.pi * (band + 0.5) / bands * rate / 2 * t)


def _weights(bands: int) -> np.ndarray:
    """[bands, bins]: each band sums its bins; the last bin belongs to none."""
    weights = np.zeros((bands, _BINS), np.float32)
    weights[:, :-1] = _GAIN * np.repeat(np.eye(bands), (_BINS - 1) // bands, axis=1)
    return weights
