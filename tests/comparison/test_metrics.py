"""The metrics of two arrays."""

import math

import ml_dtypes
import numpy as np
import pytest

import jaxdelegate as jd
from jaxdelegate.comparison.bounds import Bounds
from jaxdelegate.comparison.metrics import Comparer, TensorComparison
from jaxdelegate.quant.params import Quantization
from tests.support.quantized import scaled


def compare(
    got: np.ndarray,
    want: np.ndarray,
    bounds: Bounds | None = None,
    quantization: Quantization | None = None,
) -> TensorComparison:
    comparer = Comparer(3, "x", want.dtype, bounds or Bounds(), quantization)
    comparer.add(got, want)
    return comparer.result()


def q(scale: float, zero_point: int) -> Quantization:
    return scaled(scale, zero_point)


def test_every_figure_of_floats() -> None:
    want = np.array([3.0, -4.0, 0.0], np.float32)
    got = np.array([3.0, -4.5, 1.0], np.float32)
    found = compare(got, want)
    assert (found.index, found.name, found.dtype, found.shape) == (3, "x", "float32", (3,))
    assert (found.runs, found.elements, found.unequal, found.exceeding) == (1, 3, 2, 2)
    assert found.mean_abs == pytest.approx(0.5)
    assert found.max_abs == 1.0
    assert found.relative == pytest.approx(1.5 / 7)
    assert found.relative_to_largest == pytest.approx(1 / 4)
    norm_got = math.sqrt(9 + 4.5**2 + 1)
    assert found.cosine == pytest.approx((9 + 18) / (5 * norm_got))
    assert found.snr_db == pytest.approx(10 * math.log10(25 / 1.25))
    assert found.limit == pytest.approx(4e-4)
    assert found.worst is not None
    assert (found.worst.run, found.worst.position) == (0, (2,))
    assert (found.worst.got, found.worst.want) == (1.0, 0.0)
    assert not found.agrees
    assert found.lsb_histogram is None


def test_metrics_cover_all_runs() -> None:
    comparer = Comparer(0, "x", np.dtype(np.float32), Bounds())
    zeros = np.zeros((2,), np.float32)
    for error in (1.0, 3.0):
        comparer.add(zeros + np.float32(error), zeros)
    found = comparer.result()
    assert (found.runs, found.elements, found.mean_abs, found.max_abs) == (2, 4, 2.0, 3.0)
    assert (found.min_mean_abs, found.max_mean_abs, found.std_dev) == (1.0, 3.0, 1.0)
    assert found.worst is not None
    assert found.worst.run == 1
    assert (found.relative, found.cosine, found.snr_db) == (None, None, None)  # all-zero reference


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
def test_equal_floats_agree_nan_and_infinity_included(dtype: type) -> None:
    x = np.array([1, np.nan, np.inf, -np.inf, 0], dtype)
    found = compare(x.copy(), x)
    assert found.agrees
    assert (found.unequal, found.max_abs, found.nonfinite_mismatches) == (0, 0.0, 0)


@pytest.mark.parametrize(
    ("got", "want"), [(np.nan, 1.0), (1.0, np.nan), (np.inf, -np.inf), (np.inf, np.nan)]
)
def test_nan_or_infinity_on_one_side_differs(got: float, want: float) -> None:
    found = compare(np.array([got, 2.0], np.float32), np.array([want, 2.0], np.float32))
    assert (found.nonfinite_mismatches, found.unequal, found.agrees) == (1, 1, False)
    assert found.max_abs == 0.0
    assert "NaN or infinite on one side" in found.brief()


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_short_floats_have_a_wider_bound(dtype: type) -> None:
    want = np.array([1.0, 0.5], dtype)
    assert compare((want * dtype(1.0078125)).astype(dtype), want).agrees
    assert not compare((want * dtype(1.03125)).astype(dtype), want).agrees


def test_quantized_integers() -> None:
    want = np.array([10, 20, 30, -120], np.int8)
    got = np.array([11, 20, 28, 127], np.int8)
    found = compare(got, want, Bounds(max_lsb=1), q(0.5, 10))
    assert found.lsb_histogram == {-2: 1, 0: 1, 1: 1, 16: 1}
    assert (found.max_abs, found.exceeding) == (247.0, 2)
    assert found.mean_abs == pytest.approx((1 + 0 + 2 + 247) / 4)
    # The zero point does not count: 10 stands for 0.
    assert found.relative == pytest.approx(250 / (0 + 10 + 20 + 130))
    assert found.relative_to_largest == pytest.approx(247 / 130)


