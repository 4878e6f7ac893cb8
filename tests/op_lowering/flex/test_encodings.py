"""Characters, numbers and base64 in strings. The expected results are TensorFlow 2.17.1's."""

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from jaxdelegate.testing import Arg, Case, value
from tests.op_lowering.flex.test_text import strings, text
from tests.op_lowering.flex.test_text import test_values_of_tensorflow as _equal

BROKEN, WIDE = b"a\xff\xe6\x97b", "\x01é日😀".encode()
I64 = np.dtype(np.int64)


def decoded(x: Arg, splits: Sequence[int], characters: Sequence[int], **attributes: Any) -> Any:
    outputs, given = [np.int64, np.int32], {"input_encoding": "UTF-8", "Tsplits": I64}
    return text(
        "UnicodeDecode", [x], splits, characters, outputs=outputs, **{**given, **attributes}
    )


def with_offsets(x: Arg, *expected: Sequence[int], **attributes: Any) -> Any:
    given = {"input_encoding": "UTF-8", "Tsplits": I64, **attributes}
    outputs = [np.int64, np.int32, np.int64]
    return text("UnicodeDecodeWithOffsets", [x], *expected, outputs=outputs, **given)


def encoded(characters: Sequence[int], splits: Sequence[int], *y: bytes, **attributes: Any) -> Any:
    inputs = [value(characters, np.int32), value(splits, np.int64)]
    given = {"output_encoding": "UTF-8", "Tsplits": I64, **attributes}
    return text("UnicodeEncode", inputs, y, **given)


def transcoded(x: Arg, *y: bytes, **attributes: Any) -> Any:
    given = {"input_encoding": "UTF-8", "output_encoding": "UTF-16-BE", **attributes}
    return text("UnicodeTranscode", [x], y, **given)


def raw(x: Sequence[bytes], dtype: Any, y: Any, **attributes: Any) -> Any:
    given = {"out_type": np.dtype(dtype), **attributes}
    return text("DecodeRaw", [strings(*x)], y, outputs=[dtype], **given)


def base64(name: str, x: bytes, y: bytes, **attributes: Any) -> Any:
    return text(f"{name}Base64", [strings(x)], [y], **attributes)


EXPECTED = [
    decoded(strings(BROKEN, WIDE), [0, 4, 8], [97, 65533, 65533, 98, 1, 233, 26085, 128512]),
    decoded(strings(BROKEN, WIDE), [0, 2, 6], [97, 98, 1, 233, 26085, 128512], errors="ignore"),
    decoded(
        strings(b"\x01a\n"),
        [0, 3],
        [63, 97, 63],
        replace_control_characters=True,
        replacement_char=63,
    ),
    decoded(
        strings(b"\xff\xfea\x00", b"\x00a\x00b\xd8"),
        [0, 2, 5],
        [65534, 24832, 97, 98, 65533],
        input_encoding="UTF-16-BE",
    ),
    decoded(strings(), [0], []),
    with_offsets(
        strings(BROKEN, WIDE),
        [0, 4, 8],
        [97, 65533, 65533, 98, 1, 233, 26085, 128512],
        [0, 1, 2, 4, 0, 1, 3, 6],
    ),
    encoded(
        [97, 0xD800, 233, 0x110000, 0x1F600, -1],
        [0, 2, 2, 6],
        "a�".encode(),
        b"",
        "é�😀�".encode(),
    ),
    encoded(
        [97, 233, 0x110000, 0x1F600],
        [0, 1, 4],
        b"\x00a",
        b"\x00\xe9\xd8=\xde\x00",
        output_encoding="UTF-16-BE",
        errors="ignore",
    ),
    transcoded(
        strings(BROKEN, WIDE),
        b"\x00a\xff\xfd\xff\xfd\x00b",
        b"\x00\x01\x00\xe9e\xe5\xd8=\xde\x00",
    ),
    raw([b"abcd", b"efgh"], np.int16, [[25185, 25699], [26213, 26727]]),
    raw([b"abcd"], np.int16, [[24930, 25444]], little_endian=False),
    raw([b"\x00\x01"], np.bool_, [[False, True]]),
    raw([b""], np.int16, np.zeros((1, 0))),
    raw([], np.int16, np.zeros((0, 0))),
    base64("Encode", b"ab?>", b"YWI_Pg"),
    base64("Encode", "~~ÿ".encode(), b"fn7Dvw"),
    base64("Encode", b"a", b"YQ==", pad=True),
    base64("Decode", b"YQ", b"a"),
    base64("Decode", b"YQ==", b"a"),
    base64("Decode", b"YR", b"a"),
    base64("Decode", b"-_-_", b"\xfb\xff\xbf"),
]
RUN_TIME = [found for found, _ in EXPECTED]
STOPPED = {
    "the byte 1 of a string is not UTF-8": decoded(strings(BROKEN), [], [], errors="strict")[0],
    "errors='odd'": decoded(strings(BROKEN), [], [], errors="odd")[0],
    "the encoding 'zlib'": decoded(strings(b""), [], [], input_encoding="zlib")[0],
    "splits [0, 2] of 1 characters": encoded([97], [0, 2])[0],
    "strings of [3] bytes": raw([b"abc"], np.int16, [])[0],
    "strings of [1, 4] bytes": raw([b"abcd", b"e"], np.int8, [])[0],
    "b'Y' is not base64": base64("Decode", b"Y", b"")[0],
    "b'+/' is not base64": base64("Decode", b"+/", b"")[0],
}


@pytest.mark.parametrize(("given", "expected"), EXPECTED, ids=lambda row: str(row)[:60])
def test_values_of_tensorflow(given: Case, expected: tuple[Any, ...]) -> None:
    _equal(given, expected)


def test_the_time_is_linear_in_broken_bytes() -> None:
    start = time.perf_counter()
    decoded(strings(b"\xff" * 200_000), [], [])[0].run_reference()
    assert time.perf_counter() - start < 5  # a copy for each byte would take over a minute
