"""Numbers with units."""

import pytest

from jaxdelegate.analysis import units


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "?"),
        (0, "0 B"),
        (999, "999 B"),
        (999.6, "1 kB"),
        (1234567, "1.23 MB"),
        (2.5, "2.5 B"),
        (5e21, "5e+03 EB"),
    ],
)
def test_three_digits_and_a_prefix(value: float | None, text: str) -> None:
    assert units.data(value) == text


def test_percentages() -> None:
    assert [units.percent(x) for x in (0.1234, 12.345, 1234.5)] == ["0.123%", "12.3%", "1,234%"]


def test_many_operators_are_counted() -> None:
    assert units.nodes([3, 4]) == "#3, #4"
    assert units.nodes(range(10)) == "#0, #1, #2, #3, #4, #5, #6, #7 and 2 more"
