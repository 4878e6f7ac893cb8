"""Tables and lookups against arithmetic written out value by value."""

import math
import zlib
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxdelegate.quant import lookup
from tests.support.exact import clamped, half_away

INT16 = np.arange(-(2**15), 2**15).astype(np.int16)
F32 = np.float32


FUNCTIONS: dict[str, Callable[[float], float]] = {
    "exp": math.exp,
    "tanh": math.tanh,
    "logistic": lambda x: 1 / (1 + math.exp(-x)),
    "elu": lambda x: math.expm1(x) if x < 0 else x,
    "gelu": lambda x: x / 2 * math.erfc(-x / math.sqrt(2)),
    "gelu_approximate": lambda x: (
        x / 2 * (1 + math.tanh((2 / math.pi) ** 0.5 * (x + 0.044715 * x**3)))
    ),
    "one_over_one_plus": lambda x: 1 / (1 + x),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("real", [np.float32, np.float64])
def test_real_functions(name: str, real: type) -> None:
    x = np.linspace(0 if name == "one_over_one_plus" else -9, 9, 1001).astype(real)
    y = getattr(lookup, name)(x)
    assert y.dtype == real
    want = [FUNCTIONS[name](v) for v in x.tolist()]
    epsilon = np.finfo(real).eps
    np.testing.assert_allclose(y, want, rtol=64 * epsilon, atol=8 * epsilon)


def test_functions_with_a_bound() -> None:
    x = np.array([-1, 0, 0.25, 4], F32)
    assert lookup.log(-7.0)(x).tolist() == [-7, -7, F32(math.log(0.25)), F32(math.log(4))]
    assert lookup.rsqrt(9.0)(x).tolist() == [9, 9, 2, 0.5]


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize("name", ["exp", "logistic", "tanh"])
def test_tables_of_8_bits(name: str, dtype: type) -> None:
    low, high = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
    function = getattr(lookup, name)
    for scale, zero, y_scale, y_zero in ((0.05, 3, 1 / 256, low), (0.013, -2, 0.0371, 5)):
        table = lookup.lookup_table(function, scale, zero, y_scale, y_zero, np.dtype(dtype))
        assert table.dtype == dtype
        for q in range(low, high + 1):
            x = F32(scale) * F32(q - zero)
            y = function(np.array([x]))[0] * (F32(1) / F32(y_scale))
            assert table[q % 256] == clamped(half_away(y) + y_zero, low, high)


def _entry(
    function: Callable[[np.ndarray], np.ndarray], i: int, scale: float, y_scale: float
) -> int:
    """One entry of an int16 table with zero points of 0, float32 step by step."""

    def at(x: np.float32) -> np.float32:
        return F32(function(np.array([x]))[0] * inverse)

    first, last = F32(scale) * F32(-32768), F32(scale) * F32(32767)
    inverse = F32(65536) / (F32(y_scale) * F32(32767) - F32(y_scale) * F32(-32768))
    step = (last - first) / F32(512)
    if i == 512:
        return clamped(half_away(at(last)), -32768, 32767)
    here, there = first + F32(i) * step, first + F32(i + 1) * step
    value = half_away(at(here))
    error = half_away((at(there) + F32(value)) / F32(2)) - half_away(at(here + step / F32(2)))
    return clamped(value - half_away(F32(error) / F32(2)), -32768, 32767)


@pytest.mark.parametrize("name", ["exp", "logistic", "gelu"])
def test_tables_of_int16(name: str) -> None:
    function = getattr(lookup, name)
    for scale, y_scale in ((2.0**-12, 2.0**-15), (1.7e-4, 3.1e-3)):
        table = lookup.lookup_table(function, scale, 0, y_scale, 0, np.dtype(np.int16))
        assert table.dtype == np.int16
        assert table.tolist() == [_entry(function, i, scale, y_scale) for i in range(513)]


def test_the_tables_of_int16_softmax() -> None:
    # The only tables in float64; recorded from a C++ program made of kernels/internal/common.h.
    table = lookup.lookup_table(
        lookup.exp, 10 / 65535, 32767, 2 / 65535, 0, np.dtype(np.int16), real=np.float64
    )
    assert table[[0, 100, 256, 511, 512]].tolist() == [2, 11, 221, 32133, 32767]


def test_beyond_the_range() -> None:
    table = lookup.lookup_table(lookup.exp, 10.0, 0, 1e-3, 0, np.dtype(np.int8))
    assert table[127] == 127
    nan = lookup.lookup_table(lambda x: x * F32(np.nan), 1.0, 0, 1.0, 0, np.dtype(np.int8))
    assert set(nan.tolist()) == {-128}
    nan = lookup.lookup_table(lambda x: x * F32(np.nan), 1.0, 0, 1.0, 0, np.dtype(np.int16))
    assert set(nan.tolist()) == {0}


def test_lookups_of_8_bits() -> None:
    table = np.arange(256).astype(np.uint8)
    assert lookup.lut_lookup(np.uint8([0, 7, 255]), table).tolist() == [0, 7, 255]
    assert lookup.lut_lookup(np.int8([0, 7, -1]), table.view(np.int8)).tolist() == [0, 7, -1]


@given(st.integers(-(2**15), 2**15 - 1), st.integers(-(2**15), 2**15 - 1), st.integers(-9999, 9999))
def test_lookups_of_int16(q: int, base: int, slope: int) -> None:
    following = clamped(base + slope, -(2**15), 2**15 - 1)
    table = np.zeros(513, np.int16)
    table[256 + q // 128 : 258 + q // 128] = base, following
    delta = math.floor(Fraction((following - base) * (q % 128), 128) + Fraction(1, 2))
    assert lookup.lut_lookup(np.int16([q]), table).tolist() == [base + delta]


def test_slopes_wrap_around() -> None:
    table = np.zeros(513, np.int16)
    table[256:258] = -30000, 30000  # a slope of 60000, or -5536 as int16
    assert lookup.lut_lookup(np.int16([64]), table).tolist() == [-30000 - 5536 // 2]


def test_the_sigmoid_table() -> None:
    # The checksum is that of sigmoid_table_uint16 in kernels/internal/common.h.
    assert zlib.crc32(lookup.SIGMOID_TABLE.astype("<u2").tobytes()) == 0xB84F6AB4
    exact = 65536 / (1 + np.exp(-np.arange(256) / 24))
    assert np.abs(lookup.SIGMOID_TABLE - exact).max() < 1.2


@pytest.mark.parametrize(
    ("scale", "largest", "want"),
    [
        (2.0**-12, 0, (0, 0)),
        (2.0**-11, 1, (0, 1)),
        (2.0**-11, 0, (24576, 12)),
        (2.0**-15, 1, (24576, 16)),
        (1.0, 0, (24576, 1)),
        (3.0, 0, (36864, 0)),
        (1e-4, 1, (20132, 14)),
    ],
)
def test_multipliers_of_int16_inputs(scale: float, largest: int, want: tuple[int, int]) -> None:
    got = lookup.int16_input_multiplier(scale, largest)
    assert got == want
    multiplier, shift = got if got[0] else (3 << got[1], 0)
    assert multiplier / 2**shift == pytest.approx(scale * 3 * 4096, rel=1e-4)


@pytest.mark.parametrize("scale", [2.0**-12, 2.0**-11, 3e-4, 1e-3, 2e-5])
def test_sigmoids_of_int16(scale: float) -> None:
    x = INT16 * scale
    y = lookup.logistic_int16(INT16, *lookup.int16_input_multiplier(scale, 0))
    np.testing.assert_allclose(y / 2**15, 1 / (1 + np.exp(-x)), atol=7e-5)
    y = lookup.tanh_int16(INT16, *lookup.int16_input_multiplier(scale, 1))
    np.testing.assert_allclose(y / 2**15, np.tanh(x), atol=1.3e-4)
