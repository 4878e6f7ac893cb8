"""Fourier transforms and audio features: RFFT2D, and the custom IRFFT2D, AudioSpectrogram and Mfcc.

The kernels compute in float64, and a logarithm often follows: float32 would add noise to bins that
a pure tone leaves empty. So the transforms run in float64, except on a TPU, which does not have it.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdelegate.op_lowering.common.derivatives import derived_as, root
from jaxdelegate.op_lowering.common.movement import integers
from jaxdelegate.op_lowering.common.signature import CONSTANTS32, FLOAT32, Input, dtypes, typed_rule
from jaxdelegate.op_lowering.records.custom import CustomOptions
from jaxdelegate.op_lowering.records.record import NoOptions, Options
from jaxdelegate.op_lowering.rule import Function, LoweringContext, Op, table
from jaxdelegate.op_lowering.signal.options import AudioSpectrogramOptions, MfccOptions

_FLOOR = 1e-12  # the least energy of a mel band, before the logarithm


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


def _why_not_transform(op: Op[Options]) -> str | None:
    x, lengths = op.inputs[:2]
    if len(x.shape) < 2:
        return f"{x.name!r} has rank {len(x.shape)}, not 2 or more"
    sizes = list(integers(lengths))
    fits = len(sizes) == 2 and min(sizes) > 0
    return None if fits else f"transform lengths {sizes} are not two positive numbers"


def inverse_real(x: jax.Array, lengths: Sequence[int]) -> jax.Array:
    """The inverse of a real signal's transform along the last dimensions, of these lengths.

    Complex transforms along all dimensions but the last, then a real one, which ignores the
    imaginary parts of the first and the middle bin. They are removed, because not every library
    ignores them.
    """
    *others, last = lengths
    n_bins = last // 2 + 1
    is_real = np.isin(np.arange(n_bins), [0, last / 2])
    x = _fitted(x, (*others, n_bins))
    if others:
        x = jnp.fft.ifftn(x, axes=range(-len(lengths), -1))
    x = jnp.where(jnp.broadcast_to(is_real, x.shape), x.real.astype(x.dtype), x)
    return jnp.fft.irfft(x, last, axis=-1)


def _fitted(x: jax.Array, sizes: Sequence[int]) -> jax.Array:
    """Cut off, or zeros added, at the end of the last dimensions."""
    batch = x.ndim - len(sizes)
    x = x[(*[slice(None)] * batch, *map(slice, sizes))]
    missing = ((0, n - held) for n, held in zip(sizes, x.shape[batch:], strict=True))
    return jnp.pad(x, [*[(0, 0)] * batch, *missing])


def _lower_rfft2d(op: Op[NoOptions]) -> Function:
    lengths = integers(op.inputs[1])

    def rfft2d(x: jax.Array, wide: np.dtype) -> jax.Array:
        """[..., H, W] -> [..., rows, columns // 2 + 1]."""
        return jnp.fft.rfft2(x.astype(wide), lengths).astype(np.complex64)

    return _derived_in_float32(op.context, rfft2d)


def _lower_irfft2d(op: Op[CustomOptions]) -> Function:
    """The transform of tf.signal.irfft2d."""
    lengths = integers(op.inputs[1])

    def irfft2d(x: jax.Array, wide: np.dtype) -> jax.Array:
        """[..., H, W // 2 + 1] -> [..., rows, columns]."""
        return inverse_real(x.astype(_complex(wide)), lengths).astype(np.float32)

    return _derived_in_float32(op.context, irfft2d)


def _why_not_spectrogram(op: Op[AudioSpectrogramOptions]) -> str | None:
    x, window, stride = op.inputs[0], op.options.window_size, op.options.stride
    if len(x.shape) != 2:
        return f"{x.name!r} has rank {len(x.shape)}, not 2"
    if window < 2 or stride < 1:
        return f"windows of {window} samples every {stride} are too short"
    return None


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


_COMPLEX64 = Input(dtypes(np.complex64))
RULES = table(
    typed_rule("AudioSpectrogram", [FLOAT32], _lower_spectrogram, _why_not_spectrogram),
    typed_rule(
        "IRFFT2D",
        [_COMPLEX64, CONSTANTS32],
        _lower_irfft2d,
        _why_not_transform,
        results=[np.float32],
    ),
    typed_rule("Mfcc", [FLOAT32, CONSTANTS32], _lower_mfcc, _why_not_mfcc),
    typed_rule(
        "RFFT2D", [FLOAT32, CONSTANTS32], _lower_rfft2d, _why_not_transform, results=[np.complex64]
    ),
)
