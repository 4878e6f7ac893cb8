"""Quantization of floats on the fly, blockwise scales and grids, value by value."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from jaxdelegate.quant import affine, eigen
from jaxdelegate.quant.params import Blockwise
from tests.support.exact import clamped, half_away

F32 = np.float32
ROWS = arrays(np.float32, (3, 7), elements=st.floats(-1000, 1000, width=32, allow_subnormal=False))


@given(ROWS)
def test_symmetric_rows(x: np.ndarray) -> None:
    q, scale = affine.symmetric_quantize(x)
    assert (q.dtype, scale.dtype, scale.shape) == (np.int8, np.float32, (3,))
    for row, got, s in zip(x, q.tolist(), scale, strict=True):
        extent = np.abs(row).max()
        with np.errstate(over="ignore"):
            inverse = F32(127) / extent if extent else F32(0)
        if not np.isfinite(inverse):
            continue
        assert s == (extent / F32(127) if extent else 1)
        assert got == [clamped(half_away(v * inverse), -127, 127) for v in row]


def _asymmetric(row: np.ndarray) -> tuple[list[int], np.float32, int]:
    """Step by step as in the kernel, with Python's floats for doubles."""
    low, high = min(F32(0), row.min()), max(F32(0), row.max())
    if low == high:
        return [0] * row.size, F32(1), 0
    scale = float(high - low) / 255.0
    low, high = float(low), float(high)
    from_low, from_high = -128.0 - low / scale, 127.0 - high / scale
    is_lower = 128.0 + abs(low / scale) < 127.0 + abs(high / scale)
    offset = clamped(half_away(from_low if is_lower else from_high), -128, 127)
    inverse = F32(1) / F32(scale)
    return [clamped(offset + half_away(v * inverse), -128, 127) for v in row], F32(scale), offset


@given(ROWS)
def test_asymmetric_rows(x: np.ndarray) -> None:
    q, scale, offset = affine.asymmetric_quantize(x)
    assert (q.dtype, scale.dtype, offset.dtype) == (np.int8, np.float32, np.int32)
    for row, *got in zip(x, q.tolist(), scale, offset.tolist(), strict=True):
        if row.any() and np.abs(row).max() < 2.0**-100:
            continue  # float32 holds no inverse of the scale
        assert tuple(got) == _asymmetric(row)


def test_rows_of_zeros_and_no_rows() -> None:
    for shape in ((2, 3), (0, 3), (2, 0)):
        q, scale = affine.symmetric_quantize(np.zeros(shape, F32))
        assert q.shape == shape
        assert scale.tolist() == [1] * shape[0]
        q, scale, offset = affine.asymmetric_quantize(np.zeros(shape, F32))
        assert not q.any()
        assert (scale.tolist(), offset.tolist()) == ([1] * shape[0], [0] * shape[0])


# Shape of the tensor, of its scales, where they count, and the index of the scale of q[i, j, k].
BLOCKS = [
    ((4, 6), (4, 3), Blockwise(1, -1, 2), lambda i, j: (i, j // 2)),
    ((4, 6), (12,), Blockwise(1, -1, 2), lambda i, j: (3 * i + j // 2,)),
    ((4, 6), (2, 3), Blockwise(1, -1, 2), lambda i, j: (i // 2, j // 2)),
    ((2, 4, 3), (2, 3), Blockwise(1, -1, 0, (0, 2)), lambda i, _j, k: (i, k)),
    ((2, 4, 3), (2, 3), Blockwise(1, -1, 32, (0, 2)), lambda i, _j, k: (i, k)),
    ((2, 4, 3), (3, 2), Blockwise(1, -1, 0, (2, 0)), lambda i, _j, k: (k, i)),
    ((2, 4, 6), (2, 3), Blockwise(1, -1, 2, (0, 2)), lambda i, _j, k: (i, k // 2)),
    ((2, 4, 6), (2, 2, 1), Blockwise(1, -1, 2, (0, 1)), lambda i, j, _k: (i, j // 2, 0)),
    ((3, 2), (2,), Blockwise(1, -1, 0, (1,)), lambda _i, j: (j,)),
    ((0, 4), (0, 2), Blockwise(1, -1, 2), lambda i, j: (i, j // 2)),
]


@pytest.mark.parametrize(("shape", "scale_shape", "blockwise", "index"), BLOCKS)
@pytest.mark.parametrize("has_zero_points", [False, True])
def test_blocks(shape, scale_shape, blockwise, index, has_zero_points) -> None:  # type: ignore[no-untyped-def]
    rng = np.random.default_rng(0)
    q = rng.integers(-8, 8, shape).astype(np.int8)
    scales = rng.uniform(0.1, 2, scale_shape).astype(np.float16)
    zero_points = rng.integers(-8, 8, scale_shape) if has_zero_points else None
    got = affine.dequantize_blocks(q, scales, zero_points, blockwise)
    assert (got.dtype, got.shape) == (np.float32, shape)
    for at in np.ndindex(*shape):
        block = index(*at)
        zero = 0 if zero_points is None else int(zero_points[block])
        assert got[at] == F32(scales[block]) * F32(int(q[at]) - zero)


def test_scales_that_do_not_fit() -> None:
    q, blockwise = np.zeros((4, 6), np.int8), Blockwise(1, -1, 4)
    with pytest.raises(ValueError, match=r"6 scales do not fit \[4, 6\]"):
        affine.dequantize_blocks(q, np.ones(6, np.float16), None, blockwise)


def test_dequantized_biases_are_rounded_once() -> None:
    q = np.int32([2**31 - 1, -(2**31), 16777217, 3])
    scale = F32(0.1234567)
    got = affine.dequantize(q, affine.Quantization(np.array([scale]), np.array([7])))
    for value, real in zip(q.tolist(), got, strict=True):
        exact = Fraction(float(scale)) * (value - 7)
        gap = Fraction(float(np.spacing(np.abs(real))))
        assert abs(Fraction(float(real)) - exact) <= gap / 2


@pytest.mark.parametrize("scale", [0.0, 1.0])
def test_a_scale_of_zero(scale: float) -> None:
    q = affine.Quantization(F32([scale]), np.array([3]))
    assert affine.dequantize(np.int8([5]), q).tolist() == [2 * scale]
    if scale == 0:
        got = affine.quantize(F32([1, -1, 0]), q, np.dtype(np.int8))
        assert got.tolist() == [127, -128, -128]  # infinities, and a NaN


@pytest.mark.parametrize(
    ("function", "exact"), [(eigen.tanh, np.tanh), (eigen.logistic, lambda x: 1 / (1 + np.exp(-x)))]
)
def test_vector_functions(function, exact) -> None:  # type: ignore[no-untyped-def]
    x = np.linspace(-20, 20, 40001, dtype=F32)
    want = exact(x.astype(np.float64))
    y = function(x)
    assert y.dtype == np.float32
    assert (np.abs(y - want) <= 6 * np.spacing(np.abs(want).astype(F32))).all()
    assert np.isnan(function(F32([np.nan])))
