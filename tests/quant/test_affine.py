from fractions import Fraction

import jax
import ml_dtypes
import numpy as np
import pytest

from jaxdelegate.quant import affine, jax_affine
from jaxdelegate.quant.affine import block_parameters, spread
from jaxdelegate.quant.params import Blockwise, Quantization
from tests.support.exact import clamped, half_away
from tests.support.quantized import scaled

SCALES = [0.3, 0.0123, 7.7, 1.0, 1 / 3, 2.0**-7, 0.0078431377]
DTYPES = [
    np.dtype(t)
    for t in (np.int8, np.uint8, np.int16, ml_dtypes.int4, ml_dtypes.uint4, ml_dtypes.int2)
]


def _ties(scale: float, rng: np.random.Generator) -> np.ndarray:
    """Values at, just below and just above the middle between two steps, and random ones."""
    middle = ((np.arange(-200, 200) + 0.5) * np.float32(scale)).astype(np.float32)
    around = [middle, np.nextafter(middle, np.float32(9e9)), np.nextafter(middle, np.float32(-9e9))]
    spread = rng.uniform(-200, 200, 5000).astype(np.float32) * np.float32(scale)
    return np.concatenate([*around, spread, np.array([np.nan, np.inf, -np.inf, -0.0], np.float32)])


def _jitted(function, *arguments):  # type: ignore[no-untyped-def]
    with jax.enable_x64(True):
        return np.asarray(jax.jit(function)(*arguments))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_jax_quantizes_as_numpy(dtype: np.dtype, rng: np.random.Generator) -> None:
    for scale in SCALES:
        x, q = _ties(scale, rng), scaled([scale], [1])
        got = _jitted(lambda x, q=q: jax_affine.quantize(x, q, dtype), x)
        assert got.dtype == dtype
        np.testing.assert_array_equal(got.astype(int), affine.quantize(x, q, dtype).astype(int))


