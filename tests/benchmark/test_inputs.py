"""Inputs of a benchmark."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxdelegate.benchmark.run import make_inputs
from jaxdelegate.measuring.inputs import InputLayer


def detail(dtype: Any, *shape: int) -> dict[str, Any]:
    return {"name": "x", "index": 0, "dtype": dtype, "shape": np.array(shape, np.int32)}


@pytest.mark.parametrize(
    ("dtype", "low", "high"),
    [
        (np.float32, -0.5, 0.5),
        (np.float16, -0.5, 0.5),
        (np.int8, -127, 127),
        (np.uint8, 0, 254),
        (np.int16, -32767, 32767),
        (np.int32, 0, 99),
        (np.int64, 0, 99),
        (np.bool_, 0, 1),
    ],
)
def test_random_values_are_in_tflites_ranges(dtype: Any, low: float, high: float) -> None:
    (array,) = make_inputs([detail(dtype, 4, 500)], (), seed=1)
    assert (array.shape, array.dtype) == ((4, 500), np.dtype(dtype))
    assert low <= array.min() < array.max() <= high
    assert array.astype(float).std() > (high - low) / 8  # spread over the range


def test_complex_and_string_inputs() -> None:
    numbers, text = make_inputs([detail(np.complex64, 8), detail(np.bytes_, 2)], (), seed=1)
    assert numbers.dtype == np.complex64
    assert np.abs(numbers.imag).max() <= 0.5
    assert np.ptp(numbers.imag) > 0
    assert text.shape == (2,)
    assert text[1].startswith(b"we're have some friends")


def test_a_seed_makes_inputs_reproducible() -> None:
    details = [detail(np.float32, 8), detail(np.int8, 8)]
    first, again, other = (make_inputs(details, (), seed=s) for s in (5, 5, 6))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not any(np.array_equal(a, b) for a, b in zip(first, other, strict=True))


def test_layers_go_by_their_order_and_shapes_are_the_models(tmp_path: Path) -> None:
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    path = tmp_path / "x.bin"
    path.write_bytes(values.tobytes())
    layers = [InputLayer("a", (9,), path=str(path)), InputLayer("b", (9,), (3, 5))]
    numbers, integers = make_inputs([detail(np.float32, 2, 3), detail(np.uint8, 99)], layers, 0)
    np.testing.assert_array_equal(numbers, values)
    assert integers.shape == (99,)
    assert set(integers) == {3, 4, 5}
