"""Rows of different lengths. The expected results are those of TensorFlow 2.17.1."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from jaxdelegate.testing import Arg, Case, const, f32, value
from tests.op_lowering.flex.test_math import case as flex_case
from tests.op_lowering.flex.test_text import one, strings, text
from tests.op_lowering.flex.test_text import test_values_of_tensorflow as _equal

I64 = np.dtype(np.int64)
ROW_SPLITS = ("ROW_SPLITS",)


def ngrams(widths: tuple[int, ...], y: Sequence[bytes], splits: Sequence[int], **given: Any) -> Any:
    inputs = [strings(b"a", b"b", b"c", b"d"), value([0, 3, 3, 4], np.int64)]
    attributes = {"separator": "_", "left_pad": "L", "right_pad": "R", "Tsplits": I64, **given}
    outputs = [object, np.int64]
    return text(
        "StringNGrams", inputs, y, splits, outputs=outputs, ngram_widths=widths, **attributes
    )


def split(delimiters: bytes, rows: Sequence[Sequence[bytes]], *, skip_empty: bool = True) -> Any:
    places = [(i, j) for i, row in enumerate(rows) for j in range(len(row))]
    parts = [part for row in rows for part in row]
    expected = np.array(places).reshape(-1, 2), parts, [len(rows), max(map(len, rows))]
    inputs = [strings(b"a b,,c", b"", "é".encode()), one(delimiters)]
    outputs = [np.int64, object, np.int64]
    return text("StringSplit", inputs, *expected, outputs=outputs, skip_empty=skip_empty)


def dense(
    shape: Any, values: Any, default: Any, partitions: Sequence[Any], kinds: Sequence[str], y: Any
) -> Any:
    arrays = [np.array(p, np.int64) for p in partitions]
    inputs = [np.array(shape, np.int32), np.array(values, np.float32), np.float32(default)]
    attributes = {"row_partition_types": tuple(kinds), "Tindex": I64, "Tshape": np.dtype(np.int32)}
    attributes |= {"num_row_partition_tensors": len(arrays), "T": np.dtype(np.float32)}
    label = f"{shape}-{partitions}"
    given = [value(a) for a in (*inputs, *arrays)]
    return flex_case("RaggedTensorToTensor", label, given, [np.float32], attributes=attributes), (
        y,
    )


def partition(x: Arg, parts: Arg, n: int, *y: Any) -> Any:
    attributes = {"num_partitions": n, "T": x.value.dtype}
    outputs = [x.value.dtype] * n
    return flex_case("DynamicPartition", f"{n}", [x, parts], outputs, attributes=attributes), y


def unique(x: Arg, *y: Any) -> Any:
    attributes = {"out_idx": np.dtype(np.int32), "T": x.value.dtype}
    outputs = [x.value.dtype, np.int32, np.int32]
    label = str(x.value.dtype)
    return flex_case("UniqueWithCounts", label, [x], outputs, attributes=attributes), y


ROWS = np.arange(6, dtype=np.float32).reshape(3, 2)
PARTS = value([1, 0, 1], np.int32)
EXPECTED = [
    ngrams((2, 1), [b"a_b", b"b_c", b"a", b"b", b"c", b"d"], [0, 5, 5, 6]),
    ngrams(
        (3,),
        [
            *(b"L_L_a", b"L_a_b", b"a_b_c", b"b_c_R", b"c_R_R", b"L_L_R", b"L_R_R"),
            *(b"L_L_d", b"L_d_R", b"d_R_R"),
        ],
        [0, 5, 7, 10],
        pad_width=-1,
    ),
    ngrams((3,), [b"L_a_b", b"a_b_c", b"b_c_R", b"L_d_R"], [0, 3, 3, 4], pad_width=1),
    ngrams((3,), [b"a_b_c", b"d"], [0, 1, 1, 2], preserve_short_sequences=True),
    ngrams((4, 2), [b"a_b", b"b_c", b"d"], [0, 2, 2, 3], preserve_short_sequences=True),
    ngrams(
        (5,), [b"L_a_b_c_R", b"L_d_R"], [0, 1, 1, 2], pad_width=1, preserve_short_sequences=True
    ),
    split(b"", [[b"a", b" ", b"b", b",", b",", b"c"], [], [b"\xc3", b"\xa9"]]),
    split(b" ,", [[b"a", b"b", b"c"], [], ["é".encode()]]),
    split(b" ,", [[b"a", b"b", b"", b"c"], [], ["é".encode()]], skip_empty=False),
    dense([-1, -1], [1, 2, 3, 4], 0, [[0, 2, 2, 4]], ROW_SPLITS, [[1, 2], [0, 0], [3, 4]]),
    dense([4, 1], [1, 2, 3, 4], 9, [[0, 2, 2, 4]], ROW_SPLITS, [[1], [9], [3], [9]]),
    dense(
        [-1, 3],
        [1, 2, 3, 4],
        9,
        [3, [0, 0, 2, 2]],
        ("FIRST_DIM_SIZE", "VALUE_ROWIDS"),
        [[1, 2, 9], [9, 9, 9], [3, 4, 9]],
    ),
    dense(
        -1,
        [[1, 2], [3, 4], [5, 6]],
        9,
        [[0, 2, 3]],
        ROW_SPLITS,
        [[[1, 2], [3, 4]], [[5, 6], [9, 9]]],
    ),
    dense(
        [-1, -1, -1],
        [1, 2, 3],
        9,
        [[0, 2, 3], [0, 1, 1, 3]],
        ROW_SPLITS * 2,
        [[[1, 9], [9, 9]], [[2, 3], [9, 9]]],
    ),
    dense(
        [-1, -1, 2],
        [[1, 2], [3, 4]],
        [7, 8],
        [[0, 2, 2]],
        ROW_SPLITS,
        [[[1, 2], [3, 4]], [[7, 8], [7, 8]]],
    ),
    dense([-1, -1], [], 0, [[0]], ROW_SPLITS, np.zeros((0, 0))),
    partition(value(ROWS), PARTS, 3, ROWS[1:2], ROWS[::2], ROWS[:0]),
    partition(value(ROWS), value([[0, 1], [1, 1], [0, 1]], np.int32), 2, [0, 4], [1, 2, 3, 5]),
    unique(value([3, 1, 3, 3], np.int32), [3, 1], [0, 1, 0, 0], [3, 1]),
    unique(strings(b"b", b"a", b"b"), [b"b", b"a"], [0, 1, 0], [2, 1]),
]
NEGATIVE = partition(value(ROWS), value([0, -1, 0], np.int32), 2)[0]
STOPPED = {
    "StringNGrams of [0, 2]": ngrams((0, 2), [], [])[0],
    "expected 1 to 65536": ngrams((1 << 40,), [], [], pad_width=-1)[0],
    "row splits [0, 2, 9] of 4 values": dense(
        [-1, -1], [1, 2, 3, 4], 0, [[0, 2, 9]], ROW_SPLITS, None
    )[0],
    "part -1 of 2": NEGATIVE,
}
IMPOSSIBLE = [
    partition(f32(2), value([0, 1, 0], np.int32), 2)[0],
    partition(f32(2), value([0, 1], np.int32), 0)[0],
    unique(f32(2, 2))[0],
    *(
        flex_case(
            "RaggedTensorToTensor",
            "",
            [const(np.int32(shape)), f32(3), f32(), const(np.int64(splits))],
            attributes={"row_partition_types": kinds},
        )
        for shape, splits, kinds in (
            ([-1, -1], [0, 2], ROW_SPLITS),
            ([-1, -1], [0, 4, 3], ROW_SPLITS),
            ([-1, -1], [], ROW_SPLITS),
            ([-1], [0, 3], ROW_SPLITS),
            ([-1, -1], [0, 3], ("ROWS",)),
            ([-1, -1], [0, 3], ()),
        )
    ),
]


@pytest.mark.parametrize(("given", "expected"), EXPECTED, ids=lambda row: str(row)[:60])
def test_values_of_tensorflow(given: Case, expected: tuple[Any, ...]) -> None:
    _equal(given, expected)
