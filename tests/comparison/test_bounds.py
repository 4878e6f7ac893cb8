"""The rule that decides how far results may differ."""

import numpy as np
import pytest

from jaxdelegate.comparison.bounds import Bounds, allowed, precision
from jaxdelegate.comparison.metrics import Comparer
from jaxdelegate.comparison.verdict import Runs
from jaxdelegate.model.records import read_model
from jaxdelegate.quant.params import Quantization
from jaxdelegate.testing import ModelBuilder


@pytest.mark.parametrize(
    ("small", "rounding", "most", "limit"),
    [(0.1, 0.0, 0.5, 0.1), (0.1, 0.2, 0.5, 0.4), (0.1, 3.0, 0.5, 0.5), (0.1, 3.0, np.inf, 6.0)],
)
def test_rounding_permits_twice_what_was_measured(
    small: float, rounding: float, most: float, limit: float
) -> None:
    assert allowed(small, rounding, most) == limit


def test_rounded_operands_bound_a_result() -> None:
    exact, rounded = np.float32([1, 2]), np.float32([1.5, 2.25])
    assert Bounds().by_rounding(rounded, exact).max_abs_error == 1.0
    empty = np.zeros(0, np.float32)
    assert Bounds().by_rounding(empty, empty).max_abs_error == 0.0


def model(dtype: type, stored: type = np.float32) -> bytes:
    scale = Quantization(np.array([0.5], np.float32), np.array([0], np.int64))
    builder = ModelBuilder()
    x = builder.input((4,), dtype, "x", quantization=scale if dtype is np.int8 else None)
    w = builder.constant(np.ones(4, stored))
    cast, y = builder.tensor((4,), np.float32), builder.tensor((4,), dtype, "y")
    builder.operator("CAST", [w], [cast])
    builder.operator("NEG", [x], [y])
    builder.outputs(y)
    return builder.build()


def test_the_least_precise_tensor_decides() -> None:
    of = [read_model(model(*dtypes)) for dtypes in ((np.float32,), (np.int8,))]
    assert precision(of[0], is_reduced=False) == "float"
    assert precision(of[0], is_reduced=True) == "reduced"
    assert precision(*of, is_reduced=True) == "quantized"
    short = read_model(model(np.float32, np.float16))
    assert precision(short, is_reduced=False) == "float"  # both sides have the same weights
    assert precision(of[0], short, is_reduced=False) == "reduced"


def test_operators_are_checked_in_the_first_run_out_of_bounds_and_in_the_farthest() -> None:
    runs, want = Runs([Comparer(0, "y", np.dtype(np.float32), Bounds())], ()), np.float32([1.0])
    arrays = [[np.float32([n])] for n in range(14)]
    errors = (0, 0, 0.1, 0.3, 0.2, *[0] * 9)
    for inputs, error in zip(arrays, errors, strict=True):
        runs.add(inputs, [want + np.float32(error)], [want])
    assert runs.differing == [arrays[2], arrays[3]]
    assert (runs.count, [run.number for run in runs.kept]) == (14, list(range(10)))


def test_a_late_run_out_of_bounds_is_kept() -> None:
    runs, want = Runs([Comparer(0, "y", np.dtype(np.float32), Bounds())], ()), np.float32([1.0])
    for n in range(14):
        runs.add([want], [want + np.float32(n == 12)], [want])
    assert [run.number for run in runs.kept] == [*range(10), 12]
    assert len(runs.differing) == 1
