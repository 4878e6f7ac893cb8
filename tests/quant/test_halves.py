"""Fixed point in 32 bits, as GPUs and TPUs compute it, equals the numpy functions bit for bit."""

import re
from collections.abc import Callable

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxdelegate.op_lowering.normalization.quantized import lower_softmax
from jaxdelegate.op_lowering.options import SoftmaxOptions
from jaxdelegate.op_lowering.spec import TensorSpec
from jaxdelegate.quant import fixed_math, fixed_point, jax_fixed_point, jax_requantize, requantize
from jaxdelegate.quant.jax_fixed_point import (
    high_mul_in_halves,
    multiply_in_halves,
    saturating_rounding_doubling_high_mul,
)
from tests.support.quantized import scaled

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
    """Multiples of 2**30 and their neighbors, where the last bit of the quotient changes."""
    random = np.random.default_rng(0)
    b = random.integers(1, HIGH, 200_000, endpoint=True)
    most = (b << 31) // (1 << 30)
    middle = (random.integers(-most, most) << 30) // b
    a = np.clip(middle + random.integers(-1, 2, b.size), LOW, HIGH).astype(np.int32)
    got = high_mul_in_halves(jax.numpy.asarray(a), b.astype(np.int32))
    np.testing.assert_array_equal(got, high_mul(a, b.astype(np.int32)))


@settings(deadline=None)  # the first example compiles
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


@pytest.mark.usefixtures("as_on_a_gpu")
def test_products_of_factors_that_may_be_negative() -> None:
    a, b = (v.reshape(-1) for v in np.meshgrid(SIGNED, SIGNED))
    got = jax.jit(saturating_rounding_doubling_high_mul)(a, b)
    np.testing.assert_array_equal(got, high_mul(a, b))


@pytest.mark.usefixtures("as_on_a_gpu")
def test_reciprocals() -> None:
    x = SIGNED[SIGNED > 0]
    got = jax.jit(lambda x: fixed_math.reciprocal(x, 12, jax_fixed_point))(x)
    np.testing.assert_array_equal(got, fixed_math.reciprocal(x, 12))


# Scales next to odd / even numbers, whose products with integers end next to halves; of any size.
RANDOM = np.random.default_rng(4)
ODD, EVEN = 2 * RANDOM.integers(0, 1 << 15, 97) + 1, 2 * RANDOM.integers(1, 1 << 20, 97)
SCALES = np.concatenate(
    [
        *(np.nextafter(ODD / EVEN, end) for end in (0, ODD / EVEN, 9e9)),
        np.exp2(RANDOM.uniform(-45, 25, 97)),
        [0.0, 0.5, 0.25, 1 / 3, 1 / 6, 1e-9, 1.0, 2.0**-31, 2.0**-32, 2.0**-33],
    ]
)


@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize(
    ("dtype", "zero_point", "bounds"),
    [("int8", -128, (-128, 127)), ("uint8", 255, (3, 255)), ("int16", 0, (-32768, 32767))],
)
def test_real_factors(dtype: str, zero_point: int, bounds: tuple[int, int]) -> None:
    """Sums on both sides of every half of some scales, and of every magnitude."""
    halves = RANDOM.integers(0, 1 << RANDOM.integers(1, 17, (300, SCALES.size))) + 0.5
    nearest = np.rint(halves / np.maximum(SCALES, 1e-30)) + RANDOM.integers(-1, 2, halves.shape)
    near = np.clip(nearest * RANDOM.choice([-1, 1], halves.shape), LOW, HIGH).astype(np.int32)
    every = np.repeat(np.concatenate([SIGNED, [LOW, HIGH]])[:, None], SCALES.size, 1)
    x = np.concatenate([near, every.astype(np.int32)])
    rest = SCALES, zero_point, bounds, np.dtype(dtype)
    with jax.enable_x64(True):
        got = jax.jit(lambda x: jax_requantize.requantize_accumulator_by_real(x, *rest))(x)
    np.testing.assert_array_equal(got, requantize.requantize_accumulator_by_real(x, *rest))


BYTES = np.dtype(np.int8)
ENDS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "requantize_accumulator": lambda x: jax_requantize.requantize_accumulator(
        x, np.int32([2**30, 2**31 - 1]), np.int32([-3, 2]), 3, (-128, 127), BYTES
    ),
    "requantize_accumulator_by_real": lambda x: jax_requantize.requantize_accumulator_by_real(
        x, np.array([0.5, 0.3]), 3, (-128, 127), BYTES
    ),
    "softmax": lambda x: lower_softmax(
        SoftmaxOptions(beta=1.0),
        TensorSpec("x", (300, 2), BYTES, scaled(0.1, 3)),
        TensorSpec("y", (300, 2), BYTES, scaled(1 / 256, -128)),
    )(x.astype(BYTES)),
}


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
@pytest.mark.parametrize("end", ENDS)
def test_devices_need_no_64_bits(end: str, platform: str) -> None:
    x = np.arange(-300, 300, dtype=np.int32).reshape(-1, 2)
    with jax.enable_x64(True):
        traced = jax.jit(ENDS[end]).trace(x)
        wide = re.compile("tensor<300x[0-9x]*[a-z]+64>")  # of the rows, not of a constant
        assert not wide.findall(traced.lower(lowering_platforms=(platform,)).as_text())
        assert wide.findall(traced.lower(lowering_platforms=("cpu",)).as_text())


def test_factors_that_may_be_negative_saturate() -> None:
    with jax.enable_x64(True):
        got = saturating_rounding_doubling_high_mul(np.int32([LOW]), np.int32([LOW]))
    np.testing.assert_array_equal(got, [HIGH])
