"""The inputs of both sides of a comparison."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jaxdelegate as jd
from jaxdelegate.comparison.inputs import InputSettings, parse_inputs


def detail(dtype: type, shape: tuple[int, ...] = (1, 1000), name: str = "x") -> dict[str, Any]:
    return {"name": name, "shape": np.array(shape, np.int32), "dtype": dtype}


def draw(dtype: type, shape: tuple[int, ...] = (1, 1000), **settings: Any) -> np.ndarray:
    return InputSettings(**settings).source([detail(dtype, shape)])()[0]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_floats_fill_the_unit_interval(dtype: type) -> None:
    x = draw(dtype)
    assert x.dtype == dtype
    assert -1 <= x.min() < -0.8
    assert 0.8 < x.max() <= 1
    assert abs(x.astype(np.float64).mean()) < 0.1


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16])
def test_short_integers_fill_their_range(dtype: type) -> None:
    x, info = draw(dtype).astype(np.float64), np.iinfo(dtype)
    assert x.min() >= info.min
    assert x.max() <= info.max
    assert x.max() - x.min() > 0.9 * (info.max - info.min)


@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.int64, np.uint64])
def test_long_integers_may_be_indices(dtype: type) -> None:
    x = draw(dtype)
    assert (x.dtype, x.min(), x.max()) == (np.dtype(dtype), 0, 99)
    assert draw(dtype, index_range=(0, 1)).max() == 1


def test_booleans_complex_numbers_strings_scalars_and_free_dimensions() -> None:
    assert set(draw(np.bool_).ravel()) == {True, False}
    x = draw(np.complex64)
    assert x.dtype == np.complex64
    assert np.abs(x.imag).max() > 0.5
    words = draw(np.bytes_, (2, 3))
    assert words.dtype == object
    assert all(len(word) == 8 for word in words.ravel())
    assert draw(np.float32, ()).shape == ()
    assert draw(np.int32, ()).shape == ()
    assert draw(np.float32, (0, 3)).shape == (1, 3)


def test_the_seed_decides() -> None:
    a, b = (InputSettings(seed=7).source([detail(np.float32)]) for _ in range(2))
    first, second = a()[0], a()[0]
    np.testing.assert_array_equal(first, b()[0])
    assert not np.array_equal(first, second)
    assert not np.array_equal(first, draw(np.float32, seed=8))


def test_custom_shapes_and_ranges() -> None:
    x = draw(np.int32, (1, 4), shapes={"x": (3, 5)}, ranges={"x": (-2, 2)})
    assert x.shape == (3, 5)
    assert set(x.ravel()) <= {-2, -1, 0, 1, 2}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"files": {"y": "f"}}, "input 'y': the model has no such input; it has: x"),
        ({"shapes": {"x": (1, 2, 3)}}, r"input 'x': expected 2 dimensions.*got \[1, 2, 3\]"),
        ({"shapes": {"x": (1, -1)}}, r"none of them negative, got \[1, -1\]"),
        (
            {"ranges": {"x": (3, 1)}},
            "'x' is int32: expected low,high from .* got 3,1",
        ),
        ({"ranges": {"x": (0, 2**40)}}, "expected low,high from .* got 0,1099511627776"),
    ],
)
def test_invalid_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(jd.OptionError, match=message):
        draw(np.int32, (1, 4), **settings)


def test_files_and_flags(tmp_path: Path) -> None:
    x = np.arange(4, dtype=np.float32).reshape(1, 4)
    np.save(tmp_path / "x.npy", x)
    settings = parse_inputs(seed=3, files=f"x:{tmp_path / 'x.npy'}", shapes="1,4", names="x")
    assert settings == InputSettings(3, {"x": (1, 4)}, {}, {"x": str(tmp_path / "x.npy")})
    np.testing.assert_array_equal(settings.source([detail(np.float32, (0, 4))])()[0], x)
    assert parse_inputs(ranges="x,0,1") == InputSettings(ranges={"x": (0, 1)})


def test_whether_indices_are_drawn() -> None:
    details = [detail(np.int32, name="a"), detail(np.int8, name="b")]
    assert InputSettings().draws_indices(details)
    assert not InputSettings(ranges={"a": (0, 1)}).draws_indices(details)
    assert not InputSettings().draws_indices(details[1:])
