"""Fourier transforms and audio features in float64, as the kernels compute them."""

import math

import numpy as np

from jaxdelegate.op_lowering.records.custom import CustomOptions
from jaxdelegate.op_lowering.records.record import NoOptions
from jaxdelegate.op_lowering.signal.options import AudioSpectrogramOptions, MfccOptions
from jaxdelegate.op_lowering.spec import Shape, Specs
from jaxdelegate.reference.kernel import Array, Kernel


def _check(inputs: Specs, dtype: type[np.generic]) -> None:
    if inputs[0].is_quantized or inputs[0].dtype != dtype:
        raise TypeError(f"{inputs[0].name!r} is {inputs[0].dtype}, not {np.dtype(dtype)}")


# --- RFFT2D and IRFFT2D: signal or spectrum, lengths of the transform along H and W ---


def rfft2d_shape(_o: NoOptions, inputs: Specs) -> tuple[Shape | None, ...]:
    """[..., length H, length W / 2 + 1]; None where the lengths are not constant."""
    x, length = inputs[:2]
    if length.const is None:
        return (None,)
    return ((*x.shape[:-2], int(length.const[0]), int(length.const[1]) // 2 + 1),)


def rfft2d(_o: NoOptions, inputs: Specs, outputs: Specs, x: Array, length: Array) -> tuple[Array]:
    """The signal is cropped or zero-padded to the lengths, as in kernels/rfft2d.cc."""
    _check(inputs, np.float32)
    n_rows, n_columns = (int(n) for n in length)
    spectrum = np.fft.rfft2(x.astype(np.float64), (n_rows, n_columns))
    return (spectrum.astype(outputs[0].dtype),)


def irfft2d_shape(_o: CustomOptions, inputs: Specs) -> tuple[Shape | None, ...]:
    """[..., length H, length W]; None where the lengths are not constant."""
    x, length = inputs[:2]
    if length.const is None:
        return (None,)
    return ((*x.shape[:-2], int(length.const[0]), int(length.const[1])),)


def irfft2d(
    _o: CustomOptions, inputs: Specs, outputs: Specs, x: Array, length: Array
) -> tuple[Array]:
    """tf.signal.irfft2d; kernels/irfft2d.cc differs if no real signal has the spectrum."""
    _check(inputs, np.complex64)
    n_rows, n_columns = (int(n) for n in length)
    signal = np.fft.irfft2(x.astype(np.complex128), (n_rows, n_columns))
    return (signal.astype(outputs[0].dtype),)


# --- AudioSpectrogram ---


def audio_spectrogram_shape(o: AudioSpectrogramOptions, inputs: Specs) -> tuple[Shape | None, ...]:
    """[samples, channels] -> [channels, windows that fit, bins]."""
    n_samples, n_channels = inputs[0].shape
    beyond_first = n_samples - o.window_size
    n_frames = 0 if beyond_first < 0 else 1 + beyond_first // o.stride
    return ((n_channels, n_frames, (1 << max(o.window_size - 1, 0).bit_length()) // 2 + 1),)


def audio_spectrogram(
    o: AudioSpectrogramOptions, inputs: Specs, outputs: Specs, x: Array
) -> tuple[Array]:
    """The spectrum of each window, weighted by a periodic Hann window (spectrogram.cc)."""
    _check(inputs, np.float32)
    n_channels, n_frames, n_bins = outputs[0].shape
    i = np.arange(o.window_size if n_frames else 0)
    hann = 0.5 - 0.5 * np.cos(2 * math.pi * i / o.window_size)
    y = np.empty((n_channels, n_frames, n_bins), np.float32)
    for frame in range(n_frames):
        start = frame * o.stride
        window = x[start : start + o.window_size].astype(np.float64) * hann[:, np.newaxis]
        bins = np.fft.rfft(window, 2 * (n_bins - 1), axis=0)
        y[:, frame] = np.square(bins.real).T + np.square(bins.imag).T
    return (y if o.magnitude_squared else np.sqrt(y),)


# --- Mfcc: squared magnitudes [channels, frames, bins], sample rate ---


def mfcc_shape(o: MfccOptions, inputs: Specs) -> tuple[Shape | None, ...]:
    """[channels, frames, coefficients]."""
    return ((*inputs[0].shape[:2], o.dct_coefficient_count),)


def mfcc(o: MfccOptions, inputs: Specs, outputs: Specs, x: Array, rate: Array) -> tuple[Array]:
    """Mel-frequency cepstral coefficients (kernels/internal/mfcc.cc, mfcc_dct.cc)."""
    _check(inputs, np.float32)
    n = o.filterbank_channel_count
    bands = _mel_filterbank(o, x.astype(np.float64), float(rate.reshape(())))
    if bands is None:
        return (np.zeros(outputs[0].shape, np.float32),)
    logs = np.log(np.maximum(bands, 1e-12))
    y = np.empty(outputs[0].shape, np.float32)
    for i in range(o.dct_coefficient_count):
        cosine = math.sqrt(2 / n) * np.cos(i * math.pi / n * (np.arange(n) + 0.5))
        y[..., i] = logs @ cosine
    return (y,)


def _mel_filterbank(o: MfccOptions, x: Array, rate: float) -> Array | None:
    """Magnitudes summed into mel channels; None where the spectrum ends below the upper limit.

    The two channels on either side share each bin (mfcc_mel_filterbank.cc).
    """
    n_bins, n = x.shape[-1], o.filterbank_channel_count
    hz_per_bin = 0.5 * rate / (n_bins - 1)
    start = int(1.5 + o.lower_frequency_limit / hz_per_bin)  # without the constant component
    end = int(o.upper_frequency_limit / hz_per_bin)
    if n_bins <= end:
        return None
    mel_low, mel_high = _mel(o.lower_frequency_limit), _mel(o.upper_frequency_limit)
    centers = [mel_low + (mel_high - mel_low) / (n + 1) * i for i in range(n + 2)]
    channels = np.zeros((*x.shape[:-1], n + 2))  # and one below and one above
    left = 0
    for i in range(start, end + 1):
        mel = _mel(i * hz_per_bin)
        while left < n and centers[left + 1] < mel:
            left += 1
        weight = (centers[left + 1] - mel) / (centers[left + 1] - centers[left])
        magnitude = np.sqrt(x[..., i])
        channels[..., left] += magnitude * weight
        channels[..., left + 1] += magnitude - magnitude * weight
    return channels[..., 1:-1]


def _mel(hertz: float) -> float:
    return 1127.0 * math.log1p(hertz / 700.0)


KERNELS = {
    "RFFT2D": Kernel(rfft2d, rfft2d_shape),
    "IRFFT2D": Kernel(irfft2d, irfft2d_shape),
    "AudioSpectrogram": Kernel(audio_spectrogram, audio_spectrogram_shape),
    "Mfcc": Kernel(mfcc, mfcc_shape),
}
