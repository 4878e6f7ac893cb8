"""Fixed-point arithmetic against rational numbers and Python's integers."""

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from jaxdelegate.quant import fixed_point
from tests.support.exact import half_away

LOW, HIGH = -(2**31), 2**31 - 1
INT32 = st.integers(LOW, HIGH) | st.integers(-300, 300) | st.sampled_from([LOW, LOW + 1, HIGH])
INT16 = st.integers(-(2**15), 2**15 - 1) | st.sampled_from([-(2**15), 2**15 - 1])
MULTIPLIER = st.integers(2**30, HIGH) | st.sampled_from([0, 1, 2**30, HIGH])
HALF = Fraction(1, 2)


def _half_up(x: Fraction) -> int:
    return math.floor(x + HALF)


def _int32(x: int) -> int:
    """Modulo 2**32."""
    return (x - LOW) % 2**32 + LOW


def _clamped(x: int, bits: int = 32) -> int:
    return min(max(x, -(2 ** (bits - 1))), 2 ** (bits - 1) - 1)


def _double_rounding(x: int, multiplier: int, shift: int) -> int:
    x = _int32(x * 2 ** max(shift, 0))
    high = _clamped(_half_up(Fraction(x * multiplier, 2**31)))
    return half_away(Fraction(high, 2 ** max(-shift, 0)))


@given(INT32, MULTIPLIER | st.integers(LOW, HIGH), st.integers(-31, 31))
@example(LOW, LOW, 0)
@example(LOW, HIGH, 31)
@example(-3, 2**30, -31)
@example(HIGH, HIGH, -31)
def test_multiplication_rounds_twice(x: int, multiplier: int, shift: int) -> None:
    got = fixed_point.multiply_by_quantized_multiplier(np.int32([x]), multiplier, shift)
    assert got.dtype == np.int32
    assert got.tolist() == [_double_rounding(x, multiplier, shift)]


def test_a_quarter_rounds_up() -> None:
    # The first rounding turns the half into 1, the second one half of that into 1 again.
    assert fixed_point.multiply_by_quantized_multiplier(np.int32([1]), 2**30, -1).tolist() == [1]


@given(st.integers(-(2**47), 2**47 - 1), MULTIPLIER, st.integers(-31, 7))
@example(-(2**47), HIGH, 7)
@example(1, 0x7FFEFFFF, -1)
@example(1, 0x7FFF0000, -1)
def test_multiplication_of_64_bits(x: int, multiplier: int, shift: int) -> None:
    reduced = min(_half_up(Fraction(multiplier, 2**16)), 2**15 - 1)
    want = _int32(_half_up(Fraction(x * reduced) * Fraction(2) ** (shift - 15)))
    got = fixed_point.multiply_by_quantized_multiplier_64(np.int64([x]), multiplier, shift)
    assert got.dtype == np.int32
    assert got.tolist() == [want]


def test_each_channel_has_its_multiplier() -> None:
    x = np.arange(-6, 6, dtype=np.int32).reshape(4, 3) * 1000
    multipliers, shifts = np.int32([2**30, HIGH, 3 * 2**29]), np.int32([-3, 0, 2])
    got = fixed_point.multiply_by_quantized_multiplier(x, multipliers, shifts)
    want = [
        [
            _double_rounding(*item)
            for item in zip(row, multipliers.tolist(), shifts.tolist(), strict=True)
        ]
        for row in x.tolist()
    ]
    assert got.tolist() == want


Definition = Callable[[int, int, int], int]  # a, b, bits
BINARY: dict[str, Definition] = {
    "saturating_rounding_doubling_high_mul": lambda a, b, bits: _clamped(
        _half_up(Fraction(a * b, 2 ** (bits - 1))), bits
    ),
    "saturating_doubling_high_mul": lambda a, b, bits: _clamped(
        math.trunc(Fraction(a * b, 2 ** (bits - 1))), bits
    ),
    "saturating_add": lambda a, b, bits: _clamped(a + b, bits),
    "saturating_sub": lambda a, b, bits: _clamped(a - b, bits),
    "rounding_half_sum": lambda a, b, _bits: half_away(Fraction(a + b, 2)),
}


