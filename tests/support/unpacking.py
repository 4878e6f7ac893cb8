"""Watches how many packed elements are unpacked at a time."""

import numpy as np
import pytest

from jaxdelegate.model import stored
from jaxdelegate.quant import packing


def watch_unpacking(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of elements, one for each call of `packing.unpack` from now on."""
    counts: list[int] = []
    unpack = packing.unpack

    def counted(data: np.ndarray, count: int, dtype: np.dtype) -> np.ndarray:
        counts.append(count)
        return unpack(data, count, dtype)

    for module in (packing, stored):
        monkeypatch.setattr(module, "unpack", counted)
    return counts
