"""Functions of fixed-point numbers are near the real functions, and equal gemmlowp's bit for bit.

The checksums (CRC-32 of the little-endian results) were recorded from a C++ program made of
gemmlowp's fixedpoint.h and TFLite's kernels/internal/common.h.
"""

import math
import zlib
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest

from jaxdelegate.quant import fixed_math, fixed_point

INT16 = np.arange(-(2**15), 2**15).astype(np.int16)
INT32 = (np.arange(2**16, dtype=np.int64) * (1000003 * 65537)).astype(np.int32)  # wraps around
POSITIVE = INT32[INT32 > 0]

RECORDED = {
    ("exp_on_negative_values", "int16", 0): 0xC9B79A8B,
    ("exp_on_negative_values", "int16", 3): 0x4C4C5750,
    ("exp_on_negative_values", "int16", 4): 0x3DC6B48D,
    ("exp_on_negative_values", "int16", 5): 0x8AD05BC0,
    ("exp_on_negative_values", "int16", 6): 0xF5CD49BE,
    ("logistic", "int16", 0): 0x02B13496,
    ("logistic", "int16", 3): 0x89B3F38E,
    ("logistic", "int16", 4): 0x6A50EDC4,
    ("logistic", "int16", 5): 0x0E5840A2,
    ("logistic", "int16", 6): 0xE0268B65,
    ("tanh", "int16", 0): 0xA348DAF8,
    ("tanh", "int16", 3): 0x70B28DFE,
    ("tanh", "int16", 4): 0x215077B2,
    ("tanh", "int16", 5): 0x3A695108,
    ("tanh", "int16", 6): 0x32E074AE,
    ("exp_on_negative_values", "int32", 0): 0x8DC8142B,
    ("exp_on_negative_values", "int32", 3): 0xA5FE7BE5,
    ("exp_on_negative_values", "int32", 4): 0x5FE3E9EF,
    ("exp_on_negative_values", "int32", 5): 0x8F4D462A,
    ("exp_on_negative_values", "int32", 6): 0x3F3F45C7,
    ("exp_on_negative_values", "int32", 12): 0xDF5EAF8D,
    ("logistic", "int32", 0): 0x2FD2136C,
    ("logistic", "int32", 3): 0xFC55B8D1,
    ("logistic", "int32", 4): 0xFF2BD31C,
    ("logistic", "int32", 5): 0xABA854BA,
    ("logistic", "int32", 6): 0xB8C7AAF1,
    ("logistic", "int32", 12): 0x295FC826,
    ("tanh", "int32", 0): 0xE4FC9897,
    ("tanh", "int32", 3): 0xE3FA6B7A,
    ("tanh", "int32", 4): 0xC6B77B69,
    ("tanh", "int32", 5): 0x9F313A37,
    ("tanh", "int32", 6): 0xF896EDAB,
    ("tanh", "int32", 12): 0x1BEC3E46,
}
REAL: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "exp_on_negative_values": np.exp,
    "logistic": lambda x: 1 / (1 + np.exp(-np.clip(x, -700, None))),
    "tanh": np.tanh,
}


def _checksum(y: np.ndarray) -> int:
    return zlib.crc32(y.astype(y.dtype.newbyteorder("<")).tobytes())


def _domain(name: str, dtype: str) -> np.ndarray:
    x = INT16 if dtype == "int16" else INT32
    return x[x <= 0] if name == "exp_on_negative_values" else x


@pytest.mark.parametrize(("name", "dtype", "bits"), RECORDED)
def test_of_reals(name: str, dtype: str, bits: int) -> None:
    x = _domain(name, dtype)
    y = getattr(fixed_math, name)(x, bits)
    assert y.dtype == x.dtype
    assert _checksum(y) == RECORDED[name, dtype, bits]
    width = 8 * x.dtype.itemsize
    want = REAL[name](x / 2.0 ** (width - 1 - bits))
    np.testing.assert_allclose(
        y / 2.0 ** (width - 1), want, rtol=0, atol=6e-4 if width == 16 else 5e-7
    )


