"""Fixed point in 32 bits, as GPUs and TPUs compute it: the bits of the numpy functions."""

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxdelegate.quant import fixed_point, jax_requantize, requantize
from jaxdelegate.quant.jax_fixed_point import (
    high_mul_in_halves,
    multiply_in_halves,
    saturating_rounding_doubling_high_mul,
)

LOW, HIGH = -(2**31), 2**31 - 1
HALVES = [0, 1, 2, 2**14 - 1, 2**14, 2**15 - 1, 2**15, 2**15 + 1, 2**16 - 2, 2**16 - 1]
# Every pair of halves at the ends of their ranges, with both signs.
CORNERS = np.int64([(a << 16) + b for a in HALVES for b in HALVES]).astype(np.uint32)
SIGNED = np.unique(CORNERS.view(np.int32))
MULTIPLIERS = SIGNED[SIGNED >= 0]


def high_mul(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.asarray(fixed_point.saturating_rounding_doubling_high_mul(a, b))


def test_products_of_all_corners() -> None:
    a, b = (v.reshape(-1) for v in np.meshgrid(SIGNED, MULTIPLIERS))
    np.testing.assert_array_equal(high_mul_in_halves(jax.numpy.asarray(a), b), high_mul(a, b))


def test_products_that_end_next_to_a_tie() -> None:
    """Multiples of 2**30 and their neighbours, where the last bit of the quotient turns."""
    random = np.random.default_rng(0)
    b = random.integers(1, HIGH, 200_000, endpoint=True)
    most = (b << 31) // (1 << 30)
    middle = (random.integers(-most, most) << 30) // b
    a = np.clip(middle + random.integers(-1, 2, b.size), LOW, HIGH).astype(np.int32)
    got = high_mul_in_halves(jax.numpy.asarray(a), b.astype(np.int32))
    np.testing.assert_array_equal(got, high_mul(a, b.astype(np.int32)))


@given(
    st.lists(st.integers(LOW, HIGH), min_size=64, max_size=64),
    st.lists(st.integers(0, HIGH), min_size=64, max_size=64),
    st.lists(st.integers(-31, 30), min_size=64, max_size=64),
)
def test_quantized_multipliers(values: list[int], factors: list[int], exponents: list[int]) -> None:
    x, multiplier, shift = (np.int32(v) for v in (values, factors, exponents))
    want = fixed_point.multiply_by_quantized_multiplier(x, multiplier, shift)
    got = jax.jit(multiply_in_halves)(x, multiplier, shift)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
def test_devices_requantize_without_64_bits(platform: str) -> None:
    multiplier, shift = np.int32([2**30, 2**31 - 1]), np.int32([-3, 2])

    def end(x: jax.Array) -> jax.Array:
        bounds = -128, 127
        return jax_requantize.requantize_accumulator(
            x, multiplier, shift, 3, bounds, np.dtype(np.int8)
        )

    x = np.arange(-300, 300, dtype=np.int32).reshape(-1, 2)
    with jax.enable_x64(True):
        traced = jax.jit(end).trace(x)
        assert "300x2xi64" not in traced.lower(lowering_platforms=(platform,)).as_text()
        assert "300x2xi64" in traced.lower(lowering_platforms=("cpu",)).as_text()
        got = jax.jit(end)(x)
    rest = multiplier, shift, 3, (-128, 127), np.dtype(np.int8)
    np.testing.assert_array_equal(got, requantize.requantize_accumulator(x, *rest))


def test_what_may_be_negative_keeps_its_saturation() -> None:
    with jax.enable_x64(True):
        got = saturating_rounding_doubling_high_mul(np.int32([LOW]), np.int32([LOW]))
    np.testing.assert_array_equal(got, [HIGH])
