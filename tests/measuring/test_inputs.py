"""The --input_layer flags, files of values, and random values."""

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxdelegate.errors import OptionError
from jaxdelegate.measuring.inputs import (
    InputFlags,
    InputLayer,
    InputSource,
    NormalValues,
    UniformValues,
    free_dimensions,
    load_arrays,
    parse_input_flags,
    parse_input_layers,
    read_input,
)


def test_layers_in_tflites_format() -> None:
    assert parse_input_layers(
        "a,in:put", "1,224,224,3:1,10", "a,-3,5", "in::put:/some::where/x.bin"
    ) == (
        InputLayer("a", (1, 224, 224, 3), (-3, 5)),
        InputLayer("in:put", (1, 10), None, "/some:where/x.bin"),
    )
    assert parse_input_layers("", "") == ()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("a,b", "1,2"), "expected one shape for each of 2 names"),
        (("a", ""), "got 0 in ''"),
        (("a", "1,x"), "expected sizes like 1,224,224,3, got '1,x'"),
        (("a", "-1,3"), "free dimensions need a size, got '-1,3'"),
        (("a", "1", "b,0,1"), "input_layer_value_range: 'b' is not in --input_layer: a"),
        (("a", "1", "a,5,1"), "expected name,low,high, got 'a,5,1'"),
        (("a", "1", "a,x,1"), "expected name,low,high, got 'a,x,1'"),
        (("a", "1", "", "a"), "expected name:path ('::' for a colon inside), got 'a'"),
        (("a", "1", "", "a:b:c"), "got 'a:b:c'"),
        (("a", "1", "", "c:file"), "input_layer_value_files: 'c' is not in --input_layer: a"),
    ],
)
def test_mistakes(flags: tuple[str, ...], message: str) -> None:
    with pytest.raises(OptionError) as error:
        parse_input_layers(*flags)
    assert message in str(error.value)


def test_flags_of_some_inputs_by_name() -> None:
    assert parse_input_flags(
        "a,b", "1,224,224,3:1,10", "ids::0,0,9:b,-1,1", "in::0:data/x::y,b:z.npy"
    ) == InputFlags(
        ("a", "b"),
        {"a": (1, 224, 224, 3), "b": (1, 10)},
        {"ids:0": (0, 9), "b": (-1, 1)},
        {"in:0": "data/x:y", "b": "z.npy"},
    )
    assert parse_input_flags("a", "", "", "a:f") == InputFlags(("a",), {}, {}, {"a": "f"})
    assert parse_input_flags() == InputFlags((), {}, {}, {})


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("a", "1:2"), "expected one shape for each of 1 names in --input_layer ('a'), got 2"),
        (("a", "1,x"), "input_layer_shape: expected sizes like 1,224,224,3, got '1,x'"),
        (("", "", "a,1"), "input_layer_value_range: expected name,low,high, got 'a,1'"),
        (
            ("", "", "a,low,high"),
            "input_layer_value_range: expected name,low,high, got 'a,low,high'",
        ),
        (("", "", "", "a"), "input_layer_value_files: expected name:path"),
        (("", "", "", "a::b:c:d"), "got 'a::b:c:d'"),
    ],
)
def test_flags_in_another_format(flags: tuple[str, ...], message: str) -> None:
    with pytest.raises(OptionError) as error:
        parse_input_flags(*flags)
    assert message in str(error.value)


def test_files(tmp_path: Path) -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    x.tofile(tmp_path / "x.bin")
    np.save(tmp_path / "x.npy", x)
    for name in ("x.bin", "x.npy"):
        layer = InputLayer("x", (2, 3), path=tmp_path / name)
        source = InputSource([(layer, np.dtype(np.float32))], UniformValues(), 0)
        for _ in range(2):
            np.testing.assert_array_equal(source()[0], x)
    text = np.dtype(np.bytes_)
    (tmp_path / "words").write_bytes(b"a\0bc\0")
    assert read_input(tmp_path / "words", "x", (2,), text).tolist() == [b"a", b"bc"]
    (tmp_path / "e.pb").write_bytes(b"a\0b")
    assert read_input(str(tmp_path / "e.pb"), "x", (1,), text).tolist() == [b"a\0b"]


