"""Multipliers and shifts against rational arithmetic."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxdelegate.quant import multiplier
from tests.support.exact import half_away


def _expected(real: float) -> tuple[int, int]:
    """By definition: 31 bits of the real, rounded, and their exponent."""
    x = Fraction(real)
    if x == 0:
        return 0, 0
    shift = 0
    while abs(x) >= 1:
        x, shift = x / 2, shift + 1
    while abs(x) < Fraction(1, 2):
        x, shift = x * 2, shift - 1
    q = half_away(x * 2**31)
    if q == 2**31:
        q, shift = 2**30, shift + 1
    return (0, 0) if shift < -31 else (q, shift)


CORNERS = [
    *(0.0, 1.0, 0.5, -0.5, -1.0, 3.0),
    *(1 - 2.0**-32, 1 - 2.0**-33, 1 - 2.0**-53, -(1 - 2.0**-53), 2 - 2.0**-52),  # q == 1 << 31
    *(2.0**-31, 2.0**-32, 2.0**-33, (1 - 2.0**-40) * 2.0**-32, 1e-300, 5e-324),  # shift < -31
    *((2**30 + 0.5) * 2.0**-31, -(2**30 + 0.5) * 2.0**-31, (2**30 + 1.5) * 2.0**-31),  # ties
    *(2.0**29, 2.0**30, 2.0**31, 2.0**40),
]


@pytest.mark.parametrize("real", CORNERS)
def test_corners(real: float) -> None:
    assert multiplier.quantize_multiplier(real) == _expected(real)


@given(st.floats(-(2.0**40), 2.0**40))
def test_by_rational_arithmetic(real: float) -> None:
    assert multiplier.quantize_multiplier(real) == _expected(real)


@given(st.floats(1e-9, 2.0**30))
def test_the_pair_represents_the_real(real: float) -> None:
    q, shift = multiplier.quantize_multiplier(real)
    assert 2**30 <= q < 2**31
    assert abs(Fraction(q) * Fraction(2) ** (shift - 31) / Fraction(real) - 1) <= Fraction(1, 2**31)


def test_arrays_are_computed_by_element() -> None:
    q, shift = multiplier.quantize_multipliers(np.array(CORNERS))
    assert q.dtype == shift.dtype == np.int32
    assert list(zip(q.tolist(), shift.tolist(), strict=True)) == [_expected(x) for x in CORNERS]


def test_the_largest_shift_is_31() -> None:
    assert multiplier.quantize_multiplier(2.0**30) == (2**30, 31)


@pytest.mark.parametrize("real", [math.nan, math.inf, -math.inf])
def test_a_real_that_is_not_finite_is_refused(real: float) -> None:
    with pytest.raises(ValueError, match="finite"):
        multiplier.quantize_multiplier(real)


def test_ranges_of_the_variants() -> None:
    assert multiplier.quantize_multiplier_smaller_than_one(0.3) == _expected(0.3)
    assert multiplier.quantize_multiplier_greater_than_one(7.0) == _expected(7.0)
    for real in (0.0, -0.5, 1.0, 1.5, 1 - 2.0**-40, math.nan):
        with pytest.raises(ValueError, match="multiplier"):
            multiplier.quantize_multiplier_smaller_than_one(real)
    for real in (1.0, 0.5, -3.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="multiplier"):
            multiplier.quantize_multiplier_greater_than_one(real)


@given(st.integers(0, 2**31 - 1))
def test_downscaled_multipliers(q: int) -> None:
    nearest = math.floor(Fraction(q, 2**16) + Fraction(1, 2))
    assert multiplier.downscale_multiplier(q) == min(nearest, 2**15 - 1)


def test_negative_multipliers_are_not_downscaled() -> None:
    with pytest.raises(ValueError, match="at least 0"):
        multiplier.downscale_multiplier(-1)


# beta, scale, integer bits; multiplier and shift: TFLite's own expectations
# (kernels/internal/quantization_util_test.cc).
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((1.0, 16.0, 4), (2147483647, 31)),
        ((1.0, 8.0, 4), (1073741824, 31)),
        ((1.0, 4.0, 4), (1073741824, 30)),
        ((2.0, 16.0, 5), (2147483647, 31)),
        ((2.0, 8.0, 5), (1073741824, 31)),
        ((2.0, 4.0, 5), (1073741824, 30)),
    ],
)
def test_softmax_multipliers(
    arguments: tuple[float, float, int], expected: tuple[int, int]
) -> None:
    assert multiplier.softmax_multiplier(*arguments) == expected


@given(st.floats(0.1, 4.0), st.floats(2.0**-20, 2.0**8))
def test_log_softmax_multipliers_are_inverses(beta: float, scale: float) -> None:
    q, shift, back, back_shift = multiplier.log_softmax_multipliers(beta, scale, 5)
    there = Fraction(q) * Fraction(2) ** (shift - 31)
    and_back = Fraction(back) * Fraction(2) ** (back_shift - 31)
    assert abs(there * and_back - 1) < Fraction(1, 2**29)
    assert (q, shift) == _expected(min(beta * scale * 2.0**26, 2.0**31 - 1))


@pytest.mark.parametrize("beta", [0.0, 1.0])
def test_a_softmax_of_tiny_steps_has_the_least_multiplier_above_one(beta: float) -> None:
    assert multiplier.softmax_multiplier(beta, 2.0**-30, 5) == (2**30 + 1, 1)
    assert multiplier.log_softmax_multipliers(beta, 2.0**-30, 5) == (2**30 + 1, 1, 2**31 - 2, 0)


def test_a_softmax_of_negative_beta_is_refused() -> None:
    with pytest.raises(ValueError, match="above 1"):
        multiplier.softmax_multiplier(-1.0, 0.1, 5)


@given(st.integers(1, 15), st.integers(0, 31))
def test_the_input_radius(bits: int, shift: int) -> None:
    want = math.floor(Fraction((2**bits - 1) * 2 ** (31 - bits), 2**shift))
    assert multiplier.input_radius(bits, shift) == want


@pytest.mark.parametrize("power", [-15, -12, -1, 0, 3])
def test_powers_of_two_are_recognized(power: int) -> None:
    assert multiplier.checked_log2(2.0**power) == (power, True)
    assert multiplier.checked_log2(2.0**power * 1.0005) == (power, True)
    assert multiplier.checked_log2(2.0**power * 1.002) == (power, False)
    assert multiplier.checked_log2(2.0**power * 0.998) == (power, False)
