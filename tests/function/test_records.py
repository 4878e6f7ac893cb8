"""Names of tensors in a whole model, and the arguments of calls."""

from typing import Any

import pytest

from jaxdelegate.errors import TensorError
from jaxdelegate.function.records import Names, positional_and_named, unique_name

BY_NAME = {"x": 1}


@pytest.mark.parametrize(
    ("name", "place", "expected"),
    [
        ("w", (0, 7), "w"),
        ("", (0, 7), "tensor_7"),
        ("taken", (0, 7), "taken#7"),
        ("taken", (2, 7), "taken#2.7"),
    ],
)
def test_a_name_is_made_unique_by_its_place(
    name: str, place: tuple[int, int], expected: str
) -> None:
    assert unique_name(name, place, {"taken"}) == expected


def test_a_suffix_is_part_of_what_must_be_unique() -> None:
    assert unique_name("w", (0, 1), {"w"}, "/scale") == "w/scale"
    assert unique_name("w", (0, 1), {"w/scale"}, "/scale") == "w#1/scale"


@pytest.mark.parametrize(
    ("inputs", "named", "expected"),
    [
        ((1, 2), {}, ((1, 2), {})),
        ((), BY_NAME, ((), BY_NAME)),
        ((BY_NAME,), {}, ((), BY_NAME)),
        ((BY_NAME, 2), {}, ((BY_NAME, 2), {})),
    ],
)
def test_a_single_dictionary_has_the_inputs_by_name(
    inputs: tuple[Any, ...], named: dict[str, Any], expected: Any
) -> None:
    assert positional_and_named("apply", inputs, named) == expected


def test_positional_and_named_inputs_cannot_be_mixed() -> None:
    with pytest.raises(TensorError, match="call apply with positional or with named inputs"):
        positional_and_named("apply", (1,), BY_NAME)


def test_named_inputs_come_in_the_order_of_the_function() -> None:
    names = Names(["x", "y"], ["z"])
    assert names.in_order({"y": 2, "x": 1}) == (1, 2)
    assert names.named([3]) == {"z": 3}
    with pytest.raises(
        TensorError, match=r"the inputs are named \['x'\], the model's \['x', 'y'\]"
    ):
        names.in_order(BY_NAME)