@pytest.mark.parametrize(("max_lsb", "agrees"), [(0, False), (1, True)])
def test_the_lsb_bound(max_lsb: int, agrees: bool) -> None:
    want = np.array([0, 255], np.uint8)
    found = compare(np.array([1, 254], np.uint8), want, Bounds(max_lsb=max_lsb), q(1, 128))
    assert found.agrees is agrees
    assert found.lsb_histogram == {-1: 1, 1: 1}


def test_per_channel_zero_points() -> None:
    quantization = Quantization(
        np.ones(2, np.float32), np.array([1, 2], np.int64), quantized_dimension=1
    )
    want = np.array([[1, 2], [3, 4]], np.int8)
    assert compare(want + np.int8(1), want, quantization=quantization).relative == pytest.approx(1)


@pytest.mark.parametrize(
    ("dtype", "a", "b"),
    [(np.int64, -(2**63), 2**63 - 1), (np.uint64, 0, 2**64 - 1), (np.int32, -(2**31), 2**31 - 1)],
)
def test_integers_of_any_size(dtype: type, a: int, b: int) -> None:
    found = compare(np.array([a], dtype), np.array([b], dtype))
    assert found.max_abs == float(abs(a - b))


def test_large_integers_that_differ_by_one() -> None:
    found = compare(np.array([2**62 + 1], np.int64), np.array([2**62], np.int64))
    assert (found.unequal, found.max_abs, found.agrees) == (1, 1.0, False)


def test_booleans_and_strings() -> None:
    flags = compare(np.array([True, False, True]), np.array([True, True, True]))
    assert (flags.unequal, flags.mean_abs, flags.agrees) == (1, pytest.approx(1 / 3), False)
    words = compare(np.array([b"a", b"b"], object), np.array([b"a", b"c"], object))
    assert (words.unequal, words.mean_abs, words.agrees) == (1, None, False)
    assert words.brief() == "1 of 2 unequal"
    assert compare(np.array([b"a"], object), np.array([b"a"], object)).agrees


def test_complex_numbers() -> None:
    found = compare(np.array([3 + 4j], np.complex64), np.array([0j], np.complex64))
    assert (found.max_abs, found.agrees) == (5.0, False)
    same = np.array([1 + 2j], np.complex64)
    assert compare(same, same).cosine == pytest.approx(1)


def test_other_shapes_and_dtypes_differ() -> None:
    shapes = compare(np.zeros((2, 3), np.float32), np.zeros((3, 2), np.float32))
    assert shapes.shape_mismatch == "float32 [2, 3] instead of float32 [3, 2]"
    dtypes = compare(np.zeros(2, np.int32), np.zeros(2, np.float32))
    assert dtypes.shape_mismatch == "int32 [2] instead of float32 [2]"
    assert not shapes.agrees
    assert not dtypes.agrees


def test_empty_and_scalar_tensors() -> None:
    assert compare(np.zeros((0, 3), np.float32), np.zeros((0, 3), np.float32)).agrees
    found = compare(np.asarray(np.float32(2)), np.asarray(np.float32(1)))
    assert (found.max_abs, found.worst and found.worst.position) == (1.0, ())


def test_severity_orders_disagreement_first() -> None:
    ones = np.ones(2, np.float32)
    fine = compare(ones * np.float32(1.00005), ones)
    small_but_exact = compare(np.array([1000, 1], np.int32), np.array([1000, 2], np.int32))
    odd = compare(ones * np.float32(np.nan), ones)
    ranked = sorted([fine, odd, small_but_exact], key=lambda c: c.severity)
    assert ranked == [fine, small_but_exact, odd]


def test_bounds() -> None:
    f32, i8 = np.dtype(np.float32), np.dtype(np.int8)
    assert Bounds().limit(f32, 10.0, is_quantized=False) == pytest.approx(1e-3)
    assert Bounds(0.5).limit(f32, 10.0, is_quantized=False) == 5.0
    assert Bounds(max_lsb=3).limit(i8, 10.0, is_quantized=True) == 3.0
    assert Bounds(max_lsb=3).limit(i8, 10.0, is_quantized=False) == 0.0
    assert Bounds(max_abs_error=0.25).limit(f32, 10.0, is_quantized=False) == 0.25
    # A sum that nearly cancels may have the rounding error of its terms.
    assert Bounds().limit(f32, 0.0, is_quantized=False, inputs_largest=10.0) == pytest.approx(1e-5)


@pytest.mark.parametrize("field", ["of_largest", "max_lsb", "max_abs_error"])
def test_bounds_must_not_be_negative(field: str) -> None:
    with pytest.raises(jd.OptionError, match=f"{field}: must not be negative, got -1"):
        Bounds(**{field: -1})
