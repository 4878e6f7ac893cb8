"""Dataclasses as JSON."""

import dataclasses
import enum
import json
from pathlib import Path
from typing import Any

import pytest

from jaxdelegate.report.json_records import plain, write_json


class Color(enum.Enum):
    RED = 3


@dataclasses.dataclass(frozen=True)
class Point:
    x: float
    more: Any = None

    @property
    def double(self) -> float:
        return 2 * self.x


def test_records_by_field_name() -> None:
    value = Point(1.5, {4: (Point(2.0), Color.RED), "b": b"\x01\xff"})
    assert plain(value) == {
        "x": 1.5,
        "more": {"4": [{"x": 2.0, "more": None}, "RED"], "b": "01ff"},
    }
    assert plain([Point(1.5)], derived={Point: ("double",)}) == [
        {"x": 1.5, "more": None, "double": 3.0}
    ]
    assert plain([True, 7, {"s"}, complex(1, 2)]) == [True, 7, ["s"], "(1+2j)"]


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_numbers_that_json_does_not_have(number: float, tmp_path: Path) -> None:
    assert plain(Point(number))["x"] is None
    assert plain(Point(number), non_finite=str)["x"] == str(number)
    write_json(tmp_path / "x.json", [Point(number)])
    assert json.loads((tmp_path / "x.json").read_text()) == [{"x": None, "more": None}]
