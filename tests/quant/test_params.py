"""Scales, zero points and ranges."""

import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxdelegate.quant import params
from jaxdelegate.quant.params import Quantization

NONE, RELU, RELU_N1_TO_1, RELU6, TANH = range(5)


def _quantization(scale: list[float], zero_point: list[int]) -> Quantization:
    return Quantization(np.array(scale, np.float32), np.array(zero_point, np.int64))


@pytest.mark.parametrize(
    ("dtype", "want"),
    [
        (np.int8, (-128, 127)),
        (np.uint8, (0, 255)),
        (np.int16, (-32768, 32767)),
        (np.int32, (-(2**31), 2**31 - 1)),
        (ml_dtypes.int4, (-8, 7)),
        (ml_dtypes.uint4, (0, 15)),
        (ml_dtypes.int2, (-2, 1)),
    ],
)
def test_ranges(dtype: type, want: tuple[int, int]) -> None:
    assert params.integer_range(np.dtype(dtype)) == want
    assert params.integer_range(np.dtype(dtype), narrow=True) == (want[0] + 1, want[1])


def test_the_only_scale() -> None:
    assert params.tensor_scale(_quantization([0.1], [3])) == float(np.float32(0.1))
    assert params.tensor_zero_point(_quantization([0.1], [3])) == 3
    assert params.tensor_zero_point(_quantization([0.1], [])) == 0
    for scale in ([], [0.1, 0.2]):
        with pytest.raises(ValueError, match="one scale"):
            params.tensor_scale(_quantization(scale, [0] * len(scale)))
    with pytest.raises(ValueError, match="one zero point"):
        params.tensor_zero_point(_quantization([0.1, 0.2], [1, 2]))


def test_scales_of_channels() -> None:
    one, three = _quantization([0.1], [7]), _quantization([1, 2, 3], [4, 5, 6])
    assert params.channel_scales(one, 3).tolist() == [np.float32(0.1)] * 3
    assert params.channel_scales(three, 3).tolist() == [1, 2, 3]
    with pytest.raises(ValueError, match="3 scales do not fit 4 channels"):
        params.channel_scales(three, 4)


@pytest.mark.parametrize(("axis", "shape"), [(0, (3, 1, 1)), (1, (1, 3, 1)), (-1, (1, 1, 3))])
def test_along_an_axis(axis: int, shape: tuple[int, ...]) -> None:
    assert params.along_axis(np.arange(3), 3, axis).shape == shape


@pytest.mark.parametrize(
    ("activation", "scale", "zero_point", "want"),
    [
        (NONE, 0.1, 5, (-128, 127)),
        (TANH, 0.1, 5, (-128, 127)),
        (RELU, 0.1, 5, (5, 127)),
        (RELU, 0.1, -128, (-128, 127)),
        (RELU6, 0.1, -100, (-100, -40)),
        (RELU6, 0.01, -100, (-100, 127)),
        (RELU_N1_TO_1, 0.1, 0, (-10, 10)),
        (RELU_N1_TO_1, 0.001, 0, (-128, 127)),
        (RELU_N1_TO_1, 0.4, 0, (-3, 3)),  # 2.5, away from zero
        (RELU6, 4.0, 0, (0, 2)),  # 1.5
    ],
)
def test_activation_ranges(
    activation: int, scale: float, zero_point: int, want: tuple[int, int]
) -> None:
    quantization = _quantization([scale], [zero_point])
    assert params.activation_range(activation, quantization, np.dtype(np.int8)) == want


@given(st.floats(2.0**-20, 64, width=32), st.integers(-128, 127))
def test_activation_ranges_by_rational_arithmetic(scale: float, zero_point: int) -> None:
    got = params.activation_range(RELU6, _quantization([scale], [zero_point]), np.dtype(np.int8))
    quotient = Fraction(float(np.float32(6) / np.float32(scale)))  # correctly rounded: IEEE 754
    steps = math.floor(quotient + Fraction(1, 2))
    assert got == (max(zero_point, -128), min(zero_point + steps, 127))


def test_an_activation_beyond_int32_is_refused() -> None:
    for scale in (1e-12, 0.0):
        with pytest.raises(ValueError, match="more than int32 holds"):
            params.activation_range(RELU6, _quantization([scale], [0]), np.dtype(np.int8))
