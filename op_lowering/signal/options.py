"""Options and records of Fourier transforms and audio features."""

import dataclasses

from jaxdelegate.op_lowering.records import costs
from jaxdelegate.op_lowering.records.custom import CustomOptions, FlexbufferOptions
from jaxdelegate.op_lowering.records.operator import (
    OperatorRecord,
    table,
)


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


RECORDS = table(
    OperatorRecord("AudioSpectrogram", AudioSpectrogramOptions, cost=costs.spectrogram),
    OperatorRecord("IRFFT2D", CustomOptions, cost=costs.fourier),
    OperatorRecord("Mfcc", MfccOptions, cost=costs.mfcc),
    OperatorRecord("RFFT2D", cost=costs.fourier),
)