@pytest.mark.parametrize("name", BINARY)
@given(INT32, INT32)
@example(LOW, LOW)
@example(LOW, HIGH)
@example(-1, 0)
def test_binary_of_32_bits(name: str, a: int, b: int) -> None:
    got = getattr(fixed_point, name)(np.int32([a]), np.int32([b]))
    assert got.dtype == np.int32
    assert got.tolist() == [BINARY[name](a, b, 32)]


@pytest.mark.parametrize("name", BINARY)
@given(INT16, INT16)
@example(-(2**15), -(2**15))
def test_binary_of_16_bits(name: str, a: int, b: int) -> None:
    got = getattr(fixed_point, name)(np.int16([a]), np.int16([b]))
    assert got.dtype == np.int16
    assert got.tolist() == [BINARY[name](a, b, 16)]


@given(INT32, st.integers(0, 31))
@example(LOW, 31)
@example(HIGH, 31)
@example(-1, 31)
def test_division_by_a_power_of_two(x: int, exponent: int) -> None:
    want = half_away(Fraction(x, 2**exponent))
    assert fixed_point.rounding_divide_by_pot(np.int32([x]), exponent).tolist() == [want]
    by_array = fixed_point.rounding_divide_by_pot(np.int32([x, x]), np.int32([exponent, 0]))
    assert by_array.tolist() == [want, x]


@pytest.mark.parametrize("exponent", range(16))
def test_division_of_every_int16(exponent: int) -> None:
    x = np.arange(-(2**15), 2**15)
    got = fixed_point.rounding_divide_by_pot(x.astype(np.int16), exponent)
    want = np.trunc(x / 2**exponent + np.where(x >= 0, 0.5, -0.5))
    np.testing.assert_array_equal(got, want)


def test_division_by_more_than_an_int16_holds() -> None:
    # gemmlowp's mask is then -1, so that the remainder may be negative.
    x = np.int16([-(2**15), -1, 0, 1, 2**15 - 1])
    assert fixed_point.rounding_divide_by_pot(x, 16).tolist() == [-1, -1, 1, 1, 1]


@given(INT32, st.integers(0, 40))
def test_left_shifts_saturate(x: int, amount: int) -> None:
    want = _clamped(x * 2**amount)
    assert fixed_point.saturating_left_shift(np.int32([x]), amount).tolist() == [want]


@given(INT16, st.integers(-15, 15))
def test_multiplication_by_powers_of_two(x: int, exponent: int) -> None:
    scaled = Fraction(x) * Fraction(2) ** exponent
    want = _clamped(half_away(scaled), 16)
    array = np.int16([x])
    assert fixed_point.saturating_multiply_by_pot(array, exponent).tolist() == [want]
    by_array = fixed_point.saturating_multiply_by_pot(array, np.int32([exponent]))
    assert by_array.dtype == np.int16
    assert by_array.tolist() == [want]
    assert fixed_point.rescale(array, max(exponent, 0), max(-exponent, 0)).tolist() == [want]


@given(st.integers(0, 2**64 - 1))
def test_leading_zeros_of_64_bits(pattern: int) -> None:
    x = np.array([pattern], np.uint64).view(np.int64)
    assert fixed_point.count_leading_zeros(x).tolist() == [64 - pattern.bit_length()]


@given(INT32)
@example(0)
@example(-1)
def test_leading_bits_of_32_bits(x: int) -> None:
    bits = f"{x % 2**32:032b}"
    zeros, signs = len(bits) - len(bits.lstrip("0")), len(bits) - len(bits.lstrip(bits[0])) - 1
    assert fixed_point.count_leading_zeros(np.int32([x])).tolist() == [zeros]
    assert fixed_point.count_leading_sign_bits(np.int32([x])).tolist() == [signs]


def test_python_integers_count_as_int32() -> None:
    assert fixed_point.multiply_by_quantized_multiplier(7, 2**30, 1).dtype == np.int32
    assert fixed_point.saturating_add(HIGH, 1) == HIGH
    assert fixed_point.count_leading_zeros(1) == 31
