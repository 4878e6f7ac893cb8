"""Digests of a model's constants."""

import numpy as np
import pytest

from jaxdelegate.cache import constants
from jaxdelegate.cache.constants import ConstantDigests
from jaxdelegate.digests import array_digests


def test_each_array_is_hashed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = []

    def counted(some: list[np.ndarray]) -> list[str]:
        counts.append(len(some))
        return array_digests(some)

    monkeypatch.setattr(constants, "array_digests", counted)
    known = ConstantDigests()
    given = {0: np.arange(100), 3: np.ones((2, 3)), 5: np.array([b"a", b"text"], object)}
    want = dict(zip(given, array_digests(list(given.values())), strict=True))
    assert known.of(given) == known.of(given) == want
    other = np.arange(50)
    assert known.of(given | {0: other}) == want | {0: array_digests([other])[0]}
    assert counts == [3, 0, 1]
    assert known.of({}) == {}
