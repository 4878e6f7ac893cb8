"""The inputs that say where a step's tokens are, place by place as LiteRT-LM fills them."""

import itertools
from typing import Any

import numpy as np
import pytest

from jaxdelegate.function.records import TensorInfo
from jaxdelegate.lm.masks import place_inputs
from jaxdelegate.lm.places import Attention, Places

N, RING, WINDOW, CAPACITY = 4, 10, 5, 24
PLACES = Places("input_pos", "mask", "local_mask", "param_tensor")
STARTS = [(0, 4), (3, 2), (9, 4), (10, 1), (19, 3)]


def inputs(width: int, dtype: Any = np.bool_) -> dict[str, TensorInfo]:
    """Those of a signature of N tokens whose local mask has a width."""
    shapes = {
        "input_pos": ((N,), np.int32),
        "mask": ((1, 1, N, CAPACITY), dtype),
        "local_mask": ((1, 1, N, width), dtype),
        "param_tensor": ((1, 1, 1, 7), np.int32),
    }
    return {n: TensorInfo(n, shape, np.dtype(t), None) for n, (shape, t) in shapes.items()}


def found(start: int, count: int, attention: Attention, width: int) -> dict[str, np.ndarray]:
    values = place_inputs(PLACES, inputs(width), np.int32(start), np.int32(count), attention, RING)
    return {name: np.asarray(value) for name, value in values.items()}


def place_in_ring(column: int, end: int) -> int:
    """The last place before `end` whose entry is in a column; negative: none is."""
    return next(place for place in range(end - 1, end - 1 - RING, -1) if place % RING == column)


@pytest.mark.parametrize(("start", "count"), STARTS)
@pytest.mark.parametrize("is_causal", [True, False])
def test_each_token_sees_its_window(start: int, count: int, is_causal: bool) -> None:
    attention = Attention(is_causal, is_causal, WINDOW)
    values = found(start, count, attention, RING + N)
    sees, local = values["mask"][0, 0], values["local_mask"][0, 0]
    for row, place in itertools.product(range(N), range(CAPACITY)):
        end = start + (row + 1 if is_causal else count)
        assert sees[row, place] == (row < count and place < end)
    for row, column in itertools.product(range(N), range(RING + N)):
        query, is_old = start + row, column < RING
        place = place_in_ring(column, start) if is_old else start + column - RING
        end = start + (row + 1 if is_causal else count)
        wanted = row < count and 0 <= place < end and abs(query - place) < WINDOW
        assert local[row, column] == wanted


@pytest.mark.parametrize(("start", "count"), STARTS)
def test_entries_that_are_written_already(start: int, count: int) -> None:
    """In the ring there are later tokens, too, as where a drafter's proposals are checked."""
    local = found(start, count, Attention(window=WINDOW), RING)["local_mask"][0, 0]
    for row, column in itertools.product(range(N), range(RING)):
        query, place = start + row, place_in_ring(column, start + count)
        wanted = row < count and 0 <= place <= query < place + WINDOW
        assert local[row, column] == wanted


def test_without_a_window_local_masks_are_as_others() -> None:
    values = found(3, 2, Attention(), CAPACITY)
    np.testing.assert_array_equal(values["local_mask"], values["mask"])


def test_positions_and_parameters() -> None:
    values = found(5, 3, Attention(), CAPACITY)
    assert values["input_pos"].tolist() == [5, 6, 7, 0]
    assert values["param_tensor"].ravel().tolist() == [5, 8, 8, 0, 0, 0, 0]
    places = Places("input_pos", "mask", None, None)
    floats = place_inputs(places, inputs(CAPACITY, np.float16), 0, 2)
    assert set(floats) == {"input_pos", "mask"}
    assert np.unique(floats["mask"]).tolist() == [-45824, 0]
