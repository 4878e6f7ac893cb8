import dataclasses
from typing import Any

import numpy as np
import pytest
from flatbuffers import flexbuffers

from jaxdelegate.op_lowering.options import CustomOptions
from jaxdelegate.op_lowering.registry import RULES
from jaxdelegate.op_lowering.rule import LoweringContext
from jaxdelegate.op_lowering.signal.options import AudioSpectrogramOptions, MfccOptions
from jaxdelegate.testing import Arg, Case, Tolerance, assert_close, const, f32, of, value

IRREGULAR = "the kernel's transform needs powers of two"


def rfft2d(x: Arg, rows: int, columns: int, **details: Any) -> Case:
    label = f"{list(x.value.shape)}-{rows}x{columns}"
    lengths = const([rows, columns], np.int32)
    return Case("RFFT2D", label, [x, lengths], outputs=[np.complex64], accumulated=16, **details)


RFFT2D = [
    rfft2d(f32(8, 8), 8, 8),
    rfft2d(f32(3, 1, 16), 1, 16),
    rfft2d(f32(2, 3, 4, 8), 2, 4),
    rfft2d(f32(3, 5), 8, 16),
    rfft2d(f32(2, 9, 3), 4, 8),
    rfft2d(f32(4, 6), 3, 6, litert=IRREGULAR),
    rfft2d(f32(2, 5, 7), 5, 7, litert=IRREGULAR),
    rfft2d(f32(0, 4, 4), 4, 4, litert="refuses empty tensors"),
    rfft2d(f32(2, 0, 4), 4, 4, litert="refuses empty tensors"),
]


def irfft2d(x: Arg, rows: int, columns: int) -> Case:
    label = f"{list(x.value.shape)}-{rows}x{columns}"
    return Case(
        "IRFFT2D",
        label,
        [x, const([rows, columns], np.int32)],
        CustomOptions(),
        outputs=[np.float32],
        accumulated=16,
        litert="not among the registered custom operators",
    )


IRFFT2D = [
    irfft2d(of(np.complex64, 8, 5), 8, 8),
    irfft2d(of(np.complex64, 3, 1, 9), 1, 16),
    irfft2d(of(np.complex64, 2, 3, 4, 5), 2, 4),
    irfft2d(of(np.complex64, 3, 4), 8, 16),
    irfft2d(of(np.complex64, 2, 5, 4), 5, 7),
    irfft2d(of(np.complex64, 0, 4, 3), 4, 4),
]


def flexbuffer(**values: Any) -> bytes:
    return bytes(flexbuffers.Dumps(values))


def spectrogram(x: Arg, window: int, stride: int, *, squared: bool, label: str = "") -> Case:
    data = flexbuffer(window_size=window, stride=stride, magnitude_squared=squared)
    shape = list(x.value.shape)
    return Case(
        "AudioSpectrogram",
        f"{label or shape}-{window}-{stride}-{'power' if squared else 'magnitude'}",
        [x],
        AudioSpectrogramOptions.from_bytes(data),
    )


TONE = value(np.sin(np.arange(400, dtype=np.float32) / 3)[:, None], np.float32)
SPECTROGRAM = [
    spectrogram(f32(100, 1), 16, 8, squared=True),
    spectrogram(f32(100, 2), 20, 7, squared=False),
    spectrogram(f32(64, 3), 12, 30, squared=True),
    spectrogram(f32(16, 1), 16, 4, squared=False),
    dataclasses.replace(
        spectrogram(f32(10, 1), 16, 4, squared=True), litert="an output without elements"
    ),
]


def mfcc(x: Arg, rate: int, channels: int = 10, **limits: Any) -> Case:
    values = {
        "upper_frequency_limit": 4000,
        "lower_frequency_limit": 20,
        "filterbank_channel_count": channels,
        "dct_coefficient_count": min(channels, 7),
        **limits,
    }
    label = "-".join(
        [str(rate), *(f"{k}-{v}" for k, v in {"channels": channels, **limits}.items())]
    )
    options = MfccOptions.from_bytes(flexbuffer(**values))
    return Case("Mfcc", label, [x, const([rate], np.int32)], options, accumulated=16)


