"""Options and records of Fourier transforms and audio features."""

import dataclasses
import math

from jaxdelegate.op_lowering.records import costs
from jaxdelegate.op_lowering.records.custom import CustomOptions, FlexbufferOptions
from jaxdelegate.op_lowering.records.operator import OperatorRecord, table


@dataclasses.dataclass(frozen=True)
class AudioSpectrogramOptions(FlexbufferOptions):
    """AudioSpectrogram: samples in a window and between windows; power or magnitude."""

    window_size: int = 0
    stride: int = 0
    magnitude_squared: bool = False


@dataclasses.dataclass(frozen=True)
class MfccOptions(FlexbufferOptions):
    """Mfcc: mel filterbank and number of coefficients. LiteRT reads the limits as integers."""

    upper_frequency_limit: int = 0
    lower_frequency_limit: int = 0
    filterbank_channel_count: int = 0
    dct_coefficient_count: int = 0


def _spectrogram(op: costs.Operation[AudioSpectrogramOptions]) -> costs.Work:
    points = 1 << max(op.options.window_size - 1, 1).bit_length()
    frames = costs.n(op.outputs[0]) // (points // 2 + 1)
    flops = frames * (op.options.window_size + round(2.5 * points * math.log2(points)))
    return costs.Work(flops + 3 * costs.n(op.outputs[0]), note="estimate: 2.5 n log2 n per frame")


def _mfcc(op: costs.Operation[MfccOptions]) -> costs.Work:
    """A filterbank and a cosine transform of each frame."""
    frames = costs.n(op.outputs[0]) // max(op.options.dct_coefficient_count, 1)
    mel = 2 * costs.n(op.inputs[0])
    cosine = 2 * frames * op.options.filterbank_channel_count * op.options.dct_coefficient_count
    return costs.Work(mel + cosine, frames * op.options.filterbank_channel_count, "estimate")


RECORDS = table(
    OperatorRecord("AudioSpectrogram", AudioSpectrogramOptions, cost=_spectrogram),
    OperatorRecord("IRFFT2D", CustomOptions, cost=costs.fourier),
    OperatorRecord("Mfcc", MfccOptions, cost=_mfcc),
    OperatorRecord("RFFT2D", cost=costs.fourier),
)