def declared(shape: tuple[int, ...]) -> bytes:
    """A .npy file with the header of an array of this shape, but no data."""
    stream = io.BytesIO()
    header = {"descr": "<f4", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(stream, header)
    return stream.getvalue()


def archive(**arrays: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.savez(stream, **arrays)
    return stream.getvalue()


def test_archives_of_arrays(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    path.write_bytes(archive(x=np.float32([1, 2])))
    found = load_arrays(path)
    assert isinstance(found, dict)
    np.testing.assert_array_equal(found["x"], np.float32([1, 2]))
    with zipfile.ZipFile(path, "w") as stream:
        stream.writestr("x.npy", declared((1 << 40, 1 << 20)))
    with pytest.raises(OptionError, match=r"not a \.npy or \.npz file"):
        load_arrays(path)
    path.write_bytes(archive(x=np.float32([1, 2]))[:-20])
    with pytest.raises(OptionError, match=r"not a \.npy or \.npz file"):
        load_arrays(path)


def test_files_that_do_not_match(tmp_path: Path) -> None:
    (tmp_path / "short").write_bytes(b"abc")
    (tmp_path / "bad.npy").write_bytes(b"abc")
    (tmp_path / "empty.npy").write_bytes(b"")
    (tmp_path / "zip.npy").write_bytes(archive(x=np.zeros(4, np.float32)))
    (tmp_path / "vast.npy").write_bytes(declared((1 << 40, 1 << 20)))
    np.save(tmp_path / "other.npy", np.zeros((2, 2), np.float32))
    float32, text = np.dtype(np.float32), np.dtype(np.bytes_)
    for name, dtype, message in (
        ("short", float32, r"input 'x' is float32 \[1, 4\], which takes 16 bytes, got 3"),
        ("bad.npy", float32, "not a .npy file"),
        ("empty.npy", float32, "not a .npy file"),
        ("zip.npy", float32, "not a .npy file: it is an archive"),
        ("vast.npy", float32, "not a .npy file: mmap length is greater"),
        ("other.npy", float32, r"input 'x' is float32 \[1, 4\], got float32 \[2, 2\]"),
        ("short", text, r"input 'x' is 4 strings \[1, 4\], got 1"),
    ):
        with pytest.raises(OptionError, match=message):
            read_input(tmp_path / name, "x", (1, 4), dtype)
    with pytest.raises(FileNotFoundError):
        read_input(tmp_path / "absent", "x", (1, 4), float32)


@pytest.mark.parametrize("values", [UniformValues(), NormalValues()])
def test_ranges_apply_to_integers_and_must_be_within_the_dtype(values: Any) -> None:
    def draw(dtype: type, limits: tuple[int, int]) -> np.ndarray:
        layer = InputLayer("a", (1000,), limits)
        return InputSource([(layer, np.dtype(dtype))], values, 0)()[0]

    assert set(draw(np.uint8, (3, 5))) == {3, 4, 5}
    assert set(draw(np.int64, (-1, 1))) == {-1, 0, 1}
    assert draw(np.float32, (3, 5)).max() <= 1
    message = "input_layer_value_range: 'a' is int8: expected low,high from -128 to 127, got 3,"
    for high in (500, 1):
        with pytest.raises(OptionError, match=f"{message}{high}"):
            draw(np.int8, (3, high))


def test_sizes_that_count_as_1_are_named() -> None:
    def detail(name: str, declared: list[int], shape: list[int]) -> dict[str, object]:
        return {"name": name, "shape_signature": np.array(declared), "shape": np.array(shape)}

    (line,) = free_dimensions(
        [
            detail("batch", [-1, 3], [1, 3]),
            detail("resized", [-1, -1, 3], [1, 8, 3]),
            detail("words", [-1, -1, 3], [1, 1, 3]),
            detail("scalar", [], []),
        ]
    )
    assert line.startswith("input 'words' is [-1, -1, 3]: free dimensions count as 1;")
    assert line.endswith("--input_layer and --input_layer_shape set them, here to 1,SIZE,3")
