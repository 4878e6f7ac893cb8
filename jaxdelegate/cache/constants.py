"""Digests of a model's constants, which are parts of its programs' keys."""

from collections.abc import Mapping

import numpy as np

from jaxdelegate.digests import array_digests


class ConstantDigests:
    """Each is computed once."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[np.ndarray, str]] = {}

    def of(self, constants: Mapping[int, np.ndarray]) -> dict[int, str]:
        """The digest of each array's elements, by tensor."""
        new = {i: a for i, a in constants.items() if self._known.get(i, (None,))[0] is not a}
        digests = array_digests(list(new.values()))
        self._known.update((i, (a, d)) for (i, a), d in zip(new.items(), digests, strict=True))
        return {i: self._known[i][1] for i in constants}
