"""Fourier transforms and audio features: RFFT2D, and the custom IRFFT2D, AudioSpectrogram and Mfcc.

The kernels compute in float64, and a logarithm often follows: float32 would add noise to bins that
a pure tone leaves empty. So the transforms run in float64, except on a TPU, which does not have it.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdelegate.op_lowering.common.derivatives import derived_as, root
from jaxdelegate.op_lowering.common.movement import integers
from jaxdelegate.op_lowering.records.custom import CustomOptions
from jaxdelegate.op_lowering.records.record import NoOptions
from jaxdelegate.op_lowering.rule import (
    Function,
    LoweringContext,
    Op,
    OpRule,
    first_reason,
    table,
    why_not_const,
    why_not_dtype,
    why_not_result,
)
from jaxdelegate.op_lowering.signal.options import AudioSpectrogramOptions, MfccOptions
from jaxdelegate.op_lowering.spec import Specs

_FLOOR = 1e-12  # of a mel band, before the logarithm


def _wide(context: LoweringContext) -> np.dtype:
    return np.dtype(np.float32 if context.platform == "tpu" else np.float64)


def _complex(real: np.dtype) -> np.dtype:
    return np.dtype(np.complex64 if real == np.float32 else np.complex128)


def _derived_in_float32(
    context: LoweringContext, function: Callable[[jax.Array, np.dtype], jax.Array]
) -> Function:
    """JAX differentiates the function in float32, because 64-bit types may be disabled."""
    wide, narrow = _wide(context), np.dtype(np.float32)
    derived = derived_as(lambda x: function(x, wide), lambda x: function(x, narrow))
    return lambda x, *_lengths: (derived(x),)


def _why_not_transform(inputs: Specs, dtype: type[np.generic]) -> str | None:
    x, lengths = inputs[:2]
    if len(x.shape) < 2:
        return f"{x.name!r} has rank {len(x.shape)}, not 2 or more"
    reason = first_reason(
        why_not_dtype(x, dtype), why_not_dtype(lengths, np.int32), why_not_const(lengths)
    )
    if reason:
        return reason
    sizes = list(integers(lengths))
    if len(sizes) == 2 and min(sizes) > 0:
        return None
    return f"transform lengths {sizes} are not two positive numbers"


def _fitted(x: jax.Array, rows: int, columns: int) -> jax.Array:
    """Zeros are added at the end."""
    x = x[..., :rows, :columns]
    missing = (rows - x.shape[-2], columns - x.shape[-1])
    return jnp.pad(x, [(0, 0)] * (x.ndim - 2) + [(0, n) for n in missing])


def _why_not_rfft2d(op: Op[NoOptions]) -> str | None:
    return why_not_result(op.outputs[0], np.complex64) or _why_not_transform(op.inputs, np.float32)


def _lower_rfft2d(op: Op[NoOptions]) -> Function:
    rows, columns = integers(op.inputs[1])

    def rfft2d(x: jax.Array, wide: np.dtype) -> jax.Array:
        """[..., H, W] -> [..., rows, columns // 2 + 1]."""
        return jnp.fft.rfft2(_fitted(x.astype(wide), rows, columns)).astype(np.complex64)

    return _derived_in_float32(op.context, rfft2d)


def _why_not_irfft2d(op: Op[CustomOptions]) -> str | None:
    return why_not_result(op.outputs[0], np.float32) or _why_not_transform(op.inputs, np.complex64)


def _lower_irfft2d(op: Op[CustomOptions]) -> Function:
    """The transform of tf.signal.irfft2d: a complex one along H, then a real one along W.

    The real one ignores the imaginary parts of the first and the middle bin. They are removed,
    because not every FFT library ignores them.
    """
    rows, columns = integers(op.inputs[1])
    n_bins = columns // 2 + 1
    is_real = np.isin(np.arange(n_bins), [0, columns / 2])

    def irfft2d(x: jax.Array, wide: np.dtype) -> jax.Array:
        """[..., H, W // 2 + 1] -> [..., rows, columns]."""
        x = _fitted(x.astype(_complex(wide)), rows, n_bins)
        x = jnp.fft.ifft(x, axis=-2)
        x = jnp.where(jnp.broadcast_to(is_real, x.shape), x.real.astype(x.dtype), x)
        return jnp.fft.irfft(x, columns, axis=-1).astype(np.float32)

    return _derived_in_float32(op.context, irfft2d)


def _why_not_spectrogram(op: Op[AudioSpectrogramOptions]) -> str | None:
    x, window, stride = op.inputs[0], op.options.window_size, op.options.stride
    if len(x.shape) != 2:
        return f"{x.name!r} has rank {len(x.shape)}, not 2"
    if window < 2 or stride < 1:
        return f"windows of {window} samples every {stride} are too short"
    return why_not_dtype(x, np.float32) or why_not_result(op.outputs[0], np.float32)


def _lower_spectrogram(op: Op[AudioSpectrogramOptions]) -> Function:
    """Hann windows, padded to a power of two (kernels/audio_spectrogram.cc)."""
    window, is_power = op.options.window_size, op.options.magnitude_squared
    n_fft = 1 << (window - 1).bit_length()
    starts = np.arange(0, op.inputs[0].shape[0] - window + 1, op.options.stride)
    samples = starts[:, None] + np.arange(window)  # [frames, window]
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(window) / window)

    def audio_spectrogram(x: jax.Array, wide: np.dtype) -> jax.Array:
        """[samples, channels] -> [channels, frames, n_fft // 2 + 1]."""
        frames = x.T.astype(wide)[:, samples] * hann.astype(wide)[None, None]
        bins = jnp.fft.rfft(frames, n_fft)
        power = (bins.real * bins.real + bins.imag * bins.imag).astype(np.float32)
        return power if is_power else root(power)

    return _derived_in_float32(op.context, audio_spectrogram)


