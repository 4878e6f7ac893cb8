"""Digests of a model's constants, which the keys of its programs are made of."""

from collections.abc import Mapping

import numpy as np

from jaxdelegate.digests import array_digests


class ConstantDigests:
    """Digests of an open model's constants, each made once."""

    def __init__(self) -> None:
        """Begin empty."""
        self._made: dict[int, tuple[np.ndarray, str]] = {}

    def of(self, constants: Mapping[int, np.ndarray]) -> dict[int, str]:
        """The digest of each array's elements, by tensor."""
        new = {i: a for i, a in constants.items() if self._made.get(i, (None,))[0] is not a}
        digests = array_digests(list(new.values()))
        self._made.update((i, (a, d)) for (i, a), d in zip(new.items(), digests, strict=True))
        return {i: self._made[i][1] for i in constants}
