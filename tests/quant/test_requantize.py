"""Requantization against rational arithmetic, multipliers in the kernels' order of roundings."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxdelegate.quant import requantize
from jaxdelegate.quant.multiplier import quantize_multiplier
from jaxdelegate.quant.params import Quantization
from tests.support.combinations import covering

DTYPES = [np.dtype(t) for t in (np.int8, np.uint8, np.int16)]
SCALE = st.floats(2.0**-10, 2.0, width=32)
HALF = Fraction(1, 2)


def _quantization(scale: float | list[float], zero_point: int = 0) -> Quantization:
    scales = np.atleast_1d(np.float32(scale))
    return Quantization(scales, np.full(scales.size, zero_point))


def _near(x: Fraction, dtype: type[np.floating]) -> Fraction:
    """The nearest float (ties cannot occur here: quotients and products with few bits)."""
    near = dtype(float(x))
    around = (near, np.nextafter(near, dtype(np.inf)), np.nextafter(near, dtype(-np.inf)))
    return min((Fraction(float(c)) for c in around), key=lambda c: abs(c - x))


def _float(q: Quantization) -> Fraction:
    return Fraction(float(q.scale[0]))


@pytest.mark.parametrize(("source", "target"), covering(DTYPES, [*DTYPES[1:], DTYPES[0]]), ids=str)
@given(SCALE, SCALE, st.integers(-128, 127), st.integers(-128, 127))
def test_requantize(
    source: np.dtype, target: np.dtype, x_scale: float, y_scale: float, x_zero: int, y_zero: int
) -> None:
    info = np.iinfo(source)
    q = np.arange(info.min, info.max + 1, max(1, (info.max - info.min) // 49)).astype(source)
    multiplier, shift = quantize_multiplier(
        float(_near(Fraction(x_scale) / Fraction(y_scale), np.float64))
    )
    got = requantize.requantize(
        q, _quantization(x_scale, x_zero), _quantization(y_scale, y_zero), target
    )
    assert got.dtype == target
    bounds = np.iinfo(target)
    for value, y in zip(q.tolist(), got.tolist(), strict=True):
        x = (value - x_zero) * 2 ** max(shift, 0)
        high = math.floor(Fraction(x * multiplier, 2**31) + HALF)
        steps = math.floor(Fraction(abs(high), 2 ** max(-shift, 0)) + HALF)
        steps = steps if high >= 0 else -steps
        assert y == min(max(steps + y_zero, int(bounds.min)), int(bounds.max))


def test_a_sign_bit_is_flipped_between_int8_and_uint8() -> None:
    q, scale = np.arange(-128, 128).astype(np.int8), 0.0371
    got = requantize.requantize(
        q, _quantization(scale, 0), _quantization(scale, 128), np.dtype(np.uint8)
    )
    np.testing.assert_array_equal(got, q.view(np.uint8) ^ 0x80)


@pytest.mark.parametrize("scale", [0.0, math.inf, math.nan])
def test_scales_that_make_no_multiplier(scale: float) -> None:
    with pytest.raises(ValueError, match="finite"):
        requantize.rescale_multiplier(_quantization(scale), _quantization(0.0))
    with pytest.raises(ValueError, match="finite"):
        requantize.convolution_multipliers(
            _quantization(1.0), _quantization([1.0, 2.0]), _quantization(0.0), 2
        )


@given(SCALE, SCALE, SCALE)
def test_the_order_of_roundings(a: float, b: float, c: float) -> None:
    x, w, y = map(_quantization, (a, b, c))
    product = _float(x) * _float(w)  # exact in float64
    exact = quantize_multiplier(float(_near(product / _float(y), np.float64)))
    multipliers, shifts = requantize.convolution_multipliers(x, w, y, 3)
    assert multipliers.dtype == shifts.dtype == np.int32
    assert list(zip(multipliers.tolist(), shifts.tolist(), strict=True)) == [exact] * 3
    rounded = _near(product, np.float32) / _float(y)
    assert requantize.product_multiplier(x, w, y) == quantize_multiplier(
        float(_near(rounded, np.float64))
    )
    assert requantize.float32_product_multiplier(x, w, y) == quantize_multiplier(
        float(_near(rounded, np.float32))
    )
    quotient = _float(x) / _float(y)
    assert requantize.rescale_multiplier(x, y) == quantize_multiplier(
        float(_near(quotient, np.float64))
    )
    assert requantize.rescale_multiplier(x, y, in_float32=True) == quantize_multiplier(
        float(_near(quotient, np.float32))
    )


def test_each_channel_has_a_multiplier() -> None:
    x, y, scales = _quantization(0.5), _quantization(0.25), [0.1, 0.2, 0.3]
    multipliers, shifts = requantize.convolution_multipliers(x, _quantization(scales), y, 3)
    for i, scale in enumerate(scales):
        assert (multipliers[i], shifts[i]) == quantize_multiplier(2 * float(np.float32(scale)))
    with pytest.raises(ValueError, match="3 scales do not fit 4 channels"):
        requantize.convolution_multipliers(x, _quantization(scales), y, 4)


def test_bias_scales() -> None:
    x, w, y = map(_quantization, (0.5, 0.25, 0.1))
    assert requantize.bias_scale_fits(x, w, _quantization(0.125), y)
    assert requantize.bias_scale_fits(x, w, _quantization(0.1269), y)
    assert not requantize.bias_scale_fits(x, w, _quantization(0.128), y)
    assert not requantize.bias_scale_fits(x, w, _quantization(0.125), _quantization(0.0))


def test_biases_are_added_to_channels() -> None:
    accumulator, bias = np.int32([[1, 2], [3, 2**31 - 1]]), np.int32([10, 1])
    got = requantize.add_bias(accumulator, bias)
    assert got.dtype == np.int32
    assert got.tolist() == [[11, 3], [13, -(2**31)]]
    assert requantize.add_bias(accumulator, None) is accumulator
    wide = requantize.add_bias(accumulator.astype(np.int64), bias.astype(np.int64))
    assert wide.tolist() == [[11, 3], [13, 2**31]]


def test_accumulators_are_scaled_by_channel_and_clamped() -> None:
    accumulator = np.int32([[100, 100], [-100, 1000], [7, -7]])
    multipliers, shifts = np.int32([2**30, 2**30]), np.int32([0, 2])  # 1/2 and 2
    for dtype in (np.int32, np.int64):
        got = requantize.requantize_accumulator(
            accumulator.astype(dtype), multipliers, shifts, 3, (-20, 120), np.dtype(np.int8)
        )
        assert got.dtype == np.int8
        assert got.tolist() == [[53, 120], [-20, 120], [7, -11]]


@given(st.integers(-(2**31), 2**31 - 1), st.floats(1e-9, 1.0))
def test_accumulators_are_scaled_in_float64(accumulator: int, scale: float) -> None:
    exact = Fraction(accumulator) * Fraction(scale)
    rounded = Fraction(accumulator * scale)  # Python's product of doubles
    assert abs(rounded - exact) <= abs(exact) / 2**53
    steps = math.floor(abs(rounded) + HALF) * (1 if accumulator >= 0 else -1)
    got = requantize.requantize_accumulator_by_real(
        np.int32([accumulator]), scale, 3, (-100, 127), np.dtype(np.int8)
    )
    assert got.tolist() == [min(max(steps + 3, -100), 127)]


def test_clamp() -> None:
    got = requantize.clamp(np.int64([-(2**40), 5, 2**40]), -3, 100, np.dtype(np.int8))
    assert got.dtype == np.int8
    assert got.tolist() == [-3, 5, 100]
