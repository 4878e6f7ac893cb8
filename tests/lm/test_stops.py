"""Where the tokens of an answer end."""

import pytest

from jaxdelegate.lm.stops import StopSequences

STOPS = StopSequences([[2], [7, 8, 9], [], [2], [8, 5]])


def test_each_sequence_counts_once() -> None:
    assert STOPS.sequences == [[2], [7, 8, 9], [8, 5]]
    assert STOPS.tokens == {2}


@pytest.mark.parametrize(
    ("tokens", "first", "place"),
    [
        ([4, 2, 4], 0, range(1, 2)),
        ([4, 2, 4], 2, None),  # it ended before
        ([4, 7, 8, 9, 2], 0, range(1, 4)),  # the first one
        ([4, 7, 8, 9], 3, range(1, 4)),  # it began before
        ([7, 8, 5], 0, range(1, 3)),
        ([8, 9], 0, None),
        ([], 0, None),
    ],
)
def test_the_first_stop_that_is_new(tokens: list[int], first: int, place: range | None) -> None:
    assert STOPS.find(tokens, first) == place


@pytest.mark.parametrize(
    ("tokens", "count"), [([4, 7], 1), ([4, 7, 8], 2), ([8], 1), ([7, 8, 9], 0), ([9, 4], 0)]
)
def test_tokens_that_may_begin_a_stop(tokens: list[int], count: int) -> None:
    assert STOPS.overlap(tokens) == count