def test_jax_quantizes_channels_as_numpy(rng: np.random.Generator) -> None:
    q = scaled(SCALES, list(range(-3, 4)), 1)
    x = rng.uniform(-50, 50, (300, len(SCALES), 3)).astype(np.float32)
    got = _jitted(lambda x: jax_affine.quantize(x, q, np.dtype(np.int8)), x)
    np.testing.assert_array_equal(got, affine.quantize(x, q, np.dtype(np.int8)))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_jax_dequantizes_as_numpy(dtype: np.dtype) -> None:
    low, high = affine.integer_range(dtype)
    values = np.arange(low, high + 1, max((high - low) // 500, 1)).astype(dtype)
    for scale in SCALES:
        q = scaled([scale], [low // 3])
        got = _jitted(lambda x, q=q: jax_affine.dequantize(x, q), values)
        want = affine.dequantize(values, q)
        assert got.dtype == want.dtype == np.float32
        np.testing.assert_array_equal(got.view(np.uint32), want.view(np.uint32))


@pytest.mark.parametrize(
    ("low", "high", "bits", "narrow"), [(-1, 1, 8, False), (0, 6, 4, True), (-1.3, 2.9, 16, False)]
)
def test_jax_fake_quantizes_as_numpy(
    low: float, high: float, bits: int, narrow: bool, rng: np.random.Generator
) -> None:
    x = rng.uniform(low - 1, high + 1, 5000).astype(np.float32)
    got = _jitted(lambda x: jax_affine.fake_quantize(x, low, high, bits, narrow_range=narrow), x)
    want = affine.fake_quantize(x, low, high, bits, narrow_range=narrow)
    np.testing.assert_array_equal(got, want)


def _nearest_float32(x: Fraction) -> Fraction:
    """The float32 nearest to a rational number, by exact comparison."""
    near = np.float32(float(x))
    candidates = [
        Fraction(float(c)) for c in (near, *np.nextafter(near, [np.float32(9e9), np.float32(-9e9)]))
    ]
    return min(candidates, key=lambda c: abs(c - x))


def test_quantize_by_exact_arithmetic(rng: np.random.Generator) -> None:
    scale = np.float32(0.0123)
    x = rng.uniform(-1, 1, 400).astype(np.float32)
    got = affine.quantize(x, scaled([float(scale)], [5]), np.dtype(np.int8))
    for value, q in zip(x, got, strict=True):
        ratio = _nearest_float32(Fraction(float(value)) / Fraction(float(scale)))
        assert q == clamped(half_away(ratio) + 5, -128, 127)


def test_dequantize_by_exact_arithmetic() -> None:
    scale, q = np.float32(0.0123), np.arange(-128, 128).astype(np.int8)
    got = affine.dequantize(q, scaled([float(scale)], [5]))
    for value, x in zip(q, got, strict=True):
        assert Fraction(float(x)) == _nearest_float32(Fraction(float(scale)) * (int(value) - 5))


def test_zero_is_a_level() -> None:
    for low, high in ((-1.0, 1.0), (-0.3, 2.0), (0.0, 6.0), (-6.0, 0.0)):
        for bits in (2, 8, 16):
            levels = affine.fake_quantize(
                np.zeros(1, np.float32), low, high, bits, narrow_range=False
            )
            assert levels[0] == pytest.approx(0.0, abs=1e-6)


def _blocks(
    scale: object, size: int, points: object = None, axes: tuple[int, ...] = ()
) -> Blockwise:
    points = None if points is None else np.asarray(points)
    return Blockwise(0, -1, size, axes, np.asarray(scale, np.float16), points)


def _in_blocks(blocks: Blockwise) -> Quantization:
    return Quantization(np.float32([]), np.int64([]), blockwise=blocks)


def test_each_block_is_dequantized_by_its_scale() -> None:
    q = np.arange(-8, 8).reshape(2, 8).astype(ml_dtypes.int4)
    scale, points = np.array([[1, 2], [4, 0.5]]), np.array([[0, 1], [-2, 3]])
    want = (q.astype(int) - np.repeat(points, 4, 1)) * np.repeat(scale, 4, 1)
    for shape in ((2, 2), (4,)):
        blocks = _in_blocks(_blocks(scale.reshape(shape), 4, points.reshape(shape)))
        got = affine.dequantize(q, blocks)
        assert got.dtype == np.float32
        np.testing.assert_array_equal(got, want)
        np.testing.assert_array_equal(
            _jitted(lambda q, b=blocks: jax_affine.dequantize(q, b), q), want
        )


def test_scales_of_several_axes_are_dequantized() -> None:
    q = np.arange(12).reshape(2, 3, 2).astype(np.int8)
    scale = np.arange(1, 5).reshape(2, 2) / 8  # [axis 0, axis 2]
    blocks = _in_blocks(_blocks(scale, 0, axes=(0, 2)))
    np.testing.assert_array_equal(affine.dequantize(q, blocks), q * scale[:, None, :])


def test_one_block_scale_counts_for_all() -> None:
    q = np.arange(6).reshape(2, 3).astype(np.int8)
    blocks = _in_blocks(_blocks([0.5], 32, [1]))
    np.testing.assert_array_equal(affine.dequantize(q, blocks), (q - 1) * 0.5)


@pytest.mark.parametrize(
    ("blocks", "problem"),
    [
        (Blockwise(1, -1, 32), "not known"),
        (Blockwise(1, 2, 4, (), np.ones((2, 2), np.float16)), "not known"),
        (_blocks(np.ones(3), 4), "3 scales do not fit"),
        (_blocks([[1, np.nan], [1, 1]], 4), "not finite"),
    ],
)
def test_reasons_against_blocks(blocks: Blockwise, problem: str) -> None:
    assert problem in (affine.why_not_blocks(_in_blocks(blocks), (2, 8)) or "")


def test_no_reason_against_other_scales() -> None:
    assert affine.why_not_blocks(None, (2, 8)) is None
    assert affine.why_not_blocks(scaled([0.5], [0]), (2, 8)) is None
    assert affine.why_not_blocks(_in_blocks(_blocks(np.ones(4), 4)), (2, 8)) is None


def test_unknown_block_scales_are_refused() -> None:
    q = Quantization(np.ones(1, np.float32), np.zeros(1, np.int64), blockwise=Blockwise(1, -1, 32))
    for function in (affine.dequantize, jax_affine.dequantize):
        with pytest.raises(ValueError, match="blockwise"):
            function(np.zeros(2, np.int8), q)  # type: ignore[operator]
    with pytest.raises(ValueError, match="one dimension"):
        affine.quantize(np.zeros(2, np.float32), q, np.dtype(np.int8))


def test_rows_of_numbers_too_small_for_an_inverse_are_zeros() -> None:
    x = np.array([[1e-38, 0.0, 0.0], [3e-39, -3e-39, 0.0]], np.float32)
    assert affine.symmetric_quantize(x)[0][0].tolist()[1:] == [0, 0]
    assert affine.asymmetric_quantize(x)[0].dtype == np.int8


@pytest.mark.parametrize("blocks", [(6, 4), (1, 4), (3, 2), (6, 1), (1, 1)])
def test_parameters_of_some_rows(blocks: tuple[int, int]) -> None:
    """They are those of the whole tensor in these rows."""
    rng, shape, rows = np.random.default_rng(0), (6, 8), np.array([5, 0, 3, 3])
    scale = rng.uniform(1, 2, blocks).astype(np.float16)
    points = rng.integers(-3, 3, blocks).astype(np.int8)
    blockwise = Blockwise(-1, 0, 2, (), scale, points)
    whole = (
        np.broadcast_to(spread(v, shape), shape)[rows] for v in block_parameters(blockwise, shape)
    )
    some = (
        np.broadcast_to(spread(v, (4, 8)), (4, 8)) for v in block_parameters(blockwise, shape, rows)
    )
    for got, want in zip(some, whole, strict=True):
        np.testing.assert_array_equal(got, want)


def test_a_large_constant_is_dequantized_when_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.arange(300 * 256).reshape(300, 256).astype(np.int8)
    q, counts = scaled(np.geomspace(0.1, 9, 300), axis=0), []
    want, run = affine.dequantize(values, q), affine.dequantize
    monkeypatch.setattr(affine, "dequantize", lambda *a: counts.append(1) or run(*a))
    found = affine.dequantized(values, q)
    assert (found.shape, found.dtype, found.nbytes) == (want.shape, want.dtype, want.nbytes)
    assert not counts
    np.testing.assert_array_equal(found, want)
    np.testing.assert_array_equal(found[3:5], want[3:5])
    np.testing.assert_array_equal(found.transpose(1, 0), want.T)
    assert float(found.max()) == want.max()
    assert len(counts) > 3
    assert isinstance(affine.dequantized(values[:9], scaled(0.5)), np.ndarray)
