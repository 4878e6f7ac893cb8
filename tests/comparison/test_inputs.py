"""What a comparison feeds both sides."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jaxdelegate as jd
from jaxdelegate.comparison.inputs import InputChoice, InputSource, parse_inputs


def detail(dtype: type, shape: tuple[int, ...] = (1, 1000), name: str = "x") -> dict[str, Any]:
    return {"name": name, "shape": np.array(shape, np.int32), "dtype": dtype}


def draw(dtype: type, shape: tuple[int, ...] = (1, 1000), **choice: Any) -> np.ndarray:
    return InputSource([detail(dtype, shape)], InputChoice(**choice))()[0]


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


def test_booleans_complex_numbers_strings_scalars_and_open_dimensions() -> None:
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
    a, b = (InputSource([detail(np.float32)], InputChoice(seed=7)) for _ in range(2))
    first, second = a()[0], a()[0]
    np.testing.assert_array_equal(first, b()[0])
    assert not np.array_equal(first, second)
    assert not np.array_equal(first, draw(np.float32, seed=8))


def test_shapes_and_ranges_of_ones_own() -> None:
    x = draw(np.int32, (1, 4), shapes={"x": (3, 5)}, ranges={"x": (-2, 2)})
    assert x.shape == (3, 5)
    assert set(x.ravel()) <= {-2, -1, 0, 1, 2}


def test_files(tmp_path: Path) -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    x.tofile(tmp_path / "x.bin")
    np.save(tmp_path / "x.npy", x)
    for name in ("x.bin", "x.npy"):
        source = InputSource(
            [detail(np.float32, (2, 3))], InputChoice(files={"x": tmp_path / name})
        )
        for _ in range(2):
            np.testing.assert_array_equal(source()[0], x)
    (tmp_path / "words").write_bytes(b"a\0bc\0")
    words = draw(np.bytes_, (2,), files={"x": tmp_path / "words"})
    assert words.tolist() == [b"a", b"bc"]


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"files": {"y": "f"}}, "input 'y': the model has no such input; it has: x"),
        ({"shapes": {"x": (1, 2, 3)}}, r"input 'x': wants 2 dimensions.*got \[1, 2, 3\]"),
        ({"shapes": {"x": (1, -1)}}, r"none of them negative, got \[1, -1\]"),
        ({"ranges": {"x": (3, 1)}}, "the range must be low,high within int32, got 3,1"),
        ({"ranges": {"x": (0, 2**40)}}, "within int32"),
    ],
)
def test_choices_that_do_not_fit(choice: dict[str, Any], message: str) -> None:
    with pytest.raises(jd.OptionError, match=message):
        draw(np.int32, (1, 4), **choice)


def test_files_that_do_not_fit(tmp_path: Path) -> None:
    (tmp_path / "short").write_bytes(b"abc")
    (tmp_path / "bad.npy").write_bytes(b"abc")
    np.save(tmp_path / "other.npy", np.zeros((2, 2), np.float32))
    for name, message in (
        ("short", r"input 'x' wants float32 \[1, 4\], 16 bytes, got 3"),
        ("bad.npy", "not a .npy file"),
        ("other.npy", r"wants float32 \[1, 4\], got float32 \[2, 2\]"),
    ):
        with pytest.raises(jd.OptionError, match=message):
            draw(np.float32, (1, 4), files={"x": tmp_path / name})
    with pytest.raises(FileNotFoundError):
        draw(np.float32, (1, 4), files={"x": tmp_path / "absent"})
    with pytest.raises(jd.OptionError, match="wants 2 strings"):
        draw(np.bytes_, (2,), files={"x": tmp_path / "short"})


def test_flags_as_tflite_writes_them() -> None:
    choice = parse_inputs(
        seed=3,
        names="a,b",
        shapes="1,224,224,3:1,10",
        ranges="ids::0,0,9:b,-1,1",
        files="in::0:data/x::y,b:z.npy",
    )
    assert choice == InputChoice(
        3,
        {"a": (1, 224, 224, 3), "b": (1, 10)},
        {"ids:0": (0, 9), "b": (-1, 1)},
        {"in:0": "data/x:y", "b": "z.npy"},
    )
    assert parse_inputs() == InputChoice()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"names": "a", "shapes": "1:2"}, "wants one shape for each input_layer, 1, got 2"),
        ({"names": "a", "shapes": "1,x"}, "input_layer_shape: wants integers.*got '1,x'"),
        ({"ranges": "a,1"}, "wants name,low,high, got 'a,1'"),
        ({"ranges": "a,low,high"}, "input_layer_value_range: wants integers"),
        ({"files": "a"}, "wants name:path, got 'a'"),
    ],
)
def test_flags_that_do_not_read(flags: dict[str, str], message: str) -> None:
    with pytest.raises(jd.OptionError, match=message):
        parse_inputs(**flags)