def _why_not_mfcc(op: Op[MfccOptions]) -> str | None:
    x, rate = op.inputs[:2]
    if len(x.shape) != 3:
        return f"{x.name!r} has rank {len(x.shape)}, not 3"
    reason = first_reason(
        why_not_dtype(x, np.float32),
        why_not_dtype(rate, np.int32),
        why_not_const(rate),
        why_not_result(op.outputs[0], np.float32),
    )
    if reason:
        return reason
    if len(integers(rate)) != 1 or integers(rate)[0] < 1:
        return f"the sample rate {rate.name!r} is not one positive number"
    low, high = op.options.lower_frequency_limit, op.options.upper_frequency_limit
    if x.shape[2] < 2 or not 0 <= low < high:
        return "has no bins between the frequency limits"
    n, channels = op.options.dct_coefficient_count, op.options.filterbank_channel_count
    return None if 1 <= n <= channels else f"{n} coefficients do not come from {channels} channels"


def _mel(frequency: np.ndarray | float) -> Any:
    return 1127.0 * np.log1p(frequency / 700.0)


def _mel_bands(o: MfccOptions, n_bins: int, rate: int) -> tuple[int, np.ndarray] | None:
    """The first bin in use, and the weight of each bin in each channel, [bins in use, channels].

    None where the spectrum ends below the upper limit. The weights are triangles that touch their
    neighbors' centers, evenly spaced in mel: two channels share each bin
    (kernels/internal/mfcc_mel_filterbank.cc).
    """
    bin_width = 0.5 * rate / (n_bins - 1)
    first = int(1.5 + o.lower_frequency_limit / bin_width)
    last = int(o.upper_frequency_limit / bin_width)
    if last >= n_bins:
        return None
    n_channels = o.filterbank_channel_count
    low, high = _mel(o.lower_frequency_limit), _mel(o.upper_frequency_limit)
    spacing = (high - low) / (n_channels + 1)
    position = (_mel(np.arange(first, last + 1) * bin_width) - low) / spacing
    distance = np.abs(position[:, None] - np.arange(1, n_channels + 1))
    return first, np.maximum(1 - distance, 0)


def _lower_mfcc(op: Op[MfccOptions]) -> Function:
    """Mel bands of the magnitudes, logarithm, cosine transform (kernels/internal/mfcc.cc)."""
    first_and_bands = _mel_bands(op.options, op.inputs[0].shape[2], *integers(op.inputs[1]))
    shape, precision = op.outputs[0].shape, op.context.precision.dot_precision
    if first_and_bands is None:  # the kernel then transforms nothing
        return lambda *_arrays: (jnp.zeros(shape, np.float32),)
    first, bands = first_and_bands
    n_channels = op.options.filterbank_channel_count
    angle = np.pi / n_channels * (np.arange(n_channels) + 0.5)
    cosines = np.cos(np.arange(op.options.dct_coefficient_count) * angle[:, None])
    cosines *= np.sqrt(2 / n_channels)

    def product(x: jax.Array, w: np.ndarray) -> jax.Array:
        contract = (((x.ndim - 1,), (0,)), ((), ()))
        return lax.dot_general(x, w, contract, precision=precision)

    def mfcc(x: jax.Array, wide: np.dtype) -> jax.Array:
        """[channels, frames, bins] -> [channels, frames, coefficients]."""
        used = x[:, :, first : first + len(bands)].astype(wide)
        energy = jnp.maximum(product(root(used), bands.astype(wide)), _FLOOR)
        return product(jnp.log(energy), cosines.astype(wide)).astype(np.float32)

    return _derived_in_float32(op.context, mfcc)


RFFT2D = OpRule("RFFT2D", NoOptions, 1, _why_not_rfft2d, _lower_rfft2d, arity=2)
IRFFT2D = OpRule("IRFFT2D", CustomOptions, 1, _why_not_irfft2d, _lower_irfft2d, arity=2)
AUDIO_SPECTROGRAM = OpRule(
    "AudioSpectrogram", AudioSpectrogramOptions, 1, _why_not_spectrogram, _lower_spectrogram
)
MFCC = OpRule("Mfcc", MfccOptions, 1, _why_not_mfcc, _lower_mfcc, arity=2)

RULES = table(RFFT2D, IRFFT2D, AUDIO_SPECTROGRAM, MFCC)
