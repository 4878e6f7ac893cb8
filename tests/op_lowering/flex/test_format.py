"""StringFormat. The expected results are those of TensorFlow 2.17.1."""

from typing import Any

import numpy as np
import pytest

from jaxdelegate.testing import Case, value
from tests.op_lowering.flex.test_math import case
from tests.op_lowering.flex.test_text import strings


def formatted(*arrays: Any, template: str = "{}", summarize: int = 3) -> Case:
    given = [a if hasattr(a, "value") else value(a) for a in arrays]
    attributes = {"template": template, "placeholder": "{}", "summarize": summarize}
    return case(
        "StringFormat", f"{template}-{arrays[0]}"[:60], given, [object], attributes=attributes
    )


TABLE = """[[0 1 2 ... 7 8 9]
 [10 11 12 ... 17 18 19]
 [20 21 22 ... 27 28 29]
 ...
 [70 71 72 ... 77 78 79]
 [80 81 82 ... 87 88 89]
 [90 91 92 ... 97 98 99]]"""
CUBE = """[[[0 1 2]
  [3 4 5]]

 [[6 7 8]
  [9 10 11]]]"""
NUMBERS = np.float32([1.0, 1e-9, 1e20, np.nan, np.inf, 123456789.0])
EXPECTED = [
    (formatted(strings(b"x", b"y"), template="a {} b"), 'a ["x" "y"] b'),
    (formatted(np.float32(1.5)), "1.5"),
    (formatted(np.int32([1, 2]), np.bool_([1, 0]), template="{}|{}"), "[1 2]|[1 0]"),
    (formatted(np.arange(10)), "[0 1 2 ... 7 8 9]"),
    (formatted(np.arange(7)), "[0 1 2 ... 4 5 6]"),
    (formatted(np.arange(6)), "[0 1 2 3 4 5]"),
    (formatted(np.arange(10), summarize=-1), "[0 1 2 3 4 5 6 7 8 9]"),
    (formatted(np.arange(100).reshape(10, 10)), TABLE),
    (formatted(np.arange(12).reshape(2, 2, 3)), CUBE),
    (formatted(NUMBERS), "[1 1e-09 1e+20 nan inf 123456792]"),
    (formatted(np.float64([1, 1 / 3])), "[1 0.33333333333333331]"),
    (formatted(np.zeros(0, np.float32)), "[]"),
    (formatted(np.zeros((2, 0), np.float32)), "[\n ...]"),
    (formatted(np.float16([1.5])), "[1.5]"),
    (formatted(np.int8([3, -3])), "[3 -3]"),
]
RUN_TIME = [found for found, _ in EXPECTED]
STOPPED = {
    "has 2 places '{}' for 1 tensors": formatted(np.int32([1]), template="{} {}"),
    "StringFormat of complex64": formatted(np.complex64([1])),
}


@pytest.mark.parametrize(("given", "expected"), EXPECTED, ids=lambda row: str(row)[:60])
def test_values_of_tensorflow(given: Case, expected: str) -> None:
    (found,) = given.run_reference()
    assert found.item() == expected.encode()


def test_bytes_are_escaped() -> None:
    (found,) = formatted(strings(b'\xff\n"\x01')).run_reference()
    assert found.item() == b'["\xff\\n\\"\\001"]'
