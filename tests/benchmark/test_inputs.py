"""--input_layer and its like, and the arrays that come of them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxdelegate.benchmark.inputs import InputLayer, make_inputs, parse_input_layers
from jaxdelegate.errors import OptionError


def detail(dtype: Any, *shape: int) -> dict[str, Any]:
    return {"name": "x", "index": 0, "dtype": dtype, "shape": np.array(shape, np.int32)}


def test_layers_as_tflite_writes_them() -> None:
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
        (("a,b", "1,2"), "want one shape for each of 2 names"),
        (("a", ""), "got 0 in ''"),
        (("a", "1,x"), "want sizes like 1,224,224,3, got '1,x'"),
        (("a", "-1,3"), "sizes that the model leaves open need a number, got '-1,3'"),
        (("a", "1", "b,0,1"), "input_layer_value_range: 'b' is not in --input_layer: a"),
        (("a", "1", "a,5,1"), "want name,low,high, got 'a,5,1'"),
        (("a", "1", "a,x,1"), "want name,low,high, got 'a,x,1'"),
        (("a", "1", "", "a"), "want name:path ('::' for a colon inside), got 'a'"),
        (("a", "1", "", "a:b:c"), "got 'a:b:c'"),
        (("a", "1", "", "c:file"), "input_layer_value_files: 'c' is not in --input_layer: a"),
    ],
)
def test_mistakes(flags: tuple[str, ...], message: str) -> None:
    with pytest.raises(OptionError) as error:
        parse_input_layers(*flags)
    assert message in str(error.value)


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
def test_random_values_lie_in_tflites_ranges(dtype: Any, low: float, high: float) -> None:
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


def test_a_range_holds_for_integers_only_within_the_dtype() -> None:
    layer = InputLayer("a", (1000,), (3, 5))
    (array,) = make_inputs([detail(np.uint8, 1000)], [layer], seed=0)
    assert set(array) == {3, 4, 5}
    with pytest.raises(OptionError, match=r"'a' is int8, which does not hold 3,500"):
        make_inputs([detail(np.int8, 4)], [InputLayer("a", (4,), (3, 500))], seed=0)


def test_files(tmp_path: Path) -> None:
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    raw, strings, proto = tmp_path / "x.bin", tmp_path / "s.txt", tmp_path / "e.pb"
    raw.write_bytes(values.tobytes())
    strings.write_bytes(b"one\0two\0")
    proto.write_bytes(b"a\0b")
    layers = [
        InputLayer("a", (2, 3), path=str(raw)),
        InputLayer("b", (2,), path=str(strings)),
        InputLayer("c", (1,), path=str(proto)),
    ]
    details = [detail(np.float32, 2, 3), detail(np.bytes_, 2), detail(np.bytes_, 1)]
    numbers, texts, example = make_inputs(details, layers, seed=0)
    np.testing.assert_array_equal(numbers, values)
    assert list(texts) == [b"one", b"two"]
    assert list(example) == [b"a\0b"]


@pytest.mark.parametrize(
    ("dtype", "content", "message"),
    [
        (np.float32, b"12345", "which takes 24 bytes, got 5"),
        (np.bytes_, b"a\0b\0c", r"the input is 6 strings \[2, 3\], got 3"),
    ],
)
def test_files_that_do_not_fit(tmp_path: Path, dtype: Any, content: bytes, message: str) -> None:
    path = tmp_path / "x"
    path.write_bytes(content)
    with pytest.raises(OptionError, match=message):
        make_inputs([detail(dtype, 2, 3)], [InputLayer("a", (2, 3), path=str(path))], seed=0)
    with pytest.raises(FileNotFoundError):
        make_inputs([detail(dtype, 1)], [InputLayer("a", (1,), path="nowhere")], seed=0)