POWER = f32(2, 3, 129, low=0.0, high=50.0)
MFCC = [
    mfcc(POWER, 16000),
    mfcc(POWER, 8000),  # the upper limit is the last bin
    mfcc(POWER, 44100, channels=40),  # more channels than bins: some are empty
    mfcc(POWER, 4000),  # the spectrum ends below the upper limit
    mfcc(POWER, 16000, lower_frequency_limit=300.9, upper_frequency_limit=3000.9),
    mfcc(POWER, 16000, lower_frequency_limit=100, upper_frequency_limit=101),  # no bin
    mfcc(value(np.zeros((1, 2, 129)), np.float32), 16000),
]
CASES = RFFT2D + IRFFT2D + SPECTROGRAM + MFCC


def test_bins_next_to_a_tone_are_as_quiet_as_in_litert() -> None:
    # Float32 transforms would fill them with noise, which a logarithm then amplifies.
    case = spectrogram(TONE, 256, 64, squared=True, label="tone")
    (want,) = case.run_litert()
    assert want.min() < 1e-9 * want.max()
    relative = Tolerance(rtol=1e-4)
    for got in (case.run_reference(), case.run_lowered(RULES[case.name])):
        assert_close(got, [want], tolerance=relative, because="no share for the loudest bin")


def test_transforms_in_float32_on_a_tpu() -> None:
    context = LoweringContext(platform="tpu")
    for case in (RFFT2D[0], IRFFT2D[0], SPECTROGRAM[0], MFCC[0]):
        case.check(case.run_lowered(RULES[case.name], context), case.run_reference())


def at_run_time(case: Case) -> Case:
    return dataclasses.replace(case, inputs=[case.inputs[0], Arg(case.inputs[1].value)])


@pytest.mark.parametrize("case", [RFFT2D[0], IRFFT2D[0]], ids=str)
def test_reference_takes_lengths_at_run_time(case: Case) -> None:
    late = at_run_time(case)
    assert late.specs()[1][0].is_dynamic
    case.check(late.run_reference(), case.run_reference())


def reason(case: Case) -> str:
    return case.reason(RULES[case.name], shape=())


def with_options(case: Case, **changes: Any) -> Case:
    return dataclasses.replace(case, options=dataclasses.replace(case.options, **changes))


REFUSED = {
    "computed at run time": at_run_time(RFFT2D[0]),
    "computed at run time; XLA needs it constant": at_run_time(MFCC[0]),
    "is float64, not one of float32": RFFT2D[0].with_inputs({0: of(np.float64, 8, 8)}),
    "has rank 1, not 2 or more": RFFT2D[0].with_inputs({0: f32(8)}),
    "[0, 8] are not two positive numbers": RFFT2D[0].with_inputs({1: const([0, 8], np.int32)}),
    "is int64, not one of int32": RFFT2D[0].with_inputs({1: const([8, 8], np.int64)}),
    "is float32, not one of complex64": IRFFT2D[0].with_inputs({0: f32(8, 5)}),
    "windows of 1 samples": with_options(SPECTROGRAM[0], window_size=1),
    "'in0' is float64, not one of float32": SPECTROGRAM[0].with_inputs({0: of(np.float64, 16, 1)}),
    "has rank 2, not 3": MFCC[0].with_inputs({0: f32(3, 129)}),
    "not one positive number": MFCC[0].with_inputs({1: const([0], np.int32)}),
    "no bins between the frequency limits": with_options(MFCC[0], lower_frequency_limit=5000),
    "11 coefficients do not come from 10": with_options(MFCC[0], dct_coefficient_count=11),
}
STOPPED = {("float64", TypeError): RFFT2D[0].with_inputs({0: of(np.float64, 8, 8)})}