def test_of_zero_and_the_lowest() -> None:
    corners = np.int32([0, -(2**31)])
    assert fixed_math.exp_on_negative_values(corners, 5).tolist() == [2**31 - 1, 0]
    assert fixed_math.logistic(corners, 5).tolist() == [2**30, 0]
    assert fixed_math.tanh(corners, 5).tolist() == [0, -(2**31 - 1)]


def test_one_over_one_plus_x() -> None:
    y = fixed_math.one_over_one_plus_x(POSITIVE)
    assert _checksum(y) == 0x77A3CD3F
    np.testing.assert_allclose(y / 2**31, 1 / (1 + POSITIVE / 2**31), rtol=0, atol=1e-8)


def test_one_minus_x_over_one_plus_x() -> None:
    y = fixed_math.one_minus_x_over_one_plus_x(POSITIVE)
    x = POSITIVE / 2**31
    np.testing.assert_allclose(y / 2**31, (1 - x) / (1 + x), rtol=0, atol=1e-8)


def test_log() -> None:
    y = fixed_math.log_at_least_one(POSITIVE, 12, 5)
    assert _checksum(y) == 0xAB48A41B
    np.testing.assert_allclose(y / 2**26, np.log(POSITIVE / 2**19), rtol=0, atol=1e-5)


def test_reciprocal() -> None:
    significand, exponent = fixed_math.reciprocal(POSITIVE, 12)
    assert (_checksum(significand), _checksum(exponent)) == (0xC0E83B45, 0x31223A6C)
    got = significand / 2**31 / 2.0**exponent
    np.testing.assert_allclose(got, 2**19 / POSITIVE, rtol=1e-8)


def test_inverse_sqrt() -> None:
    y, shift = fixed_math.inverse_sqrt(POSITIVE)
    assert (_checksum(y), _checksum(shift)) == (0x4F369ECA, 0x287912C5)
    assert y.dtype == shift.dtype == np.int32
    np.testing.assert_allclose(y * 2.0 ** (shift - 31.0), POSITIVE**-0.5, rtol=2e-6)


def test_inverse_sqrt_of_small_and_large_integers() -> None:
    y, shift = fixed_math.inverse_sqrt(np.int32([0, 1, 2, 3, 100, 2**29 - 1, 2**29, 2**31 - 1]))
    assert y.tolist() == [
        *(2147483647, 2147483647, 1518498372, 1239850284, 214748363),
        *(189812531, 379624593, 189812531),
    ]
    assert shift.tolist() == [0, 0, 0, 0, 0, -11, -12, -12]


def test_inverse_sqrt_is_a_multiplier() -> None:
    x = np.int32([4, 77, 5000, 2**30])
    y = fixed_point.multiply_by_quantized_multiplier(2**24, *fixed_math.inverse_sqrt(x))
    want = [2**24 / math.sqrt(n) for n in x.tolist()]
    np.testing.assert_allclose(y, want, rtol=1e-6, atol=1)


def test_constants() -> None:
    def is_nearest(raw: int, real: float, integer_bits: int = 0) -> bool:
        return abs(Fraction(raw, 2 ** (31 - integer_bits)) - Fraction(real)) <= Fraction(
            1, 2 ** (32 - integer_bits)
        )

    m, root = fixed_math, 2**0.25
    assert is_nearest(m.EXP_MINUS_1_8, math.exp(-1 / 8))
    assert is_nearest(m.ONE_THIRD, 1 / 3)
    assert all(is_nearest(raw, math.exp(-(2.0**k))) for k, raw in m.EXP_MINUS_POT.items())
    assert is_nearest(m.F2_48_17, 48 / 17, 2)
    assert is_nearest(m.F2_MINUS_32_17, -32 / 17, 2)
    assert is_nearest(m.LOG_2, math.log(2))
    assert is_nearest(m.SQRT_HALF, 0.5**0.5)
    assert is_nearest(m.SQRT_SQRT_HALF, 1 / root)
    assert is_nearest(m.LOG_ALPHA_N, 11 / 240 * root)
    assert is_nearest(m.LOG_ALPHA_D, root / 20)
    assert is_nearest(m.LOG_ALPHA_I, 2 / root - root)
    assert is_nearest(m.LOG_ALPHA_F, root / 4)
