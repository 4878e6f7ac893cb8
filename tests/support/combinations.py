"""Parameters of which a part runs without `--exhaustive`."""

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import pytest


def covering(*tables: Sequence[Any]) -> list[Any]:
    """All combinations of the tables' values; a few that have every value are not exhaustive."""
    places = {tuple(i % len(t) for t in tables) for i in range(max(map(len, tables)))}
    return [
        pytest.param(
            *(t[i] for t, i in zip(tables, at, strict=True)),
            marks=[] if at in places else [pytest.mark.exhaustive],
        )
        for at in itertools.product(*(range(len(t)) for t in tables))
    ]


def one_of(count: int, values: Iterable[Any]) -> list[Any]:
    """The values; the first and every `count`-th one after it are not exhaustive."""
    return [
        pytest.param(value, marks=[pytest.mark.exhaustive] * (i % count > 0))
        for i, value in enumerate(values)
    ]
